package model

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/tandem-llm/tandem/state"
	"github.com/zeebo/blake3"
)

// Tokenizer describes a model's vocabulary.
type Tokenizer struct {
	// Model is the kind of tokenizer, such as "gpt2" or "llama".
	Model string
	// Pre is the kind of pre-tokenizer, possibly empty.
	Pre string
	// Size is the number of tokens.
	Size int
	// Digest covers everything that decides how text becomes tokens and tokens
	// become text: every "tokenizer." key except chat templates.
	Digest state.Digest
}

// digestContext separates tokenizer digests from every other use of BLAKE3.
const digestContext = "github.com/tandem-llm/tandem model tokenizer digest v1"

func readTokenizer(r *reader) Tokenizer {
	t := Tokenizer{
		Model: r.text("tokenizer.ggml.model"),
		Pre:   r.textOr("tokenizer.ggml.pre", ""),
	}
	const key = "tokenizer.ggml.tokens"
	tokens, err := r.f.Strings(key)
	tokens = read(r, tokens, err)
	if r.err == nil && (len(tokens) == 0 || len(tokens) > maxVocab) {
		r.fail(key, "%d tokens", len(tokens))
	}
	if r.err != nil {
		return t
	}
	t.Size = len(tokens)
	checkTokens(r, key, tokens)
	for _, key := range []string{"tokenizer.ggml.token_type", "tokenizer.ggml.scores"} {
		if v, ok := r.f.Value(key); ok && v.Len() < len(tokens) {
			r.fail(key, "%d values for %d tokens", v.Len(), len(tokens))
		}
	}
	switch t.Model {
	case "no_vocab", "none":
		r.fail("tokenizer.ggml.model", "%q: the file has no vocabulary", t.Model)
	case "llama":
		checkBytes(r, key, tokens)
	}
	for _, end := range []string{"bos", "eos"} {
		checkAdded(r, end, len(tokens))
	}
	t.Digest = tokenizerDigest(r.f)
	return t
}

// checkTokens refuses tokens that appear twice: llama.cpp asserts that they do
// not. An empty token stands for one that it names after its position.
func checkTokens(r *reader, key string, tokens []string) {
	seen := make(map[string]struct{}, len(tokens))
	for i, t := range tokens {
		if t == "" {
			t = fmt.Sprintf("[EMPTY_%d]", i)
		}
		if _, dup := seen[t]; dup {
			r.fail(key, "token %d repeats an earlier one", i)
			return
		}
		seen[t] = struct{}{}
	}
}

// checkBytes refuses a SentencePiece vocabulary without a token for every byte:
// llama.cpp throws across its C interface when a text needs one.
func checkBytes(r *reader, key string, tokens []string) {
	var have [256]bool
	for _, t := range tokens {
		var b byte
		if n, err := fmt.Sscanf(t, "<0x%02X>", &b); n == 1 && err == nil && len(t) == 6 {
			have[b] = true
		} else if len(t) == 1 {
			have[t[0]] = true
		}
	}
	for b, ok := range have {
		if !ok {
			r.fail(key, "no token for byte %#02x", b)
			return
		}
	}
}

// checkAdded refuses a vocabulary that adds a token to every text and does not
// say which: llama.cpp asserts that there is one.
func checkAdded(r *reader, end string, tokens int) {
	add, id := "tokenizer.ggml.add_"+end+"_token", "tokenizer.ggml."+end+"_token_id"
	on, err := r.f.Bool(add)
	if on = readOr(r, on, err, false); !on {
		return
	}
	if n, err := r.f.Uint(id); err != nil || n >= uint64(tokens) {
		r.fail(add, "true, and %s names none of %d tokens", id, tokens)
	}
}

// tokenizerDigest hashes keys and values in the order of the keys, each with its
// length, so that neither their order in the file nor their boundaries matter.
func tokenizerDigest(f *gguf.File) state.Digest {
	var pairs []gguf.Pair
	for _, p := range f.Pairs {
		if strings.HasPrefix(p.Key, "tokenizer.") && !strings.HasPrefix(p.Key, "tokenizer.chat_template") {
			pairs = append(pairs, p)
		}
	}
	slices.SortFunc(pairs, func(a, b gguf.Pair) int { return strings.Compare(a.Key, b.Key) })
	h := blake3.NewDeriveKey(digestContext)
	for _, p := range pairs {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(p.Key)))
		b = p.Value.Append(append(b, p.Key...))
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	var d state.Digest
	h.Sum(d[:0])
	return d
}
