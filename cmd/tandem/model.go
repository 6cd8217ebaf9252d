package main

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/model/tiny"
	"github.com/tandem-llm/tandem/model/wide"
)

type modelCmd struct {
	New     modelNewCmd     `cmd:"" help:"Write a small model with random weights."`
	Inspect modelInspectCmd `cmd:"" help:"Print what a model is and what of its state moves in a handoff."`
}

type modelNewCmd struct {
	Arch    string `required:"" enum:"llama,gemma3,mamba2,nemotron_h_moe,wide-attention,wide-recurrent,dense" help:"llama (attention), gemma3 (sliding window), mamba2 (recurrent) or nemotron_h_moe (hybrid with experts and an MTP block); for measuring wide-attention or wide-recurrent (much state, little to compute) or dense (computes as a small real model does)."`
	Out     string `required:"" help:"File to write." placeholder:"FILE"`
	Seed    uint64 `default:"1" help:"Seed of the weights."`
	Layers  int    `default:"16" help:"Layers of wide-attention; a token keeps 512 bytes per layer and head."`
	KVHeads int    `name:"kv-heads" default:"8" help:"Heads of wide-attention."`
}

func (c *modelNewCmd) Run(a *app) error {
	var err error
	switch c.Arch {
	case "wide-attention":
		m, werr := wide.Attention(c.Layers, c.KVHeads)
		if werr != nil {
			return usageError{werr}
		}
		err = m.Write(c.Out, c.Seed)
	case "wide-recurrent":
		err = wide.Recurrent().Write(c.Out, c.Seed)
	case "dense":
		err = wide.Dense().Write(c.Out, c.Seed)
	default:
		err = tiny.Write(c.Out, tiny.Arch(c.Arch), c.Seed)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s written (%s, random weights, seed %d)\n", c.Out, c.Arch, c.Seed)
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
