package gateway

import (
	"strings"

	"github.com/tandem-llm/tandem/engine"
)

// testVocab has a token for each byte and a few special ones.
type testVocab struct {
	template string
	addBOS   bool
}

const (
	vocabBOS  = 256
	vocabEOS  = 257
	vocabTurn = 258
	vocabSize = 259
)

var specials = map[int32]string{vocabBOS: "<s>", vocabEOS: "</s>", vocabTurn: "<|turn|>"}

// testTemplate writes BOS itself, as most templates do.
const testTemplate = `{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}`

func newTestVocab() *testVocab { return &testVocab{template: testTemplate, addBOS: true} }

func piece(id int32) []byte {
	if id < 256 {
		return []byte{byte(id)}
	}
	return nil
}

func (v *testVocab) Tokenize(text string, addSpecial, parseSpecial bool) (out []engine.Token, err error) {
	if addSpecial && v.addBOS {
		out = append(out, vocabBOS)
	}
next:
	for text != "" {
		if parseSpecial {
			for id, name := range specials {
				if rest, ok := strings.CutPrefix(text, name); ok {
					out, text = append(out, id), rest
					continue next
				}
			}
		}
		out, text = append(out, engine.Token(text[0])), text[1:]
	}
	return out, nil
}

func (v *testVocab) Piece(id engine.Token) []byte   { return piece(id) }
func (v *testVocab) Text(id engine.Token) string    { return specials[id] }
func (v *testVocab) IsEOG(id engine.Token) bool     { return id == vocabEOS }
func (v *testVocab) IsControl(id engine.Token) bool { return id >= 256 }
func (v *testVocab) Size() int                      { return vocabSize }
func (v *testVocab) BOS() engine.Token              { return vocabBOS }
func (v *testVocab) EOS() engine.Token              { return vocabEOS }
func (v *testVocab) AddBOS() bool                   { return v.addBOS }
func (v *testVocab) ChatTemplate() string           { return v.template }
