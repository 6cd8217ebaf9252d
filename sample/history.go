package sample

// history counts the tokens the penalties look at. The zero value is inactive.
type history struct {
	// where[t] is 1 + the index of token t in entries, or 0. Its length is the
	// vocabulary size; nil means that history does not matter.
	where   []int32
	entries []entry // one per distinct token, in no meaningful order

	// ring holds the last tokens, oldest at start, if a window bounds them;
	// its capacity is the window. Without a window only the counts are kept.
	window    int
	ring      []int32
	start     int
	generated int // of the tokens in ring; they are its newest
}

// entry is one token of the window.
type entry struct {
	token int32
	// seen counts it in prompt and completion, made in the completion alone;
	// 1 <= seen, made <= seen.
	seen, made uint32
}

func newHistory(vocab, window int) history {
	h := history{where: make([]int32, vocab), window: window}
	if window > 0 {
		h.ring = make([]int32, 0, window)
		h.entries = make([]entry, 0, min(window, vocab))
	}
	return h
}

func (h *history) active() bool { return h.where != nil }

// push adds a token, which is in the vocabulary, and forgets the one that
// leaves the window.
func (h *history) push(token int32, generated bool) {
	if h.window > 0 {
		if len(h.ring) < h.window {
			h.ring = append(h.ring, token)
		} else {
			// All of the ring is generated: then so is the oldest.
			h.drop(h.ring[h.start], h.generated == h.window)
			h.ring[h.start] = token
			if h.start++; h.start == h.window {
				h.start = 0
			}
			if h.generated == h.window {
				h.generated--
			}
		}
		if generated {
			h.generated++
		}
	}
	h.add(token, generated)
}

func (h *history) add(token int32, generated bool) {
	at := h.where[token]
	if at == 0 {
		h.entries = append(h.entries, entry{token: token})
		at = int32(len(h.entries))
		h.where[token] = at
	}
	e := &h.entries[at-1]
	// Saturating: a count is only ever compared with zero or multiplied by a
	// penalty, and 2^32 tokens are out of reach anyway.
	if e.seen++; e.seen == 0 {
		e.seen--
	}
	if generated {
		if e.made++; e.made == 0 {
			e.made--
		}
	}
}

func (h *history) drop(token int32, generated bool) {
	at := h.where[token] - 1
	e := &h.entries[at]
	e.seen--
	if generated {
		e.made--
	}
	if e.seen > 0 {
		return
	}
	last := h.entries[len(h.entries)-1]
	h.entries[at] = last
	h.where[last.token] = at + 1
	h.where[token] = 0
	h.entries = h.entries[:len(h.entries)-1]
}

// penalize returns the logit of a token of the history after the penalties.
func (p *Params) penalize(l float32, e entry) float32 {
	if r := p.RepetitionPenalty; r != 0 {
		if l > 0 {
			l /= r
		} else {
			l *= r
		}
	}
	if e.made > 0 {
		// The conversion forbids fusing: the same bits everywhere.
		l -= float32(float32(e.made) * p.FrequencyPenalty)
		l -= p.PresencePenalty
	}
	return l
}
