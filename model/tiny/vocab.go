package tiny

import (
	"fmt"
	"unicode/utf8"
)

// vocabSize is the number of tokens of every model: 256 bytes, the merges of
// words, three special tokens, and unused ones up to this size.
const vocabSize = 512

// Token types of tokenizer.ggml.token_type.
const (
	tokenNormal  = 1
	tokenControl = 3
	tokenUnused  = 5
)

// words become tokens, together with each of their prefixes, so that ordinary
// English takes fewer tokens than bytes and answers look like broken words. The
// characters outside ASCII make answers contain multi-byte UTF-8.
var words = []string{
	" the", " and", " of", " to", " in", " is", " that", " for", " was",
	" on", " with", " as", " it", " be", " by", " this", " have", " from",
	" or", " one", " had", " not", " but", " what", " all", " were", " when",
	" we", " there", " can", " an", " your", " which", " their", " said",
	" if", " do", " will", " each", " how", " go", " he", " me", " up",
	" no", " so", " my", " us", " at", " a", "ing", "er", "ed", "ion", "es",
	"re", "ly", "al", "le", "ent", "ck", "st", "ou", "ow",
	"é", "ü", "ñ", "ß", "→", "—", "日", "本", "д", "я",
}

// vocab is a byte-level vocabulary in the manner of GPT-2.
type vocab struct {
	tokens []string
	types  []int32
	merges []string
	// speakable marks the tokens that answers may contain: whole printable
	// characters, no lone bytes of a longer one, nothing special.
	speakable                 []bool
	endOfText, imStart, imEnd int
}

// byteRunes maps each byte to the printable character that stands for it in a
// byte-level vocabulary.
func byteRunes() [256]rune {
	var m [256]rune
	next := rune(256)
	for b := range m {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			m[b] = rune(b)
			continue
		}
		m[b] = next
		next++
	}
	return m
}

func newVocab() *vocab {
	v := &vocab{}
	runes := byteRunes()
	id := make(map[string]int)
	add := func(token string, typ int32, speakable bool) {
		id[token] = len(v.tokens)
		v.tokens = append(v.tokens, token)
		v.types = append(v.types, typ)
		v.speakable = append(v.speakable, speakable)
	}
	for b, r := range runes {
		add(string(r), tokenNormal, b == '\n' || b >= ' ' && b <= '~')
	}
	for _, w := range words {
		left := string(runes[w[0]])
		for i := 1; i < len(w); i++ {
			right := string(runes[w[i]])
			if _, ok := id[left+right]; !ok {
				v.merges = append(v.merges, left+" "+right)
				add(left+right, tokenNormal, utf8.ValidString(w[:i+1]))
			}
			left += right
		}
	}
	v.endOfText = len(v.tokens)
	add("<|endoftext|>", tokenControl, false)
	v.imStart = len(v.tokens)
	add("<|im_start|>", tokenControl, false)
	v.imEnd = len(v.tokens)
	add("<|im_end|>", tokenControl, false)
	for len(v.tokens) < vocabSize {
		add(fmt.Sprintf("<|unused%d|>", len(v.tokens)), tokenUnused, false)
	}
	return v
}

// chatTemplate is ChatML.
const chatTemplate = "{% for message in messages %}" +
	"{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}" +
	"{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// tokenizer writes the vocabulary.
func (b *builder) tokenizer() *vocab {
	v := newVocab()
	b.w.String("tokenizer.ggml.model", "gpt2")
	b.w.String("tokenizer.ggml.pre", "gpt-2")
	b.w.Strings("tokenizer.ggml.tokens", v.tokens)
	b.w.Int32s("tokenizer.ggml.token_type", v.types)
	b.w.Strings("tokenizer.ggml.merges", v.merges)
	b.w.Uint32("tokenizer.ggml.bos_token_id", uint32(v.endOfText))
	b.w.Uint32("tokenizer.ggml.eos_token_id", uint32(v.imEnd))
	b.w.Uint32("tokenizer.ggml.eot_token_id", uint32(v.imEnd))
	b.w.Uint32("tokenizer.ggml.padding_token_id", uint32(v.endOfText))
	b.w.Bool("tokenizer.ggml.add_bos_token", false)
	b.w.Bool("tokenizer.ggml.add_eos_token", false)
	b.w.String("tokenizer.chat_template", chatTemplate)
	return v
}
