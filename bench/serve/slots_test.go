package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A prompt is computed once, each move saves here and restores there, and what
// does not arrive whole is an error.
func TestSlots(t *testing.T) {
	var log []string
	restored := 7
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		log = append(log, r.URL.RequestURI()+" "+string(raw))
		switch {
		case r.URL.Path == "/save/completion":
			fmt.Fprint(w, `{"content":"x"}`)
		case r.URL.RequestURI() == "/save/slots/0?action=save":
			fmt.Fprint(w, `{"n_saved":7,"n_written":70}`)
		case r.URL.RequestURI() == "/restore/slots/0?action=restore":
			json.NewEncoder(w).Encode(map[string]int{"n_restored": restored, "n_read": 70})
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	s := &Slots{Save: srv.URL + "/save", Restore: srv.URL + "/restore", File: "f"}
	if err := s.Prefill(t.Context(), []int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Move(t.Context())
	if err != nil || m.Bytes != 70 || m.Tokens != 7 || m.Save <= 0 || m.Restore <= 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if !strings.Contains(log[0], `"prompt":[1,2,3]`) || len(log) != 3 || !strings.Contains(log[2], `{"filename":"f"}`) {
		t.Errorf("asked %q", log)
	}
	restored = 6
	if _, err := s.Move(t.Context()); err == nil || !strings.Contains(err.Error(), "7 tokens in 70 bytes were saved, 6 in 70 restored") {
		t.Errorf("a part of it: %v", err)
	}
	s.Restore = srv.URL
	if _, err := s.Move(t.Context()); err == nil || !strings.Contains(err.Error(), "restore: status 404") {
		t.Errorf("no such endpoint: %v", err)
	}
}
