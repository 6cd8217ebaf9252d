package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/supervise"
)

// TestWorkerThatDoesNotStartEndsTheWait: it must not be counted among the processes that
// are ready, or a fleet of two workers would be called ready with one of them.
func TestWorkerThatDoesNotStartEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &upCmd{Prefill: 1, Decode: 1}
		f := &fleet{cmd: c, out: &progress{w: io.Discard}, ready: map[string]string{}, changed: make(chan struct{})}
		up := func(name, line string) {
			f.event(supervise.Event{Name: name, Kind: supervise.Announced, Line: []byte(line)})
		}
		up(gatewayName, `{"ready":"gateway","http":"127.0.0.1:1","bus":"tls://127.0.0.1:2"}`)
		up("prefill-0", `{"ready":"worker"}`)
		got := make(chan error, 1)
		go func() { got <- f.await(t.Context(), func() bool { return len(f.ready) == 1+len(f.workers()) }) }()
		for delay := 200 * time.Millisecond; delay <= 800*time.Millisecond; delay *= 2 {
			synctest.Wait()
			select {
			case err := <-got:
				t.Fatalf("the wait ended with %v before the worker had its tries", err)
			default:
			}
			f.event(supervise.Event{Name: "decode-0", Kind: supervise.Restarting, Delay: delay})
		}
		if err := <-got; err == nil || !strings.Contains(err.Error(), "decode-0 does not start") {
			t.Errorf("got %v", err)
		}
	})
}

// TestPrintedCommandHasAKey: with API keys the command as printed without one would be
// answered with 401.
func TestPrintedCommandHasAKey(t *testing.T) {
	for file, want := range map[string]bool{"": false, "keys": true} {
		var out bytes.Buffer
		f := &fleet{cmd: &upCmd{}, out: &progress{w: &out}, http: "127.0.0.1:8080"}
		f.cmd.APIKeys, f.cmd.ModelName = file, "m"
		f.printReady()
		if got := strings.Contains(out.String(), "-H 'Authorization: Bearer KEY'"); got != want {
			t.Errorf("--api-keys=%q: a key in the command: %v\n%s", file, got, &out)
		}
		if strings.Contains(out.String(), "--url") {
			t.Errorf("the default address is named:\n%s", &out)
		}
	}
	var out bytes.Buffer
	f := &fleet{cmd: &upCmd{}, out: &progress{w: &out}, http: "127.0.0.1:9"}
	if f.printReady(); !strings.Contains(out.String(), "tandem handoffs --last --url http://127.0.0.1:9 ") {
		t.Errorf("the command as printed asks another gateway:\n%s", &out)
	}
}
