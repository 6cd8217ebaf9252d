package chat

import (
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// The names guard inserts calls of. A template cannot use them itself.
const (
	fnEnter = "__enter" // a macro or call block begins
	fnLeave = "__leave" // and ends
	fnPass  = "__pass"  // a loop begins a pass
	fnKeep  = "__keep"  // a value is about to be kept in a variable
	fnEmit  = "__emit"  // a value is about to be written
)

// budget is what one rendering may use. It belongs to that rendering.
type budget struct {
	template string
	bytes    int // of text, in one variable and in the output
	deadline time.Time

	steps, depth, written, plain int
}

func (b *budget) over(what string) error {
	return fmt.Errorf("%w: it uses more %s than allowed", ErrTemplate, what)
}

// install puts the functions of the guard into data, and replaces those of the
// library that have no bounds or are not deterministic.
func (b *budget) install(data map[string]jinja.Value) {
	def := func(name string, fn func(args []jinja.Value) (jinja.Value, error)) {
		data[name] = jinja.NewCallable(name, func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			return fn(args)
		})
	}
	def(fnEnter, func(args []jinja.Value) (jinja.Value, error) {
		b.depth++
		if b.depth > maxDepth {
			return jinja.Undefined(), b.over("macros inside macros")
		}
		return b.pass(args)
	})
	def(fnLeave, func([]jinja.Value) (jinja.Value, error) {
		b.depth--
		return jinja.None(), nil
	})
	def(fnPass, b.pass)
	def(fnKeep, func(args []jinja.Value) (jinja.Value, error) {
		if len(args) != 1 {
			return jinja.Undefined(), b.over("values")
		}
		if b.weigh(args[0], 0) > b.bytes {
			return jinja.Undefined(), b.over("bytes in a variable")
		}
		return args[0], b.step()
	})
	def(fnEmit, func(args []jinja.Value) (jinja.Value, error) {
		if len(args) != 1 {
			return jinja.Undefined(), b.over("values")
		}
		if b.written += b.weigh(args[0], 0); b.written > b.bytes {
			return jinja.Undefined(), b.over("bytes")
		}
		return args[0], nil
	})
	def("range", b.boundedRange)
	def("strftime_now", func(args []jinja.Value) (jinja.Value, error) {
		format := "%Y-%m-%d"
		if len(args) > 0 && args[0].IsString() {
			format = args[0].AsString()
		}
		return jinja.NewString(strftime(format)), nil
	})
	def("raise_exception", func(args []jinja.Value) (jinja.Value, error) {
		return jinja.Undefined(), b.refusal(args)
	})
}

// pass counts one run of a block with that much plain text in it.
func (b *budget) pass(args []jinja.Value) (jinja.Value, error) {
	if len(args) == 1 && args[0].IsInt() {
		b.plain += int(args[0].AsInt())
	}
	if b.plain > maxPlain {
		return jinja.Undefined(), b.over("text of its own")
	}
	return jinja.None(), b.step()
}

func (b *budget) step() error {
	b.steps++
	if b.steps > maxSteps {
		return b.over("steps")
	}
	if b.steps%256 == 0 && time.Now().After(b.deadline) {
		return b.over("time")
	}
	return nil
}

// weigh is about how many bytes a value prints as. Lists are looked into a few
// levels deep, because joining them makes text of their sum.
func (b *budget) weigh(v jinja.Value, level int) int {
	const element = 16
	switch {
	case v.IsString():
		return len(v.AsString())
	case level > 3:
		return element
	case v.IsList():
		n := 0
		for _, x := range v.AsList().Items {
			if n += element + b.weigh(x, level+1); n > b.bytes {
				break
			}
		}
		return n
	case v.IsDict():
		n := 0
		d := v.AsDict()
		for k, x := range d.Data {
			if n += element + len(k) + b.weigh(x, level+1); n > b.bytes {
				break
			}
		}
		return n
	}
	return element
}

func (b *budget) boundedRange(args []jinja.Value) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1}
	for i, a := range args {
		if i > 2 || !a.IsInt() {
			return jinja.Undefined(), fmt.Errorf("%w: range takes one to three integers", ErrTemplate)
		}
		bounds[i] = a.AsInt()
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if len(args) == 1 {
		start, stop = 0, start
	}
	const far = 1 << 40
	if len(args) == 0 || step == 0 || max(start, stop, step) > far || min(start, stop, step) < -far {
		return jinja.Undefined(), fmt.Errorf("%w: range of impossible bounds", ErrTemplate)
	}
	n := (stop - start + step - sign(step)) / step
	if n > maxSteps {
		return jinja.Undefined(), b.over("steps")
	}
	var items []jinja.Value
	for i := int64(0); i < n; i++ {
		items = append(items, jinja.NewInt(start+i*step))
	}
	return jinja.NewList(items), nil
}

func sign(n int64) int64 {
	if n < 0 {
		return -1
	}
	return 1
}

// refusal is the error of raise_exception. Its message is shown only when it is
// a part of the template, because templates also quote the messages in it.
func (b *budget) refusal(args []jinja.Value) error {
	if len(args) > 0 && args[0].IsString() {
		if s := args[0].AsString(); s != "" && len(s) <= 300 && strings.Contains(b.template, s) {
			return fmt.Errorf("%w: %s", ErrMessages, s)
		}
	}
	return ErrMessages
}

// strftime formats TemplateDate.
func strftime(format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'B': "January", 'b': "Jan", 'h': "Jan",
		'A': "Monday", 'a': "Mon", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'Z': "MST", 'z': "-0700",
		'F': "2006-01-02", 'T': "15:04:05", 'j': "002",
	}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' || i+1 == len(format) {
			out.WriteByte(c)
			continue
		}
		i++
		if format[i] == '-' && i+1 < len(format) { // %-d: no padding
			i++
			out.WriteString(strings.TrimLeft(TemplateDate.Format(layouts[format[i]]), "0 "))
			continue
		}
		if layout, ok := layouts[format[i]]; ok {
			out.WriteString(TemplateDate.Format(layout))
			continue
		}
		out.WriteByte(format[i]) // %% and unknown ones
	}
	return out.String()
}
