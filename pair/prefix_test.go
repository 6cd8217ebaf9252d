package pair

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/model/tiny"
)

// What either side finds in a prefix cache changes nothing but what is computed and what travels.
func TestPrefixes(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(string(arch), func(t *testing.T) {
			p, h := open(t, arch)
			x, sum, want := local(t, h, 700, 8)
			same := func(name string, got StateSum, steps []Step, err error) {
				t.Helper()
				if d := cmp.Diff(want, steps); err != nil || got != sum || d != "" {
					t.Errorf("%s: state equal: %v, %v\n%s", name, got == sum, err, d)
				}
			}
			if err := h.Clear(); err != nil {
				t.Fatal(err)
			}
			if _, err := h.PrefillFrom(x.Prompt, 64, 256); err != nil {
				t.Fatal(err)
			}
			got, err := h.State()
			steps, err2 := h.Continue(8)
			same("computed behind a hit", got, steps, errors.Join(err, err2))

			if len(x.Pages) == 0 {
				if _, err := p.Send(t.Context(), Sending{Export: x, Skip: 300}); !errors.Is(err, ErrCall) {
					t.Errorf("pages left out that there are not: %v", err)
				}
				return
			}
			for name, s := range map[string]Sending{
				"held":              {Export: x},
				"pulled":            {Export: x, Pull: true},
				"out of the engine": {Host: h, Prompt: x.Prompt, PageTokens: 100, Chunk: 64},
			} {
				for _, skip := range []int{300, 700} {
					if _, err := p.Send(t.Context(), Sending{Export: x}); err != nil {
						t.Fatal(err)
					}
					if err := p.KeepPrefix(t.Context(), skip); err != nil {
						t.Fatal(err)
					}
					if err := h.Clear(); err != nil {
						t.Fatal(err)
					}
					s.Skip = skip
					m, err := p.Send(t.Context(), s)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					bytes := x.Bytes()
					for _, page := range x.Pages {
						if page.End <= skip {
							bytes -= int64(len(page.Payload))
						}
					}
					if m.Bytes != bytes || uint64(m.Bytes) != m.Received.Bytes {
						t.Errorf("%s, %d kept: %d bytes travelled, %d arrived, expected %d", name, skip, m.Bytes, m.Received.Bytes, bytes)
					}
					got, err := p.State(t.Context())
					steps, err2 := p.Continue(t.Context(), 8)
					same(fmt.Sprintf("%s, %d kept", name, skip), got, steps, errors.Join(err, err2))
					idle(t, p)
				}
			}
			if _, err := p.Send(t.Context(), Sending{Export: x, Skip: 250}); !errors.Is(err, ErrCall) {
				t.Errorf("a prefix that ends within a page: %v", err)
			}
			var refused *HandoffError
			if _, err := p.Send(t.Context(), Sending{Export: x, Skip: 300}); !errors.As(err, &refused) || refused.Destination == nil {
				t.Errorf("a prefix that nobody kept: %v", err)
			}
			if err := p.KeepPrefix(t.Context(), 300); err == nil {
				t.Error("a prefix of nothing was kept")
			}
			idle(t, p)
		})
	}
}
