package archtest

import (
	"strings"
	"testing"
)

// The scanner sees what it is there to see.
func TestImpure(t *testing.T) {
	tests := []struct {
		name string
		src  string
		want string // part of the one complaint, or "" for none
	}{
		{"durations are fine", `import "time"; const d = 3 * time.Second`, ""},
		{"formatting is fine", `import "fmt"; var s = fmt.Sprint(1)`, ""},
		{"readers are fine", `import "io"; func f(r io.Reader) {}`, ""},
		{"clock", `import "time"; var t = time.Now()`, "mentions time.Now"},
		{"clock as a value", `import "time"; var now = time.Now`, "mentions time.Now"},
		{"clock by another name", `import chrono "time"; func f() { chrono.Sleep(1) }`, "mentions chrono.Sleep"},
		{"timer type", `import "time"; type x struct{ t *time.Timer }`, "mentions time.Timer"},
		{"dot import", `import . "time"; var t = Now()`, "with a dot"},
		{"timer", `import "time"; var c = time.After(1)`, "mentions time.After"},
		{"goroutine", `func f() { go f() }`, "starts a goroutine"},
		{"goroutine in a literal", `var f = func() { go func() {}() }`, "starts a goroutine"},
		{"channel", `type q struct{ c chan int }`, "has a channel"},
		{"logger", `import "log/slog"; var l = slog.Default()`, "imports log/slog"},
		{"old logger", `import "log"; var l = log.Default()`, "imports log"},
		{"files", `import "os"; var f = os.Stdin`, "imports os"},
		{"processes", `import "os/exec"; var f = exec.Command("x")`, "imports os/exec"},
		{"sockets", `import "net"; var f = net.Dial`, "imports net"},
		{"locks", `import "sync"; var m sync.Mutex`, "imports sync"},
		{"atomics", `import "sync/atomic"; var m atomic.Int32`, "imports sync/atomic"},
		{"random globals", `import "math/rand/v2"; var n = rand.Int()`, "imports math/rand/v2"},
		{"printing", `import "fmt"; func f() { fmt.Println() }`, "mentions fmt.Println"},
		{"builtin printing", `func f() { println() }`, "calls println"},
		{"a method of the same name is fine", `type x struct{}; func (x) Now() int { return 1 }; var n = x{}.Now()`, ""},
	}
	for _, tt := range tests {
		f, err := parse("x.go", []byte("package x; "+tt.src))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		got := impure(f)
		switch {
		case tt.want == "" && len(got) > 0:
			t.Errorf("%s: complains %q", tt.name, got)
		case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
			t.Errorf("%s: complains %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a/b/c", false},
		{"a/...", "a", true},
		{"a/...", "a/b/c", true},
		{"a/...", "ab", false},
	} {
		if got := covers(tt.pattern, tt.path); got != tt.want {
			t.Errorf("covers(%q, %q) = %v", tt.pattern, tt.path, got)
		}
	}
}
