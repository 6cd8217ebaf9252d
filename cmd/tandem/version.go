package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/tandem-llm/tandem/engine/install"
	"github.com/tandem-llm/tandem/state"
)

// release is the version of the source tree.
const release = "0.1.0"

// version returns the release with the commit it was built from, where the
// build recorded one.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return release + "+" + s.Value[:12]
		}
	}
	return release
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print as JSON."`
}

func (c *versionCmd) Run(a *app) error {
	if c.JSON {
		return json.NewEncoder(a.stdout).Encode(map[string]any{
			"version": version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			"engine": "llama.cpp " + install.Release, "engine_commit": install.Commit, "state_schema": state.SchemaVersion,
		})
	}
	_, err := fmt.Fprintf(a.stdout, "tandem %s (%s, %s/%s)\nengine llama.cpp %s (commit %s), state schema %d\n",
		version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, install.Release, install.Commit, state.SchemaVersion)
	return err
}
