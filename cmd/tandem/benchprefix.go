package main

import (
	"time"

	"github.com/tandem-llm/tandem/bench/serve"
)

type benchPrefixCmd struct {
	benchFlags

	URL       string        `name:"url" required:"" help:"Endpoint with a prefix cache, as far as the paths of the API: http://127.0.0.1:8080/v1." placeholder:"URL"`
	Name      string        `help:"Its name in the report; default: host and port." placeholder:"NAME"`
	ModelName string        `help:"Model to ask for; default: the first that the endpoint lists." placeholder:"NAME"`
	APIKey    string        `name:"api-key" help:"Key to send. Other users of this machine see flags; they do not see the environment." placeholder:"KEY"`
	Header    []string      `sep:"none" help:"Header to send, as 'Tandem-Mode: colocated'; may be repeated." placeholder:"HEADER"`
	Prompt    int           `name:"prompt-length" default:"2048" help:"Tokens of each prompt."`
	Shared    int           `default:"1536" help:"Of them, those that a prompt has in common with an earlier one; best a multiple of the endpoint's pages."`
	Vocab     int           `default:"256" help:"Token ids of prompts are below this."`
	Pairs     int           `default:"1" help:"Pairs of prompts in a run."`
	Timeout   time.Duration `default:"5m" help:"Longest wait for an answer."`
	Seed      uint64        `default:"1" help:"Seed of prompts."`
	Bar       float64       `default:"1.25" help:"Most that the ratio of times may exceed the ratio of computed tokens by, as a factor; 0: no bar."`
}

func (c *benchPrefixCmd) Run(a *app) error {
	plan, err := c.plan(a)
	if err != nil {
		return err
	}
	t, err := target("--url", c.URL, c.Name, c.ModelName, c.APIKey, c.Header)
	if err != nil {
		return usageError{err}
	}
	report, err := serve.RunPrefix(a.ctx, serve.Prefix{
		Target: t, Plan: plan, Prompt: c.Prompt, Shared: c.Shared, Vocab: c.Vocab, Pairs: c.Pairs, Bar: c.Bar, Timeout: c.Timeout, Seed: c.Seed,
	})
	return c.print(a, report, err)
}
