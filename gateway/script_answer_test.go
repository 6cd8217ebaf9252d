package gateway

import (
	"bytes"
	"time"

	"github.com/tandem-llm/tandem/bus/buspb"
)

// generate reports the answer's tokens from skip tokens behind the forced ones, at most count of
// them when count is not negative, and whether the answer ended. The destination's first message
// repeats the source's token, as status is cumulative.
func (w *worker) generate(id string, side buspb.Side, gen *buspb.Generation, skip, count int) bool {
	if side == buspb.Side_SIDE_SOURCE && count < 0 {
		w.note(gen)
	}
	all := answerTokens()
	forced := int(gen.GetForcedTokens())
	prompt := gen.GetTokens()[:len(gen.GetTokens())-forced]
	from := forced + skip
	if side == buspb.Side_SIDE_DESTINATION {
		from = forced
	}
	for i := from; count != 0; i++ {
		w.mu.Lock()
		_, cancelled := w.cancelled[id]
		gone := w.gone
		w.mu.Unlock()
		if cancelled || gone {
			return true
		}
		t := &buspb.Tokens{From: uint32(i), Tokens: []*buspb.Token{scriptToken(all[i], gen)}}
		if i == 0 && side == buspb.Side_SIDE_SOURCE {
			t.Usage = &buspb.Usage{Prompt: uint32(len(prompt)), Cached: 2}
		}
		finished := false
		if all[i] == vocabEOS || stopsAt(gen, all[:i+1]) {
			t.Finish, finished = buspb.Finish_FINISH_STOP, true
		} else if i+1 == int(gen.GetMaxTokens()) {
			t.Finish, finished = buspb.Finish_FINISH_LENGTH, true
		}
		w.status(id, side, &buspb.Status{Body: &buspb.Status_Tokens{Tokens: t}})
		if finished {
			if side == buspb.Side_SIDE_DESTINATION {
				w.status(id, side, ended(buspb.Outcome_OUTCOME_COMPLETED))
			} else if count < 0 {
				w.status(id, side, ended(buspb.Outcome_OUTCOME_FINISHED_AT_SOURCE))
			}
			return true
		}
		count--
		time.Sleep(10 * time.Millisecond) // virtual
	}
	return false
}

func stopsAt(gen *buspb.Generation, tokens []int32) bool {
	var text []byte
	for _, t := range tokens {
		text = append(text, piece(t)...)
	}
	for _, s := range gen.GetStop() {
		if bytes.HasSuffix(text, []byte(s)) {
			return true
		}
	}
	return false
}

func scriptToken(id int32, gen *buspb.Generation) *buspb.Token {
	t := &buspb.Token{Id: id, Piece: piece(id)}
	if gen.GetLogprobs() {
		t.Logprob = -0.5
		for i := range gen.GetTopLogprobs() {
			t.Top = append(t.Top, &buspb.TopToken{Id: int32(i) + 'a', Piece: []byte{byte(i) + 'a'}, Logprob: -1 - float32(i)})
		}
	}
	return t
}
