package openai

// restricted validates the fields that have no effect: harmless ones of the right type, and
// limited ones whose value asks for what the server does anyway.
func restricted(m member, f Field) *Error {
	switch m.name {
	case "user", "safety_identifier", "prompt_cache_key":
		_, err := readString(m.name, m.raw, maxLabel)
		return err
	case "parallel_tool_calls":
		_, err := readBool(m.name, m.raw)
		return err
	case "metadata":
		return readMetadata(m.raw)
	case "store", "echo":
		v, err := readBool(m.name, m.raw)
		if err == nil && v {
			err = unsupportedValue(m.name, f.Note)
		}
		return err
	case "best_of":
		v, err := readInt(m.name, m.raw, 0, 1<<31-1)
		if err == nil && v != 1 {
			err = unsupportedValue(m.name, f.Note)
		}
		return err
	case "service_tier":
		v, err := readString(m.name, m.raw, maxLabel)
		if err == nil && v != "auto" && v != "default" {
			err = unsupportedValue(m.name, f.Note)
		}
		return err
	case "modalities":
		list, err := readArray(m.name, m.raw, 8)
		if err == nil && (len(list) != 1 || string(list[0]) != `"text"`) {
			err = unsupportedValue(m.name, f.Note)
		}
		return err
	case "response_format":
		list, err := readObject(m.name, m.raw)
		if err == nil && (len(list) != 1 || list[0].name != "type" || string(list[0].raw) != `"text"`) {
			err = unsupportedValue(m.name, f.Note)
		}
		return err
	}
	return unsupported(m.name, f.Note) // a table line without its check fails closed
}

func readMetadata(raw []byte) *Error {
	list, err := readObject("metadata", raw)
	if err != nil {
		return err
	}
	if len(list) > maxMetadata {
		return invalid(CodeInvalidValue, "metadata", "Invalid 'metadata': more than %d entries.", maxMetadata)
	}
	for _, m := range list {
		if len(m.name) > maxLabel {
			return invalid(CodeInvalidValue, "metadata", "Invalid 'metadata': a key is longer than %d bytes.", maxLabel)
		}
		if _, err := readString(join("metadata", clip(m.name)), m.raw, maxLabel); err != nil {
			return err
		}
	}
	return nil
}
