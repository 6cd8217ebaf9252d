package openai

import (
	"cmp"
	"slices"
	"strconv"
)

// Limits of the fields that both endpoints share.
const (
	MaxSamples     = 64    // n
	MaxStops       = 4     // stop strings
	MaxStopBytes   = 1_024 // bytes of one stop string
	MaxBias        = 1_024 // entries of logit_bias
	MaxTopLogprobs = 20    // top_logprobs of chat; completions allow 5
	maxModelName   = 256   // bytes
	maxMetadata    = 16    // entries
	maxLabel       = 512   // bytes of user, metadata values and the like
)

// Bias is one entry of logit_bias.
type Bias struct {
	Token int32
	Bias  float32 // added to the token's logit, -100..100
}

// Generation is what a request says about how to generate, with OpenAI's defaults filled in. It is
// the same for both endpoints.
type Generation struct {
	Model string // as the client wrote it, not empty

	N            int  // samples of each prompt, 1..MaxSamples
	MaxTokens    int  // most tokens to generate; 0: as many as the context allows
	Stream       bool // answer with server-sent events
	IncludeUsage bool // end the stream with a usage event

	Temperature       float32  // 0..2; 0 is greedy
	TopP              float32  // 0..1; 1 is off
	TopK              int      // 0 is off
	MinP              float32  // 0..1; 0 is off
	RepetitionPenalty float32  // 0.01..2; 1 is off
	PresencePenalty   float32  // -2..2
	FrequencyPenalty  float32  // -2..2
	Seed              *int64   // nil: the server chooses
	LogitBias         []Bias   // ascending by token, each token once
	Stop              []string // at most MaxStops, none empty
	IgnoreEOS         bool     // end-of-generation tokens do not end the answer
	ReturnTokenIDs    bool     // report token ids beside the text
	Logprobs          bool     // report the log probability of each token
	TopLogprobs       int      // and of this many most likely ones
}

// decoder collects what has to be checked across fields.
type decoder struct {
	on Endpoint
	g  Generation

	maxCompletion int // chat's newer name of max_tokens, 0 when absent
	streamOptions bool
	topLogprobs   bool
}

// decode reads all members of a body. own handles the fields that only one endpoint has; it is
// called for used fields that the shared part does not know.
func decode(on Endpoint, body []byte, own func(member) *Error) (Generation, *Error) {
	list, err := parse(body)
	if err != nil {
		return Generation{}, err
	}
	d := decoder{on: on}
	d.g = Generation{N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}
	for _, m := range list {
		f, ok := lookup(on, m.name)
		if !ok {
			return Generation{}, unknown(clip(m.name))
		}
		if m.null() {
			continue
		}
		switch f.Use {
		case Refused:
			err = unsupported(m.name, f.Note)
		case Limited, Harmless:
			err = restricted(m, f)
		default:
			err = d.field(m, own)
		}
		if err != nil {
			return Generation{}, err
		}
	}
	return d.finish()
}

// field reads one used field.
func (d *decoder) field(m member, own func(member) *Error) (err *Error) {
	g, raw := &d.g, m.raw
	switch m.name {
	case "model":
		g.Model, err = readString(m.name, raw, maxModelName)
	case "n":
		g.N, err = intField(m, 1, MaxSamples)
	case "max_tokens":
		g.MaxTokens, err = intField(m, 1, 1<<31-1)
	case "max_completion_tokens":
		d.maxCompletion, err = intField(m, 1, 1<<31-1)
	case "stream":
		g.Stream, err = readBool(m.name, raw)
	case "stream_options":
		d.streamOptions = true
		err = d.readStreamOptions(raw)
	case "stop":
		g.Stop, err = readStop(raw)
	case "seed":
		var v int64
		v, err = readInt(m.name, raw, -1<<63, 1<<63-1)
		g.Seed = &v
	case "temperature":
		g.Temperature, err = floatField(m, 0, 2)
	case "top_p":
		g.TopP, err = floatField(m, 0, 1)
	case "min_p":
		g.MinP, err = floatField(m, 0, 1)
	case "frequency_penalty":
		g.FrequencyPenalty, err = floatField(m, -2, 2)
	case "presence_penalty":
		g.PresencePenalty, err = floatField(m, -2, 2)
	case "repetition_penalty":
		g.RepetitionPenalty, err = floatField(m, 0.01, 2)
	case "top_k":
		g.TopK, err = intField(m, -1, 1<<31-1)
		g.TopK = max(g.TopK, 0)
	case "ignore_eos":
		g.IgnoreEOS, err = readBool(m.name, raw)
	case "return_token_ids":
		g.ReturnTokenIDs, err = readBool(m.name, raw)
	case "logit_bias":
		g.LogitBias, err = readBias(raw)
	case "logprobs":
		if d.on == Chat {
			g.Logprobs, err = readBool(m.name, raw)
			break
		}
		g.Logprobs = true
		g.TopLogprobs, err = intField(m, 0, 5)
	case "top_logprobs":
		d.topLogprobs = true
		g.TopLogprobs, err = intField(m, 0, MaxTopLogprobs)
	default:
		err = own(m)
	}
	return err
}

// finish applies the rules that concern several fields.
func (d *decoder) finish() (Generation, *Error) {
	g := &d.g
	if g.Model == "" {
		return *g, missing("model")
	}
	if d.streamOptions && !g.Stream {
		return *g, invalid(CodeInvalidValue, "stream_options", "'stream_options' is only allowed when 'stream' is true.")
	}
	if d.topLogprobs && !g.Logprobs {
		return *g, invalid(CodeInvalidValue, "top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
	}
	if d.maxCompletion > 0 {
		if g.MaxTokens > 0 && g.MaxTokens != d.maxCompletion {
			return *g, invalid(CodeInvalidValue, "max_tokens", "'max_tokens' and 'max_completion_tokens' differ; give one of them.")
		}
		g.MaxTokens = d.maxCompletion
	}
	if d.on == Completion && g.MaxTokens == 0 {
		g.MaxTokens = 16 // OpenAI's default of this endpoint
	}
	return *g, nil
}

func (d *decoder) readStreamOptions(raw []byte) *Error {
	list, err := readObject("stream_options", raw)
	if err != nil {
		return err
	}
	for _, m := range list {
		path := join("stream_options", clip(m.name))
		if m.null() && (m.name == "include_usage" || m.name == "include_obfuscation") {
			continue
		}
		switch m.name {
		case "include_usage":
			if d.g.IncludeUsage, err = readBool(path, m.raw); err != nil {
				return err
			}
		case "include_obfuscation":
			v, err := readBool(path, m.raw)
			if err != nil {
				return err
			}
			if v {
				return unsupportedValue(path, "false")
			}
		default:
			return unknown(path)
		}
	}
	return nil
}

// readStop reads a string or an array of strings.
func readStop(raw []byte) ([]string, *Error) {
	if raw[0] == '"' {
		v, err := readStopString("stop", raw)
		if err != nil {
			return nil, err
		}
		return []string{v}, nil
	}
	if raw[0] != '[' {
		return nil, wrongType("stop", "a string or an array of strings")
	}
	list, err := readArray("stop", raw, MaxStops)
	if err != nil {
		return nil, err
	}
	var out []string
	for i, raw := range list {
		v, err := readStopString(at("stop", i), raw)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out, nil
}

func readStopString(param string, raw []byte) (string, *Error) {
	v, err := readString(param, raw, MaxStopBytes)
	if err == nil && v == "" {
		err = invalid(CodeInvalidValue, param, "Invalid '%s': a stop string must not be empty.", param)
	}
	return v, err
}

func readBias(raw []byte) ([]Bias, *Error) {
	list, err := readObject("logit_bias", raw)
	if err != nil {
		return nil, err
	}
	if len(list) > MaxBias {
		return nil, invalid(CodeInvalidValue, "logit_bias", "Invalid 'logit_bias': more than %d entries.", MaxBias)
	}
	out := make([]Bias, 0, len(list))
	for _, m := range list {
		// Keys are token ids: an error names the field, never the id.
		id, perr := strconv.ParseInt(m.name, 10, 32)
		if perr != nil || id < 0 || strconv.FormatInt(id, 10) != m.name {
			return nil, invalid(CodeInvalidValue, "logit_bias", "Invalid 'logit_bias': a key is not a token id.")
		}
		v, err := readFloat("logit_bias", m.raw, -100, 100)
		if err != nil {
			return nil, err
		}
		out = append(out, Bias{int32(id), float32(v)})
	}
	slices.SortFunc(out, func(a, b Bias) int { return cmp.Compare(a.Token, b.Token) })
	return out, nil
}

func intField(m member, low, high int64) (int, *Error) {
	v, err := readInt(m.name, m.raw, low, high)
	return int(v), err
}

func floatField(m member, low, high float64) (float32, *Error) {
	v, err := readFloat(m.name, m.raw, low, high)
	return float32(v), err
}
