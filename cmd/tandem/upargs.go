package main

import (
	"path/filepath"
	"runtime"
	"strings"
)

// This file makes the command lines of the processes that `up` starts.

func (f *fleet) gatewayArgs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cmd
	args := append([]string{"gateway", "--announce", "--supervised", "--run-dir=" + f.dir, "--mesh=" + filepath.Join(f.dir, gatewayName)}, c.serveFlags.args()...)
	args = append(args, c.gatewayFlags.args()...)
	if c.NATS != "" {
		args = append(args, "--nats="+c.NATS)
	} else {
		args = append(args, "--bus-mesh="+filepath.Join(f.dir, busName))
	}
	return append(args, f.traceArgs(gatewayName)...)
}

func (f *fleet) workerArgs(w fleetWorker) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cmd
	threads := c.Threads
	if threads == 0 {
		threads = max(1, runtime.NumCPU()/(c.Prefill+c.Decode+c.Colocated))
	}
	args := append([]string{
		"worker", "--announce", "--supervised", "--run-dir=" + f.dir, "--role=" + w.role, "--bus=" + f.bus,
		"--mesh=" + filepath.Join(f.dir, w.name), "--metrics=127.0.0.1:0",
	}, c.serveFlags.args()...)
	args = append(args, c.engineFlags.args(threads)...)
	args = append(args, c.dataFlags.args()...)
	if c.Mode == "colocated" {
		args = append(args, "--colocated-only")
	}
	if c.DumpState != "" {
		args = append(args, "--dump-state="+c.DumpState)
	}
	return append(args, f.traceArgs(w.name)...)
}

func (f *fleet) traceArgs(name string) []string {
	if f.cmd.TraceDir == "" {
		return nil
	}
	return []string{"--trace-lifecycle=" + filepath.Join(f.cmd.TraceDir, name+".jsonl")}
}

// hostPort cuts the scheme off a bus URL.
func hostPort(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		return rest
	}
	return url
}
