package gateway

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/engine"
)

// panicking is a vocabulary with a defect that names what it worked on.
type panicking struct{ *testVocab }

func (panicking) Tokenize(text string, _, _ bool) ([]engine.Token, error) {
	panic("cannot read " + text)
}

// TestDefectShowsNoContent: a panic costs one request, and its log line says where it came from
// and nothing of what the request held.
func TestDefectShowsNoContent(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, func(cfg *Config, b *scripted) {
		cfg.Vocab = panicking{newTestVocab()}
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(r *rig) {
		r.wantError(r.post("/v1/completions", `{"model":"tiny","prompt":"marigold"}`), 500, openai.CodeInternal)
	})
	if got := log.String(); strings.Contains(got, "marigold") || !strings.Contains(got, "panicked") || !strings.Contains(got, "Tokenize") {
		t.Errorf("the log says %s", got)
	}
}
