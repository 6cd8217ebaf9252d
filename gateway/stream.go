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
	header := false
	var u usageSum
	var buf []byte
	for left := len(c.requests); left > 0; {
		select {
		case <-c.out.wake:
		case <-r.Context().Done():
			return errClientGone()
		}
		parts, ends := c.out.take()
		buf = buf[:0]
		for _, d := range parts {
			buf = c.begin(buf, started, d.Index)
			buf = openai.AppendEvent(buf, c.delta(d))
		}
		for _, e := range ends {
			if e.err != nil {
				if !header && len(buf) == 0 {
					return e.err
				}
				buf = openai.AppendEvent(buf, e.err.Body())
				c.write(w, rc, buf, &header, writeTimeout)
				return nil
			}
			buf = c.begin(buf, started, e.index)
			buf = openai.AppendEvent(buf, c.delta(openai.Delta{Index: e.index, Finish: e.finish}))
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
		if err := c.write(w, rc, buf, &header, writeTimeout); err != nil {
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

func (c *call) delta(d openai.Delta) []byte {
	if c.endpoint == openai.Chat {
		return c.head.ChatDelta(d)
	}
	return c.head.TextDelta(d)
}

func (c *call) usage(u openai.Usage) []byte {
	if c.endpoint == openai.Chat {
		return c.head.ChatUsage(u)
	}
	return c.head.TextUsage(u)
}

func (c *call) write(w http.ResponseWriter, rc *http.ResponseController, buf []byte, header *bool, within time.Duration) error {
	if !*header {
		*header = true
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // proxies must not collect events
		c.servedHeader(h)
		w.WriteHeader(http.StatusOK)
	}
	writeWithin(w, within)
	if _, err := w.Write(buf); err != nil {
		return err
	}
	if err := rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// writeWithin bounds the writes that follow. A connection that cannot have deadlines is a test's.
func writeWithin(w http.ResponseWriter, d time.Duration) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}
