package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/bench/sse"
)

// Slots moves a sequence as it is done without Tandem: a llama-server saves a slot
// to a file, another one restores it. Both run with --slot-save-path and the same
// directory, best in memory.
type Slots struct {
	Save, Restore string // base URLs, without /v1
	File          string // name of the file in the servers' directory
}

// slotTimeout bounds each request; a prompt takes minutes where cores are few.
const slotTimeout = 30 * time.Minute

// Prefill computes a prompt in slot 0 of the saving server.
func (s *Slots) Prefill(ctx context.Context, prompt []int32) error {
	in := struct {
		Prompt      []int32 `json:"prompt"`
		Predict     int     `json:"n_predict"`
		Slot        int     `json:"id_slot"`
		CachePrompt bool    `json:"cache_prompt"`
	}{prompt, 1, 0, true}
	var out struct{}
	return post(ctx, s.Save+"/completion", in, &out)
}

// SlotMove is one save and restore.
type SlotMove struct {
	Save, Restore time.Duration
	Bytes         int64 // of the file
	Tokens        int
}

// Move saves slot 0 of one server and restores it in slot 0 of the other.
func (s *Slots) Move(ctx context.Context) (SlotMove, error) {
	var saved struct {
		Tokens int   `json:"n_saved"`
		Bytes  int64 `json:"n_written"`
	}
	var restored struct {
		Tokens int   `json:"n_restored"`
		Bytes  int64 `json:"n_read"`
	}
	start := time.Now()
	file := struct {
		Name string `json:"filename"`
	}{s.File}
	if err := post(ctx, s.Save+"/slots/0?action=save", file, &saved); err != nil {
		return SlotMove{}, fmt.Errorf("save: %w", err)
	}
	middle := time.Now()
	if err := post(ctx, s.Restore+"/slots/0?action=restore", file, &restored); err != nil {
		return SlotMove{}, fmt.Errorf("restore: %w", err)
	}
	m := SlotMove{Save: middle.Sub(start), Restore: time.Since(middle), Bytes: saved.Bytes, Tokens: saved.Tokens}
	if restored.Tokens != saved.Tokens || restored.Bytes != saved.Bytes || saved.Tokens == 0 {
		return m, fmt.Errorf("%d tokens in %d bytes were saved, %d in %d restored", saved.Tokens, saved.Bytes, restored.Tokens, restored.Bytes)
	}
	return m, nil
}

// post sends a JSON body and decodes a JSON answer.
func post(ctx context.Context, url string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(url, "/"), bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := direct.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refused(res)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, sse.MaxLine)).Decode(answer); err != nil {
		return errors.New("the answer is no JSON: is this a llama-server?")
	}
	return nil
}

// direct opens a connection per request: minutes lie between them.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
