package chat

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ardanlabs/jinja"
)

// Limits. Templates in circulation stay far below all of them.
const (
	MaxTemplate = 256 << 10 // bytes of a template
	MaxInput    = 64 << 20  // bytes of all messages
	MaxMessages = 1 << 16
	maxSteps    = 1 << 20 // loop passes and macro calls of one rendering
	maxDepth    = 100     // macros inside macros
	maxTime     = 2 * time.Second
	maxPlain    = 64 << 20 // bytes of the template's own text, written or not

	// The text of one variable, and of the output, may be as long as this.
	slack      = 1 << 20
	growth     = 4       // times the bytes of the messages
	perMessage = 4 << 10 // for each message
)

// TemplateDate is the date that templates are told when they ask for today's:
// a rendering must not depend on when it happens. It is also what Llama 3
// templates fall back on.
var TemplateDate = time.Date(2024, time.July, 26, 12, 0, 0, 0, time.UTC)

// The errors of Render, to be tested with errors.Is.
var (
	// ErrNoTemplate: the model has no chat template.
	ErrNoTemplate = errors.New("chat: the model has no chat template; use the completions API, or a model with a template")
	// ErrTemplate: the template is not valid, needs something that is not
	// supported, or ran into a limit. The messages are not at fault.
	ErrTemplate = errors.New("chat: the model's chat template cannot be used")
	// ErrMessages: the template itself refuses these messages, for example two
	// of one role in a row.
	ErrMessages = errors.New("chat: the model's chat template refuses the messages")
	// ErrTooLarge: there are too many messages, or too many bytes in them.
	ErrTooLarge = errors.New("chat: too many messages or too much text")
)

// Message is one message of a chat.
type Message struct {
	// Role is who speaks: "system", "user", "assistant" or what the template knows.
	Role string
	// Content is the text.
	Content string
	// Name is the participant's name, usually empty.
	Name string
}

// Options are what a template is told besides the messages.
type Options struct {
	// AddGenerationPrompt ends the text with the beginning of an answer.
	AddGenerationPrompt bool
	// BOS and EOS are the texts of the model's tokens.
	BOS, EOS string
}

// Render renders messages with a template, in bounded time and memory. It is
// safe for concurrent use; compiled templates are cached. Errors match one of
// the errors above and carry no text of the messages.
func Render(template string, messages []Message, o Options) (string, error) {
	if template == "" {
		return "", ErrNoTemplate
	}
	size := len(o.BOS) + len(o.EOS)
	for i := range messages {
		size += len(messages[i].Role) + len(messages[i].Content) + len(messages[i].Name)
	}
	if size > MaxInput || len(messages) > MaxMessages {
		return "", fmt.Errorf("%w: %d bytes in %d messages, at most %d in %d", ErrTooLarge, size, len(messages), MaxInput, MaxMessages)
	}
	t, err := compile(template)
	if err != nil {
		return "", err
	}
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		v := jinja.NewDict()
		d := v.AsDict()
		d.Set("role", jinja.NewString(m.Role))
		d.Set("content", jinja.NewString(m.Content))
		if m.Name != "" {
			d.Set("name", jinja.NewString(m.Name))
		}
		list[i] = v
	}
	data := map[string]jinja.Value{
		"messages":              jinja.NewList(list),
		"add_generation_prompt": jinja.NewBool(o.AddGenerationPrompt),
		"bos_token":             jinja.NewString(o.BOS),
		"eos_token":             jinja.NewString(o.EOS),
		"tools":                 jinja.None(),
		"documents":             jinja.None(),
	}
	b := &budget{template: template, bytes: slack + growth*size + perMessage*len(messages), deadline: time.Now().Add(maxTime)}
	b.install(data)
	return b.run(t, data)
}

// run renders and translates what goes wrong.
func (b *budget) run(t *jinja.Template, data map[string]jinja.Value) (text string, err error) {
	defer func() {
		if r := recover(); r != nil { // the library panics on values of unexpected kinds
			text, err = "", fmt.Errorf("%w: it makes the template engine fail", ErrTemplate)
		}
	}()
	text, err = t.RenderValues(data)
	switch {
	case err == nil && len(text) > b.bytes:
		return "", b.over("bytes")
	case err == nil:
		return text, nil
	case errors.Is(err, ErrTemplate) || errors.Is(err, ErrMessages):
		return "", err
	}
	// The library's own errors may quote values.
	return "", fmt.Errorf("%w: it does something the template engine does not support", ErrTemplate)
}

// cached is a compiled template, or why there is none.
type cached struct {
	template *jinja.Template
	err      error
}

// cache holds compiled templates by their source. Hosts serve few models; when
// it is full it is emptied.
var cache struct {
	mu   sync.Mutex
	byID map[string]cached
}

const cacheSize = 16

func compile(source string) (*jinja.Template, error) {
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if c, ok := cache.byID[source]; ok {
		return c.template, c.err
	}
	var c cached
	c.template, c.err = compileGuarded(source)
	if cache.byID == nil || len(cache.byID) >= cacheSize {
		cache.byID = map[string]cached{}
	}
	cache.byID[strings.Clone(source)] = c
	return c.template, c.err
}

func compileGuarded(source string) (t *jinja.Template, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("%w: it makes the template engine fail", ErrTemplate)
		}
	}()
	guarded, err := guard(source)
	if err != nil {
		return nil, err
	}
	if t, err = jinja.Compile(guarded); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrTemplate, err)
	}
	return t, nil
}
