package main

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-llm/tandem/engine/install"
)

type engineCmd struct {
	Install engineInstallCmd `cmd:"" help:"Put the matching llama.cpp libraries into the user's cache."`
	Show    engineShowCmd    `cmd:"" help:"Show which libraries this machine would use."`
}

type engineInstallCmd struct {
	From    string `help:"Install from this directory instead of the network." placeholder:"DIR" type:"existingdir"`
	Source  string `default:"any" enum:"any,npm,yzma" help:"Where to fetch from: npm, yzma (with its pinned digest), or any of the two."`
	Offline bool   `help:"Never use the network."`
	Force   bool   `help:"Install again even if a valid installation exists."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

func (c *engineInstallCmd) Run(a *app) error {
	via := c.Source
	if via == "any" {
		via = ""
	}
	lib, err := install.Ensure(a.ctx, install.Options{
		From: c.From, Via: via, Offline: c.Offline, Force: c.Force,
		Progress: func(line string) { fmt.Fprintln(a.stderr, line) },
	})
	if err != nil {
		return err
	}
	return printLib(a, lib, c.JSON)
}

type engineShowCmd struct {
	JSON bool `name:"json" help:"Print the result as JSON."`
}

func (c *engineShowCmd) Run(a *app) error {
	lib, err := install.Find(install.Options{})
	if err != nil {
		return err
	}
	if err := install.CheckSystem(); err != nil {
		return err
	}
	return printLib(a, lib, c.JSON)
}

func printLib(a *app, lib install.Lib, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.stdout).Encode(map[string]string{
			"dir": lib.Dir, "version": lib.Version, "build": lib.Build, "source": lib.Source,
		})
	}
	_, err := fmt.Fprintln(a.stdout, lib)
	return err
}
