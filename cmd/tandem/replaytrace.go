package main

import (
	"encoding/json"
	"errors"
	"fmt"

	replayfleet "github.com/tandem-llm/tandem/replay/fleet"
	"github.com/tandem-llm/tandem/workload"
)

type replayTraceCmd struct {
	File     string `arg:"" optional:"" help:"Trace, in gzip or not; -: standard input." type:"existingfile"`
	Format   string `default:"auto" enum:"auto,mooncake,azure,jsonl,burstgpt" help:"Format of the trace: auto, mooncake, azure, jsonl or burstgpt."`
	Workload string `help:"Describe what is generated so instead." placeholder:"SPEC"`
	Strict   bool   `help:"Stop at the first malformed line of the trace, instead of counting it."`
	Reorder  int    `default:"0" help:"Put the trace in order of arrival, over so many requests at a time."`
	JSON     bool   `name:"json" help:"Print the description as JSON."`
}

// Run describes a trace.
func (c *replayTraceCmd) Run(a *app) error {
	if (c.File == "") == (c.Workload == "") {
		return usageError{errors.New("name a trace to describe, or give --workload")}
	}
	in := replayInput{Trace: c.File, Format: c.Format, Workload: c.Workload, Strict: c.Strict, Reorder: c.Reorder}
	src, err := in.source(&replayfleet.Config{Speedup: 1})
	if err != nil {
		return err
	}
	defer src.close()
	s, err := workload.Describe(src)
	if err != nil {
		return err
	}
	var format workload.Format
	var left workload.Malformed
	if src.reader != nil {
		format, left = src.reader.Format(), src.reader.Malformed()
	}
	if c.JSON {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Format workload.Format `json:"format,omitempty"`
			workload.Summary
			Malformed int `json:"malformed"`
		}{format, s, left.Lines})
	}
	if format != workload.Auto {
		fmt.Fprintf(a.stdout, "format        %s\n", format)
	}
	return errors.Join(s.Print(a.stdout), left.Print(a.stdout))
}
