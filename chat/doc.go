// Package chat renders the messages of a chat with a model's own template, the
// Jinja source in its GGUF file.
//
//	text, err := chat.Render(vocab.ChatTemplate(), messages, chat.Options{AddGenerationPrompt: true})
//
// The same template, messages and options always give the same text: the one
// function that would read a clock, strftime_now, answers [TemplateDate].
//
// # Templates are not trusted
//
// A template comes from whoever made the model file, and the engine that runs
// it, ardanlabs/jinja, has no limits of its own: a macro that calls itself would
// end the process. So a template is vetted and rewritten before it is compiled
// (guard.go): constructs whose cost cannot be bounded are refused by name, and
// calls are inserted that count loop passes, macro depth, bytes and time while
// it runs. What is refused is not used by the templates in circulation. A
// template that is refused, or that exceeds a limit, is an error matching
// [ErrTemplate]; nothing is ever rendered differently instead.
//
// A model without a template gives [ErrNoTemplate]. What a host does then is
// its decision; this package does not invent a format.
package chat
