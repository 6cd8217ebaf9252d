package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
)

// stream writes an answer as server-sent events: what is there is written and flushed at once, under
// a deadline, so that a client that stopped reading cannot hold anything. The header waits for the
// first output, so that a request that fails before it still gets a status of its own. A nil
// result means that the stream has ended, well or with an error event.
func (c *call) stream(w http.ResponseWriter, r *http.Request, writeTimeout time.Duration) *openai.Error {
	rc := http.NewResponseController(w)
	started := make([]bool, len(c.requests))
	var u usageSum
	var buf []byte
	var list taken
	chunks := c.head.Chunks(c.endpoint, len(c.requests))
	out := &streamWriter{w: w, rc: rc, c: c, within: writeTimeout}
	for left := len(c.requests); left > 0; {
		select {
		case <-c.out.wake:
		case <-r.Context().Done():
			return errClientGone()
		}
		c.out.take(&list)
		buf = buf[:0]
		for _, d := range list.parts {
			buf = c.begin(buf, started, d.Index)
			buf = chunks.AppendDelta(buf, d)
		}
		for _, e := range list.ends {
			if e.err != nil {
				if !out.begun && len(buf) == 0 {
					return e.err
				}
				buf = openai.AppendEvent(buf, e.err.Body())
				out.write(buf)
				return nil
			}
			buf = c.begin(buf, started, e.index)
			buf = chunks.AppendDelta(buf, openai.Delta{Index: e.index, Finish: e.finish})
			u.add(e, c.gen.N)
			left--
		}
		if left == 0 {
			if c.gen.IncludeUsage {
				buf = openai.AppendEvent(buf, c.usage(u.Usage))
			}
			buf = append(buf, openai.Done...)
		}
		if len(buf) == 0 {
			continue
		}
		if err := out.write(buf); err != nil {
			return errClientGone()
		}
	}
	return nil
}

// begin announces a chat sample before its first part.
func (c *call) begin(buf []byte, started []bool, index int) []byte {
	if started[index] || c.endpoint != openai.Chat {
		return buf
	}
	started[index] = true
	return openai.AppendEvent(buf, c.head.ChatStart(index))
}

func (c *call) usage(u openai.Usage) []byte {
	if c.endpoint == openai.Chat {
		return c.head.ChatUsage(u)
	}
	return c.head.TextUsage(u)
}

// streamWriter writes a stream's events to the connection.
type streamWriter struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	c      *call
	within time.Duration // for one write

	begun bool      // the header is written
	until time.Time // the connection's deadline
}

// write writes events and flushes them. A deadline that has most of its time left is left alone: setting
// one costs more than rendering a token.
func (s *streamWriter) write(buf []byte) error {
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // proxies must not collect events
		s.c.servedHeader(h)
		s.w.WriteHeader(http.StatusOK)
	}
	if now := time.Now(); s.until.Sub(now) < s.within-s.within/4 {
		s.until = now.Add(s.within)
		s.rc.SetWriteDeadline(s.until) // a connection that cannot have deadlines is a test's
	}
	if _, err := s.w.Write(buf); err != nil {
		return err
	}
	if err := s.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// writeWithin bounds the writes that follow. A connection that cannot have deadlines is a test's.
func writeWithin(w http.ResponseWriter, d time.Duration) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}
