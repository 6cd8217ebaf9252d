package main

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
)

type modelCmd struct {
	New     modelNewCmd     `cmd:"" help:"Write a small model with random weights."`
	Inspect modelInspectCmd `cmd:"" help:"Print what a model is and what of its state moves in a handoff."`
}

type modelNewCmd struct {
	Arch string `required:"" enum:"llama,gemma3,mamba2,nemotron_h_moe" help:"llama (attention), gemma3 (sliding window), mamba2 (recurrent) or nemotron_h_moe (hybrid with experts and an MTP block)."`
	Out  string `required:"" help:"File to write." placeholder:"FILE"`
	Seed uint64 `default:"1" help:"Seed of the weights."`
}

func (c *modelNewCmd) Run(a *app) error {
	if err := tiny.Write(c.Out, tiny.Arch(c.Arch), c.Seed); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "%s written (%s, random weights, seed %d)\n", c.Out, c.Arch, c.Seed)
	return err
}

type modelInspectCmd struct {
	File string `arg:"" help:"GGUF file; for a split model its first part." type:"existingfile"`
	JSON bool   `name:"json" help:"Print as JSON."`
}

func (c *modelInspectCmd) Run(a *app) error {
	m, err := model.Inspect(c.File)
	if err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(m)
	}
	return m.Report(a.stdout)
}
