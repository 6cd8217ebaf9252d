package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// awaitReady waits until the gateway serves and has heard of all workers: one
// that it does not know yet would be missing from the first requests.
func (f *fleet) awaitReady(ctx context.Context) error {
	f.mu.Lock()
	url := "http://" + f.http + "/readyz"
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if f.knowsWorkers(ctx, url) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the gateway is up but not ready: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (f *fleet) knowsWorkers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var ready struct {
		Prefill int `json:"prefill_workers"`
		Decode  int `json:"decode_workers"`
		Both    int `json:"both_workers"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&ready) != nil {
		return false
	}
	return resp.StatusCode == http.StatusOK &&
		ready.Prefill >= f.cmd.Prefill && ready.Decode >= f.cmd.Decode && ready.Both >= f.cmd.Colocated
}
