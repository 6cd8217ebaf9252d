package openai

import "strings"

// Limits of a chat request.
const (
	MaxMessages = 2_048
	maxParts    = 1_024    // text parts of one message
	maxContent  = 64 << 20 // bytes of one text; the body limit is what counts
)

// Roles of messages.
const (
	RoleSystem    = "system"
	RoleDeveloper = "developer"
	RoleUser      = "user"
	RoleAssistant = "assistant"
)

// Message is one message of a chat.
type Message struct {
	Role    string // one of the Role constants
	Content string // text parts are joined with a line break
	Name    string // the participant's name, or empty
}

// ChatRequest is a decoded body of POST /v1/chat/completions.
type ChatRequest struct {
	Generation
	Messages []Message // at least one
}

// DecodeChat decodes the body of a chat request. The error is ready to be sent.
func DecodeChat(body []byte) (*ChatRequest, *Error) {
	req := &ChatRequest{}
	g, err := decode(Chat, body, func(m member) (err *Error) {
		if m.name != "messages" {
			return unsupported(m.name, "")
		}
		req.Messages, err = readMessages(m.raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	req.Generation = g
	if len(req.Messages) == 0 {
		return nil, missing("messages")
	}
	return req, nil
}

func readMessages(raw []byte) ([]Message, *Error) {
	list, err := readArray("messages", raw, MaxMessages)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, invalid(CodeInvalidValue, "messages", "Invalid 'messages': at least one message is needed.")
	}
	out := make([]Message, 0, len(list))
	for i, raw := range list {
		m, err := readMessage(at("messages", i), raw)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func readMessage(path string, raw []byte) (Message, *Error) {
	list, err := readObject(path, raw)
	if err != nil {
		return Message{}, err
	}
	var msg Message
	hasContent := false
	for _, m := range list {
		p := join(path, clip(m.name))
		switch m.name {
		case "role":
			msg.Role, err = readRole(p, m)
		case "content":
			if !m.null() {
				hasContent = true
				msg.Content, err = readContent(p, m.raw)
			}
		case "name":
			if !m.null() {
				msg.Name, err = readString(p, m.raw, maxLabel)
			}
		case "tool_calls", "function_call", "tool_call_id":
			if !m.null() {
				err = unsupported(p, noTools)
			}
		case "audio":
			if !m.null() {
				err = unsupported(p, textOnly)
			}
		case "refusal":
			// Clients send an earlier answer back whole: its empty extras mean nothing.
			if !m.null() {
				err = unsupported(p, textOnly)
			}
		case "annotations":
			if !m.null() && string(m.raw) != "[]" {
				err = unsupported(p, textOnly)
			}
		default:
			err = unknown(p)
		}
		if err != nil {
			return Message{}, err
		}
	}
	if msg.Role == "" {
		return Message{}, missing(join(path, "role"))
	}
	if !hasContent {
		return Message{}, missing(join(path, "content"))
	}
	return msg, nil
}

func readRole(path string, m member) (string, *Error) {
	role, err := readString(path, m.raw, maxLabel)
	if err != nil {
		return "", err
	}
	switch role {
	case RoleSystem, RoleDeveloper, RoleUser, RoleAssistant:
		return role, nil
	case "tool", "function":
		return "", unsupported(path, noTools)
	}
	return "", invalid(CodeInvalidValue, path, "Invalid '%s': it must be system, developer, user or assistant.", path)
}

// readContent reads a string or an array of text parts.
func readContent(path string, raw []byte) (string, *Error) {
	if raw[0] == '"' {
		return readString(path, raw, maxContent)
	}
	if raw[0] != '[' {
		return "", wrongType(path, "a string or an array of text parts")
	}
	list, err := readArray(path, raw, maxParts)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", invalid(CodeInvalidValue, path, "Invalid '%s': at least one part is needed.", path)
	}
	parts := make([]string, 0, len(list))
	for i, raw := range list {
		v, err := readPart(at(path, i), raw)
		if err != nil {
			return "", err
		}
		parts = append(parts, v)
	}
	return strings.Join(parts, "\n"), nil
}

// readPart reads one text part. Its type is looked at first, so that an image is refused as an
// image and not for the fields it has.
func readPart(path string, raw []byte) (string, *Error) {
	list, err := readObject(path, raw)
	if err != nil {
		return "", err
	}
	kind := ""
	for _, m := range list {
		if m.name == "type" {
			if kind, err = readString(join(path, "type"), m.raw, maxLabel); err != nil {
				return "", err
			}
		}
	}
	switch kind {
	case "text":
	case "":
		return "", missing(join(path, "type"))
	case "image_url", "input_audio", "file", "refusal":
		return "", unsupported(join(path, "type"), textOnly)
	default:
		return "", invalid(CodeInvalidValue, join(path, "type"), "Invalid '%s': it must be text.", join(path, "type"))
	}
	text, found := "", false
	for _, m := range list {
		p := join(path, clip(m.name))
		switch m.name {
		case "type":
		case "text":
			found = true
			if text, err = readString(p, m.raw, maxContent); err != nil {
				return "", err
			}
		default:
			return "", unknown(p)
		}
	}
	if !found {
		return "", missing(join(path, "text"))
	}
	return text, nil
}
