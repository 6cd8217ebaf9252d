package llama

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/jupiterrider/ffi"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/model"
)

// maxText bounds the bytes of one Tokenize call.
const maxText = 64 << 20

// Vocab is the vocabulary of a loaded model. It implements engine.Vocab.
//
// llama.cpp's vocabulary is constant once loaded and its tokenizer keeps its
// working state per call, so calls run concurrently. Closing waits for them;
// afterwards tokenizing fails and pieces are nil.
type Vocab struct {
	lib   *library
	size  int
	bos   engine.Token
	eos   engine.Token
	bosOn bool
	tmpl  string
	// flags has one entry per token.
	flags []tokenFlags
	// pieces caches what tokens stand for; entries are made when first needed.
	pieces []atomic.Pointer[[]byte]

	mu     sync.RWMutex
	handle llama.Vocab // 0 when closed
	owned  llama.Model // a model loaded for its vocabulary alone, else 0
}

var _ engine.Vocab = (*Vocab)(nil)

type tokenFlags uint8

const (
	flagEOG tokenFlags = 1 << iota
	flagControl
)

// OpenVocab loads the vocabulary of a model, without its weights.
func OpenVocab(lib, path string) (*Vocab, error) {
	l, err := load(lib)
	if err != nil {
		return nil, err
	}
	file, err := model.Inspect(path)
	if err != nil {
		return nil, &Error{Kind: ErrModel, Subject: path, Err: err}
	}
	p := llama.ModelDefaultParams()
	p.SetCPUOnly()
	p.VocabOnly = 1
	m, err := l.loadModel(file.Files[0], p)
	if err != nil {
		return nil, err
	}
	v, err := newVocab(l, m)
	if err != nil {
		_ = llama.ModelFree(m)
		return nil, err
	}
	v.owned = m
	l.sink.take()
	return v, nil
}

func newVocab(l *library, m llama.Model) (*Vocab, error) {
	h := llama.ModelGetVocab(m)
	n := int(llama.VocabNTokens(h))
	if h == 0 || n < 1 || llama.GetVocabType(h) == llama.VocabTypeNone {
		return nil, &Error{Kind: ErrModel, Reason: "it has no vocabulary", Next: "choose another model"}
	}
	v := &Vocab{
		lib: l, handle: h, size: n,
		bos: engine.Token(llama.VocabBOS(h)), eos: engine.Token(llama.VocabEOS(h)),
		bosOn: llama.VocabGetAddBOS(h), tmpl: llama.ModelChatTemplate(m, ""),
		flags: make([]tokenFlags, n), pieces: make([]atomic.Pointer[[]byte], n),
	}
	for i := range v.flags {
		if llama.VocabIsEOG(h, llama.Token(i)) {
			v.flags[i] |= flagEOG
		}
		if llama.VocabIsControl(h, llama.Token(i)) {
			v.flags[i] |= flagControl
		}
	}
	return v, nil
}

// Close frees a vocabulary that OpenVocab loaded. The vocabulary of an engine
// is closed with it.
func (v *Vocab) Close() error {
	if v.owned != 0 {
		v.close()
	}
	return nil
}

func (v *Vocab) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.handle == 0 {
		return
	}
	v.handle = 0
	if v.owned != 0 {
		_ = llama.ModelFree(v.owned)
	}
}

// Tokenize implements engine.Vocab. The text must be valid UTF-8, which is what
// llama.cpp's splitters expect.
func (v *Vocab) Tokenize(text string, addSpecial, parseSpecial bool) ([]engine.Token, error) {
	switch {
	case len(text) > maxText:
		return nil, &Error{Kind: ErrText, Reason: fmt.Sprintf("%d bytes, at most %d", len(text), maxText), Next: "send less text"}
	case !utf8.ValidString(text):
		return nil, &Error{Kind: ErrText, Reason: "it is not valid UTF-8", Next: "encode it as UTF-8"}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.handle == 0 {
		return nil, engine.ErrClosed
	}
	// Hardly any text has more tokens than bytes. If one has, the count comes
	// back negative and the second try fits.
	out := make([]engine.Token, len(text)+8)
	n := v.tokenize(text, out, addSpecial, parseSpecial)
	if n < 0 && n != math.MinInt32 {
		out = make([]engine.Token, -n)
		n = v.tokenize(text, out, addSpecial, parseSpecial)
	}
	if n < 0 || int(n) > len(out) {
		return nil, &Error{Kind: ErrText, Reason: "llama.cpp does not tokenize it", Next: "send less text"}
	}
	return out[:n:n], nil
}

func (v *Vocab) tokenize(text string, out []engine.Token, addSpecial, parseSpecial bool) int32 {
	// Not yzma's wrapper: it passes no pointer for texts with a NUL.
	src, dst := unsafe.StringData(text), unsafe.SliceData(out)
	if len(text) == 0 {
		src = new(byte)
	}
	srcLen, dstLen := int32(len(text)), int32(len(out))
	special, parse := byteBool(addSpecial), byteBool(parseSpecial)
	var ret ffi.Arg
	f := &v.lib.fn.tokenize
	ffi.Call(f.Cif, f.Addr, unsafe.Pointer(&ret), unsafe.Pointer(&v.handle), unsafe.Pointer(&src), unsafe.Pointer(&srcLen),
		unsafe.Pointer(&dst), unsafe.Pointer(&dstLen), unsafe.Pointer(&special), unsafe.Pointer(&parse))
	runtime.KeepAlive(text)
	runtime.KeepAlive(out)
	return int32(ret)
}

func byteBool(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// Piece implements engine.Vocab.
func (v *Vocab) Piece(t engine.Token) []byte {
	if t < 0 || int(t) >= v.size {
		return nil
	}
	if p := v.pieces[t].Load(); p != nil {
		return *p
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.handle == 0 {
		return nil
	}
	b := make([]byte, 64)
	n := llama.TokenToPiece(v.handle, llama.Token(t), b, 0, false)
	if n < 0 {
		b = make([]byte, -n)
		n = llama.TokenToPiece(v.handle, llama.Token(t), b, 0, false)
	}
	b = append([]byte{}, b[:max(n, 0)]...)
	v.pieces[t].Store(&b)
	return b
}

// Text implements engine.Vocab.
func (v *Vocab) Text(t engine.Token) string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.handle == 0 || t < 0 || int(t) >= v.size {
		return ""
	}
	return llama.VocabGetText(v.handle, llama.Token(t))
}

// IsEOG implements engine.Vocab.
func (v *Vocab) IsEOG(t engine.Token) bool { return v.has(t, flagEOG) }

// IsControl implements engine.Vocab.
func (v *Vocab) IsControl(t engine.Token) bool { return v.has(t, flagControl) }

func (v *Vocab) has(t engine.Token, f tokenFlags) bool {
	return t >= 0 && int(t) < v.size && v.flags[t]&f != 0
}

// Size implements engine.Vocab.
func (v *Vocab) Size() int { return v.size }

// BOS implements engine.Vocab.
func (v *Vocab) BOS() engine.Token { return v.bos }

// EOS implements engine.Vocab.
func (v *Vocab) EOS() engine.Token { return v.eos }

// AddBOS implements engine.Vocab.
func (v *Vocab) AddBOS() bool { return v.bosOn }

// ChatTemplate implements engine.Vocab.
func (v *Vocab) ChatTemplate() string { return v.tmpl }

// probeToken is a token that any model accepts.
func (v *Vocab) probeToken() engine.Token {
	if v.bos >= 0 && int(v.bos) < v.size {
		return v.bos
	}
	return 0
}
