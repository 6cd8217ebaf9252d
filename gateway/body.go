package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
)

// readBody reads a request's JSON body of at most limit bytes within the given time. Memory grows
// with what arrives, not with what Content-Length declares.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, within time.Duration) ([]byte, *openai.Error) {
	if ct := r.Header.Get("Content-Type"); ct != "" {
		if kind, _, err := mime.ParseMediaType(ct); err != nil || kind != "application/json" {
			return nil, &openai.Error{
				Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: openai.CodeMediaType,
				Message: "The request body must be JSON: send Content-Type: application/json.",
			}
		}
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &openai.Error{
			Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: openai.CodeMediaType,
			Message: "Compressed request bodies are not supported: send it without Content-Encoding.",
		}
	}
	rc := http.NewResponseController(w)
	// A connection that cannot have deadlines (a test's recorder) cannot be held open either.
	rc.SetReadDeadline(time.Now().Add(within))
	var b bytes.Buffer
	_, err := io.Copy(&b, http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		// The server would try to read the rest before it answers: the deadline stays,
		// and the connection ends.
		w.Header().Set("Connection", "close")
	} else {
		rc.SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Type: openai.TypeInvalidRequest, Code: openai.CodeTooLarge,
			Message: "The request body is too large for this server.",
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &openai.Error{
			Status: http.StatusRequestTimeout, Type: openai.TypeTimeout, Code: openai.CodeDeadline,
			Message: "The request body did not arrive in time.",
		}
	case err != nil:
		return nil, &openai.Error{
			Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidJSON,
			Message: "The request body could not be read.",
		}
	}
	return b.Bytes(), nil
}
