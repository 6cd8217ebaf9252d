package enginetest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tandem-llm/tandem/engine"
)

// A scan refuses what an import refuses, and works while the owner computes. An
// import of scanned
// payloads gives the same state, and still refuses broken framing.
func testScan(t *testing.T, open Open) {
	const tokens = 100
	src, e := opened(t, open, standard), opened(t, open, standard)
	x, _ := PrefillAndExport(t, src, 0, Prompt(src.Vocab(), tokens, 31), 40)
	scans := map[string]func([]byte) error{}
	payloads := map[string][]byte{}
	if e.Paged() {
		p := x.Pages[1]
		payloads["page"] = p.Payload
		scans["page"] = func(b []byte) error { return e.ScanPage(p.First, p.End, b) }
		for _, r := range [][2]int{{-1, 39}, {40, 40}, {41, 40}} {
			if err := e.ScanPage(r[0], r[1], p.Payload); !errors.Is(err, engine.ErrCoverage) {
				t.Errorf("the range %v: %v", r, err)
			}
		}
		if err := e.ScanPage(0, 40, p.Payload); !errors.Is(err, engine.ErrPayload) {
			t.Errorf("another range: %v", err)
		}
	} else if err := e.ScanPage(0, 40, make([]byte, 100)); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a page: %v", err)
	}
	if len(x.Snapshot) > 0 {
		payloads["snapshot"] = x.Snapshot
		scans["snapshot"] = func(b []byte) error { return e.ScanSnapshot(tokens, b) }
		if err := e.ScanSnapshot(tokens-1, x.Snapshot); !errors.Is(err, engine.ErrPayload) {
			t.Errorf("another position: %v", err)
		}
	} else if err := e.ScanSnapshot(tokens, make([]byte, 100)); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a snapshot: %v", err)
	}
	for unit, scan := range scans {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := scan(payloads[unit]); err != nil {
				t.Errorf("%s: %v", unit, err)
			}
			for _, m := range damages(payloads[unit]) {
				if err := scan(m.payload); !errors.Is(err, engine.ErrPayload) {
					t.Errorf("%s %s: %v", unit, m.name, err)
				}
			}
		}()
		Prefill(t, e, 2, Prompt(e.Vocab(), 64, 32), 16, nil) // the owner computes meanwhile
		<-done
		if err := e.Drop(2); err != nil {
			t.Fatal(err)
		}
	}

	imp, err := e.BeginImport(0, tokens)
	if err != nil {
		t.Fatal(err)
	}
	imp.Scanned()
	for _, p := range x.Pages {
		if err := imp.Page(p.First, p.End, p.Payload); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.Snapshot) > 0 {
		if err := imp.Snapshot(x.Snapshot); err != nil {
			t.Fatal(err)
		}
	}
	if err := imp.Commit(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(Canonical(t, src, 0), Canonical(t, e, 0)) {
		t.Error("an import of scanned payloads is not its source")
	}
	first := x.Snapshot
	if e.Paged() {
		first = x.Pages[0].Payload
	}
	for _, m := range damages(first) {
		imp, err := e.BeginImport(1, tokens)
		if err != nil {
			t.Fatal(err)
		}
		imp.Scanned()
		if e.Paged() {
			err = imp.Page(x.Pages[0].First, x.Pages[0].End, m.payload)
		} else {
			err = imp.Snapshot(m.payload)
		}
		if !errors.Is(err, engine.ErrPayload) {
			t.Errorf("a scanned payload %s: %v", m.name, err)
		}
		if err := imp.Discard(); err != nil {
			t.Fatal(err)
		}
	}
}
