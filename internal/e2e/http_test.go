package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// post sends a body, with headers of its own, and returns the answer.
func (f *fleet) post(ctx context.Context, path, body string, headers map[string]string) *http.Response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

func marshal(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// object is a JSON object.
type object map[string]any
