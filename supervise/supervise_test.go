package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary plays the children: TestMain branches on a variable.
func TestMain(m *testing.M) {
	switch os.Getenv("SUPERVISE_CHILD") {
	case "":
		os.Exit(m.Run())
	case "polite": // announces, then waits for the stop signal
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		fmt.Fprintln(os.Stderr, "a log line")
		<-c
		os.Exit(0)
	case "stubborn": // ignores the stop signal
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		select {}
	case "crash":
		fmt.Println("ready")
		os.Exit(3)
	case "orphan": // ends when its supervisor is gone
		ctx, cancel := ParentGone(context.Background(), os.Stdin)
		defer cancel()
		fmt.Println("ready")
		<-ctx.Done()
		os.Exit(0)
	case "flood": // one endless line, then an announcement
		fmt.Println(strings.Repeat("x", 3*maxLine))
		fmt.Println("after")
		select {}
	}
}

func spec(t *testing.T, mode string, log io.Writer) Spec {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Name: mode, Path: self, Args: func() []string { return nil }, Env: append(os.Environ(), "SUPERVISE_CHILD="+mode), Log: log}
}

// watcher collects events and lets a test wait for one.
type watcher struct {
	mu   sync.Mutex
	cond *sync.Cond
	all  []Event
}

func newWatcher() *watcher { w := &watcher{}; w.cond = sync.NewCond(&w.mu); return w }

func (w *watcher) on(e Event) {
	w.mu.Lock()
	w.all = append(w.all, e)
	w.mu.Unlock()
	w.cond.Broadcast()
}

func (w *watcher) wait(n int, match func(Event) bool) Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		seen := 0
		for _, e := range w.all {
			if match(e) {
				if seen++; seen == n {
					return e
				}
			}
		}
		w.cond.Wait()
	}
}

func kind(k EventKind) func(Event) bool { return func(e Event) bool { return e.Kind == k } }

func TestAnnouncesLogsAndStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher()
	var log bytes.Buffer
	g := New(ctx, Options{OnEvent: w.on})
	g.Start(spec(t, "polite", &log))
	if got := string(w.wait(1, kind(Announced)).Line); got != "ready" {
		t.Errorf("announcement %q, want %q", got, "ready")
	}
	if g.PID("polite") == 0 {
		t.Error("PID of a running child is 0")
	}
	cancel()
	g.Wait()
	if err := w.wait(1, kind(Exited)).Err; err != nil {
		t.Errorf("a child that stops on request exited with %v", err)
	}
	if got := log.String(); got != "a log line\n" {
		t.Errorf("log %q", got)
	}
	if g.PID("polite") != 0 {
		t.Error("PID of a stopped child is not 0")
	}
}

func TestRestartsAChildThatDies(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher()
	g := New(ctx, Options{Backoff: time.Millisecond, OnEvent: w.on})
	g.Start(spec(t, "crash", nil))
	if err := w.wait(3, kind(Exited)).Err; err == nil || !strings.Contains(err.Error(), "3") {
		t.Errorf("exit error %v, want status 3", err)
	}
	first, second := w.wait(1, kind(Restarting)).Delay, w.wait(2, kind(Restarting)).Delay
	if second != 2*first {
		t.Errorf("delays %v then %v, want doubling", first, second)
	}
	cancel()
	g.Wait()
}

func TestKillsAChildThatIgnoresTheStop(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher()
	g := New(ctx, Options{Grace: 50 * time.Millisecond, OnEvent: w.on})
	g.Start(spec(t, "stubborn", nil))
	w.wait(1, kind(Announced))
	cancel()
	g.Wait()
	if err := w.wait(1, kind(Exited)).Err; err == nil {
		t.Error("a killed child reported success")
	}
}

func TestChildEndsWithItsSupervisor(t *testing.T) {
	s := spec(t, "orphan", nil)
	cmd := exec.Command(s.Path)
	cmd.Env = s.Env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil { // it runs while the pipe is open
		t.Fatal(err)
	}
	_ = in.Close() // what the kernel does when the supervisor dies
	if err := cmd.Wait(); err != nil {
		t.Errorf("orphan exited with %v", err)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher()
	g := New(ctx, Options{OnEvent: w.on})
	g.Start(spec(t, "flood", nil))
	if got := len(w.wait(1, kind(Announced)).Line); got > maxLine {
		t.Errorf("line of %d bytes passed on", got)
	}
	if got := string(w.wait(2, kind(Announced)).Line); got != "after" {
		t.Errorf("after the long line came %q", got)
	}
	cancel()
	g.Wait()
}

func TestMissingExecutableIsReportedAndRetried(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatcher()
	g := New(ctx, Options{Backoff: time.Millisecond, OnEvent: w.on})
	g.Start(Spec{Name: "none", Path: "/nonexistent/tandem", Args: func() []string { return nil }})
	if err := w.wait(2, kind(Exited)).Err; err == nil {
		t.Error("no error for a missing executable")
	}
	cancel()
	g.Wait()
}
