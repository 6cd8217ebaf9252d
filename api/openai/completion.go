package openai

import "strconv"

// Limits of a completion request.
const (
	MaxPrompts      = 64
	MaxPromptTokens = 1 << 21 // token ids of one prompt
)

// Prompt is one prompt of a completion request: text, or token ids when Tokens is not nil.
type Prompt struct {
	Text   string
	Tokens []int32 // ids ≥ 0, not checked against a vocabulary
}

// CompletionRequest is a decoded body of POST /v1/completions.
type CompletionRequest struct {
	Generation
	Prompts []Prompt // at least one; choices are numbered prompt by prompt
}

// DecodeCompletion decodes the body of a completion request. The error is ready to be sent.
func DecodeCompletion(body []byte) (*CompletionRequest, *Error) {
	req := &CompletionRequest{}
	g, err := decode(Completion, body, func(m member) (err *Error) {
		if m.name != "prompt" {
			return unsupported(m.name, "")
		}
		req.Prompts, err = readPrompts(m.raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	req.Generation = g
	if len(req.Prompts) == 0 {
		return nil, missing("prompt")
	}
	return req, nil
}

// readPrompts reads the four forms: a string, an array of strings, an array of token ids, an array
// of arrays of token ids.
func readPrompts(raw []byte) ([]Prompt, *Error) {
	if raw[0] != '[' {
		p, err := readPrompt("prompt", raw)
		if err != nil {
			return nil, err
		}
		return []Prompt{p}, nil
	}
	switch first(raw) {
	case ']':
		return nil, invalid(CodeInvalidValue, "prompt", "Invalid 'prompt': it must not be empty.")
	case '"', '[':
	default:
		tokens, err := readTokens("prompt", raw)
		if err != nil {
			return nil, err
		}
		return []Prompt{{Tokens: tokens}}, nil
	}
	list, err := readArray("prompt", raw, MaxPrompts)
	if err != nil {
		return nil, err
	}
	out := make([]Prompt, 0, len(list))
	for i, raw := range list {
		p, err := readPrompt(at("prompt", i), raw)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func readPrompt(path string, raw []byte) (Prompt, *Error) {
	switch raw[0] {
	case '"':
		text, err := readString(path, raw, maxContent)
		if err == nil && text == "" {
			err = invalid(CodeInvalidValue, path, "Invalid '%s': it must not be empty.", path)
		}
		return Prompt{Text: text}, err
	case '[':
		tokens, err := readTokens(path, raw)
		return Prompt{Tokens: tokens}, err
	}
	return Prompt{}, wrongType(path, "a string or an array of token ids")
}

// readTokens reads an array of token ids without splitting it first: it may be long.
func readTokens(path string, raw []byte) ([]int32, *Error) {
	s := scanner{data: raw, pos: 1}
	out := []int32{}
	for {
		s.space()
		switch s.data[s.pos] {
		case ']':
			if len(out) == 0 {
				return nil, invalid(CodeInvalidValue, path, "Invalid '%s': it must not be empty.", path)
			}
			return out, nil
		case ',':
			s.pos++
			s.space()
		}
		if len(out) == MaxPromptTokens {
			return nil, invalid(CodeInvalidValue, path, "Invalid '%s': more than %d token ids.", path, MaxPromptTokens)
		}
		start := s.pos
		s.skip()
		id, err := strconv.ParseInt(string(s.data[start:s.pos]), 10, 32)
		if err != nil || id < 0 {
			return nil, invalid(CodeInvalidType, path, "Invalid '%s': element %d is not a token id.", path, len(out))
		}
		out = append(out, int32(id))
	}
}

// first returns the first byte of an array's first element, or ']' of an empty array.
func first(raw []byte) byte {
	s := scanner{data: raw, pos: 1}
	s.space()
	return s.data[s.pos]
}
