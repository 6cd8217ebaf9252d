package chat

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ardanlabs/jinja"
	"github.com/google/go-cmp/cmp"
)

// Templates in the styles that are in circulation: line by line, packed, with
// macros, namespaces, block assignments and comments.
var templates = map[string]string{
	"chatml": `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`,
	"llama3": `{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{#- the conversation -#}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
`,
	"strict": `{{ bos_token }}{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %}{{ m.content ~ eos_token }}{% endif %}
{% endfor %}`,
	"macros": `{%- macro turn(role, text='') -%}
<{{ role }}>{{ text | upper }}</{{ role }}>
{%- endmacro -%}
{%- set ns = namespace(n=0, last='') -%}
{%- for m in messages if m.role != 'system' -%}
  {%- set ns.n = ns.n + 1 -%}
  {%- set ns.last = m.content.split(' ')[-1] -%}
  {{- turn(m.role, m.content) -}}
  {%- if not loop.last %} | {% endif -%}
{%- else -%}
nothing
{%- endfor -%}
{% set tail %} {{ ns.n }} {{ ns.last }}{% endset %}{{ tail }}{{ range(3) | join(',') }}`,
}

var conversation = []Message{
	{Role: "system", Content: "  Be brief. "},
	{Role: "user", Content: "héllo {{ 7 }} wörld", Name: "Ann"},
	{Role: "assistant", Content: "{% raise %} yes"},
	{Role: "user", Content: ""},
}

// unguarded renders with the library alone.
func unguarded(t *testing.T, source string, messages []Message, o Options) string {
	t.Helper()
	tmpl, err := jinja.Compile(source)
	if err != nil {
		t.Fatal(err)
	}
	var list []jinja.Value
	for _, m := range messages {
		v := jinja.NewDict()
		v.AsDict().Set("role", jinja.NewString(m.Role))
		v.AsDict().Set("content", jinja.NewString(m.Content))
		list = append(list, v)
	}
	out, err := tmpl.RenderValues(map[string]jinja.Value{
		"messages": jinja.NewList(list), "add_generation_prompt": jinja.NewBool(o.AddGenerationPrompt),
		"bos_token": jinja.NewString(o.BOS), "eos_token": jinja.NewString(o.EOS),
		"tools": jinja.None(), "documents": jinja.None(),
		"strftime_now": jinja.NewCallable("", func(a []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			return jinja.NewString(strftime(a[0].AsString())), nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What the guard inserts never shows.
func TestGuardIsInvisible(t *testing.T) {
	for name, source := range templates {
		for _, generation := range []bool{true, false} {
			for n := range len(conversation) {
				messages := conversation[1 : 1+n]
				if name != "strict" {
					messages = conversation[:n+1]
				}
				o := Options{AddGenerationPrompt: generation, BOS: "<s>", EOS: "</s>"}
				got, err := Render(source, messages, o)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff := cmp.Diff(unguarded(t, source, messages, o), got); diff != "" {
					t.Errorf("%s with %d messages (-library +guarded):\n%s", name, len(messages), diff)
				}
			}
		}
	}
}

func TestRender(t *testing.T) {
	got, err := Render(templates["llama3"], conversation[:2], Options{AddGenerationPrompt: true, BOS: "<s>"})
	want := "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>" +
		"<|start_header_id|>user<|end_header_id|>\n\nhéllo {{ 7 }} wörld<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
	if err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Render("", conversation, Options{}); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("no template: %v", err)
	}
	if _, err := Render(templates["chatml"], []Message{{Content: strings.Repeat("x", MaxInput+1)}}, Options{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	if _, err := Render(templates["chatml"], make([]Message, MaxMessages+1), Options{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too many: %v", err)
	}
	// A megabyte of input is no problem.
	long := []Message{{Role: "user", Content: strings.Repeat("long ", 1<<18)}}
	if out, err := Render(templates["chatml"], long, Options{}); err != nil || len(out) < 5<<18 {
		t.Errorf("a long message: %d bytes, %v", len(out), err)
	}
}

// Errors name the template's own reason, and never what users wrote.
func TestRefusedMessages(t *testing.T) {
	_, err := Render(templates["strict"], []Message{{Role: "assistant", Content: "secret"}}, Options{})
	if !errors.Is(err, ErrMessages) || !strings.Contains(err.Error(), "roles must alternate") {
		t.Errorf("%v", err)
	}
	for _, source := range []string{
		`{{ raise_exception('got: ' ~ messages[0].content) }}`,
		`{{ messages[0].content() }}`,
		`{{ messages[0].content|nothing }}`,
		`{% set ns = messages[0].content %}{% set ns.x = 1 %}`,
	} {
		_, err := Render(source, []Message{{Role: "user", Content: "secret"}}, Options{})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// Each of these would take the process's memory, its stack or all its time.
func TestHostileTemplates(t *testing.T) {
	big := []Message{{Role: "user", Content: strings.Repeat("x", 1<<16)}}
	for name, source := range map[string]string{
		"recursion":            `{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"recursion by value":   `{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}`,
		"mutual recursion":     `{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"recursion by caller":  `{% macro f() %}{{ caller() }}{% endmacro %}{% macro h() %}{% call f() %}{{ h() }}{% endcall %}{% endmacro %}{{ h() }}`,
		"range":                `{% for i in range(1000000000) %}{% endfor %}`,
		"far range":            `{{ range(1, 2 - 0 + 999999 + 999999) | length }}`,
		"nested loops":         strings.Repeat(`{% for i in range(1000) %}`, 5) + strings.Repeat(`{% endfor %}`, 5),
		"doubling":             `{% set a = messages[0].content %}` + strings.Repeat(`{% set a = a + a %}`, 40),
		"doubling in a loop":   `{% set ns = namespace(a=messages[0].content) %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}`,
		"doubling lists":       `{% set ns = namespace(a=['x']) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}`,
		"output in a loop":     `{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}`,
		"plain text in a loop": `{% for i in range(1000000) %}` + strings.Repeat("text ", 10000) + `{% endfor %}`,
		"plain text in macros": `{% macro f() %}` + strings.Repeat("text ", 10000) + `{% endmacro %}{% for i in range(1000000) %}{% set x = f() %}{% endfor %}`,
		"block assignment":     `{% set a %}{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}{% endset %}{{ a }}`,
		"join of a list":       `{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = ns.a + [messages[0].content] %}{% endfor %}{{ ns.a | join('') }}`,
		"repetition":           `{{ 'x' * 999999 }}`,
		"power":                `{{ 9 ** 9 }}`,
		"growing replacement":  `{{ messages[0].content | replace('x', messages[0].content) }}`,
		"growing replacements": `{{ messages[0].content` + strings.Repeat(` | replace('x', 'xxxxxxxx')`, 20) + ` }}`,
		"replace method":       `{{ messages[0].content.replace('x', messages[0].content) }}`,
		"joining with text":    `{{ messages[0].content | list | join(messages[0].content) }}`,
		"indent":               `{{ 'x' | indent(1000000) }}`,
		"computed indent":      `{{ 'x' | indent(999999 + 999999) }}`,
		"tojson indent":        `{{ messages | tojson(indent=100000) }}`,
		"batch":                `{{ 'x' | list | batch(999999, 'x') }}`,
		"append":               `{% set l = [] %}{% for i in range(3) %}{% set x = l.append(l) %}{% endfor %}{{ l }}`,
		"huge number":          `{{ messages[0:99999999999:2] }}`,
		"brackets":             `{{ ` + strings.Repeat("(", 100000) + strings.Repeat(")", 100000) + ` }}`,
		"blocks":               strings.Repeat(`{% if 1 %}`, 20000) + strings.Repeat(`{% endif %}`, 20000),
		"operators":            `{{ 'x'` + strings.Repeat(` ~ 'x'`, 2000) + ` }}`,
		"size":                 strings.Repeat("x", MaxTemplate+1),
		"not text":             "\xff{{ 1 }}",
		"open tag":             `{{ 1`,
		"open string":          `{{ 'x }}`,
		"open bracket":         `{{ (1 }}`,
		"closing bracket":      `{{ 1) ~ (2 }}`,
		"unknown statement":    `{% include 'x' %}`,
		"two names":            `{% set a, b = 1, 2 %}`,
		"reserved name":        `{{ __keep }}`,
		"open block":           `{% if 1 %}`,
		"lonely end":           `{% endfor %}`,
		"crossed blocks":       `{% if 1 %}{% for i in [1] %}{% endif %}{% endfor %}`,
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			out, err := Render(source, big, Options{})
			if !errors.Is(err, ErrTemplate) {
				t.Errorf("%d bytes, %v", len(out), err)
			}
			// Not a measurement: without the limit it would be hours.
			if d := time.Since(start); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestDate(t *testing.T) {
	for format, want := range map[string]string{
		"%d %b %Y": "26 Jul 2024", "%Y-%m-%d": "2024-07-26", "%A, %B %-d": "Friday, July 26",
		"%H:%M:%S %p": "12:00:00 PM", "100%%": "100%", "%": "%", "%-": "-", "%Q": "Q", "": "",
	} {
		if got := strftime(format); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
}

func TestRange(t *testing.T) {
	for source, want := range map[string]string{
		"range(3)": "0,1,2", "range(1,4)": "1,2,3", "range(0,7,3)": "0,3,6", "range(4,0,-2)": "4,2",
		"range(0)": "", "range(3,1)": "", "range(0,3,-1)": "", "range(5,-1,-5)": "5,0",
	} {
		got, err := Render("{{ "+source+" | join(',') }}", nil, Options{})
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
	for _, source := range []string{"range()", "range('x')", "range(1,2,0)", "range(1,2,3,4)"} {
		if out, err := Render("{{ "+source+" }}", nil, Options{}); !errors.Is(err, ErrTemplate) {
			t.Errorf("%s: %q, %v", source, out, err)
		}
	}
}

// Compiled templates are shared; the cache stays bounded.
func TestConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 2 * cacheSize {
				m := []Message{{Role: "user", Content: fmt.Sprint(i, j)}}
				source := fmt.Sprintf("%d {{ messages[0].content }}", j)
				if out, err := Render(source, m, Options{}); err != nil || out != fmt.Sprintf("%d %d %d", j, i, j) {
					t.Error(out, err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(cache.byID); n > cacheSize {
		t.Errorf("%d templates cached", n)
	}
}

func FuzzRender(f *testing.F) {
	for _, source := range templates {
		f.Add(source, "user", "hello")
	}
	f.Add(`{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}`, "user", "x")
	f.Fuzz(func(t *testing.T, source, role, content string) {
		m := []Message{{Role: role, Content: content}}
		out, err := Render(source, m, Options{AddGenerationPrompt: true})
		if err == nil && len(out) > slack+growth*(len(role)+len(content))+perMessage {
			t.Errorf("%d bytes", len(out))
		}
		if err != nil && !errors.Is(err, ErrTemplate) && !errors.Is(err, ErrMessages) && !errors.Is(err, ErrNoTemplate) {
			t.Error(err)
		}
	})
}
