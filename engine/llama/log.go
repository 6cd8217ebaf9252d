package llama

import (
	"log/slog"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Bounds of what is kept of llama.cpp's output between two calls.
const (
	logLines    = 32
	logLineSize = 240
)

// sink receives llama.cpp's log from whichever thread writes it. It keeps the
// first lines of level warning and above until the owner takes them, because a
// handler must not run inside a callback from C.
type sink struct {
	mu      sync.Mutex
	lines   []logLine
	dropped int
	backend string // the file name of the loaded CPU backend, from an info line
}

type logLine struct {
	level slog.Level
	text  string
}

// unusedTensor begins the warning for every tensor of a speculation block, which
// is left out on purpose.
const unusedTensor = "model has unused tensor"

// ggml_log_level
const (
	logInfo  = 2
	logWarn  = 3
	logError = 4
)

// callback returns the C function pointer. purego never frees one, so there is
// one per process.
func (s *sink) callback() uintptr {
	return purego.NewCallback(func(level int32, text *byte, _ uintptr) uintptr {
		switch {
		case level == logInfo:
			s.info(cString(text, logLineSize))
		case level == logWarn:
			s.add(slog.LevelWarn, cString(text, logLineSize))
		case level == logError:
			s.add(slog.LevelError, cString(text, logLineSize))
		}
		return 0
	})
}

func (s *sink) add(level slog.Level, text string) {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasPrefix(text, unusedTensor) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.lines) >= logLines:
		s.dropped++
	default:
		s.lines = append(s.lines, logLine{level, text})
	}
}

// info remembers the one info line that says which CPU variant was chosen.
func (s *sink) info(text string) {
	const mark = "loaded CPU backend from "
	_, file, ok := strings.Cut(text, mark)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend = strings.TrimSpace(file)
}

// take returns and forgets the kept lines.
func (s *sink) take() ([]logLine, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines, dropped := s.lines, s.dropped
	s.lines, s.dropped = nil, 0
	return lines, dropped
}

// reasons joins the last error lines, for the error of a failed load.
func reasons(lines []logLine) string {
	var out []string
	for _, l := range lines {
		if l.level == slog.LevelError {
			out = append(out, l.text)
		}
	}
	if n := len(out); n > 3 {
		out = out[n-3:]
	}
	return strings.Join(out, "; ")
}

// masked replaces digits: at run time llama.cpp's messages may quote token ids.
func masked(s string) string {
	var b strings.Builder
	digits := false
	for _, r := range s {
		if r >= '0' && r <= '9' {
			if !digits {
				b.WriteByte('#')
			}
			digits = true
			continue
		}
		digits = false
		b.WriteRune(r)
	}
	return b.String()
}

// cString copies at most limit bytes of a C string.
func cString(p *byte, limit int) string {
	if p == nil {
		return ""
	}
	var b []byte
	for i := range limit {
		c := *(*byte)(unsafe.Add(unsafe.Pointer(p), i))
		if c == 0 {
			break
		}
		b = append(b, c)
	}
	return string(b)
}
