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
	checkMerges(r)
	for _, name := range specialTokens {
		key := "tokenizer.ggml." + name + "_token_id"
		if !r.f.Has(key) {
			continue
		}
		// Some converters write 2³²−1 for "none", which llama.cpp accepts.
		if id := r.uintOr(key, 0, 1<<32-1); r.err == nil && id != 1<<32-1 && id >= uint64(len(tokens)) {
			r.fail(key, "token %d of %d", id, len(tokens))
		}
	}
	t.Digest = tokenizerDigest(r.f)
	return t
}

// specialTokens are the names of keys that name one token.
var specialTokens = []string{
	"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask",
	"prefix", "suffix", "middle", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep",
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

// checkMerges refuses merges that are not two words: llama.cpp splits them at
// the first space after the first byte.
func checkMerges(r *reader) {
	const key = "tokenizer.ggml.merges"
	merges, err := r.f.Strings(key)
	for i, m := range readOr(r, merges, err, nil) {
		if len(m) < 3 || strings.IndexByte(m[1:], ' ') < 0 {
			r.fail(key, "merge %d is not two tokens", i)
			return
		}
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
