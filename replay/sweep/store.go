package sweep

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem/replay/report"
)

// Store keeps the results of runs in a file, one line of JSON each, under the
// digest of everything they depend on. It is safe for concurrent use by one
// process; two processes must not share a file.
type Store struct {
	mu   sync.Mutex
	file *os.File
	runs map[string]*report.Result
}

// storeLine is one line of the file.
type storeLine struct {
	Key    string         `json:"key"`
	Result *report.Result `json:"result"`
}

// ErrStore is returned for a file that is no store.
var ErrStore = errors.New("sweep: not a file of finished runs")

const maxLine = 1 << 20

// lineStart is how every line begins.
const lineStart = `{"key":"`

// OpenStore opens the file, or makes it, and reads what it has. A last line that
// was not written to its end, as when a process is killed, is cut off.
func OpenStore(path string) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("sweep: open the file of finished runs: %w", err)
	}
	s := &Store{file: f, runs: map[string]*report.Result{}}
	if err := s.load(path); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) load(path string) error {
	r := bufio.NewReaderSize(s.file, maxLine)
	whole := int64(0) // bytes of complete lines
	for n := 1; ; n++ {
		text, err := r.ReadSlice('\n')
		if err == io.EOF {
			// What is cut off below was begun as a line of a store: it is nobody's notes.
			if !strings.HasPrefix(string(text), lineStart) && !strings.HasPrefix(lineStart, string(text)) {
				return fmt.Errorf("%w: the last line of %s is no result; name another file", ErrStore, path)
			}
			break
		}
		var line storeLine
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("%w: line %d of %s has more than %d bytes", ErrStore, n, path, maxLine)
		case err != nil:
			return fmt.Errorf("sweep: read %s: %w", path, err)
		case json.Unmarshal(text, &line) != nil || line.Key == "" || line.Result == nil || line.Result.Schema != report.Schema:
			return fmt.Errorf("%w: line %d of %s is no result of this version; name another file, or remove the line", ErrStore, n, path)
		}
		s.runs[line.Key] = line.Result
		whole += int64(len(text))
	}
	if err := s.file.Truncate(whole); err != nil {
		return fmt.Errorf("sweep: cut off the last line of %s: %w", path, err)
	}
	if _, err := s.file.Seek(whole, io.SeekStart); err != nil {
		return fmt.Errorf("sweep: %s: %w", path, err)
	}
	return nil
}

// Len is how many runs it has.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// Close closes the file.
func (s *Store) Close() error { return s.file.Close() }

// get returns the result of an earlier run. A nil store has none.
func (s *Store) get(key string) *report.Result {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[key]
}

// put keeps a result. A line is written in one call, so that lines do not mix.
func (s *Store) put(key string, r *report.Result) error {
	if s == nil {
		return nil
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(storeLine{key, r}); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[key] = r
	if _, err := s.file.Write(b.Bytes()); err != nil {
		return fmt.Errorf("sweep: keep a finished run: %w", err)
	}
	return nil
}

// key is a digest of what a run depends on: its configuration, in the one way
// that JSON writes maps, and everything else.
func key(config any, inputs string) (string, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("sweep: the configuration cannot be written as JSON (are all keys text?): %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%d %s\n", report.Schema, len(inputs), inputs)
	h.Write(text)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}
