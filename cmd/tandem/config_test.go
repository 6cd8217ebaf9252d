package main

import (
	"slices"
	"strings"
	"testing"
)

// TestConfigPaths: the file that is named is read, but by replay, for which it is no
// configuration; no other argument that is called replay changes that.
func TestConfigPaths(t *testing.T) {
	t.Setenv(configEnv, "")
	const file = "testdata/none.yaml" // naming it must fail
	for _, args := range [][]string{
		{"up", "--config", file}, {"--config=" + file, "up"}, {"--config", file, "up"},
		{"up", "--model-name", "replay", "--config", file}, {"gateway", "--config=" + file, "--name=replay"},
		{"handoffs", "replay", "--config", file},
	} {
		if paths, err := configPaths(args); err == nil || !strings.HasPrefix(err.Error(), "--config: ") {
			t.Errorf("%v: %v, %v", args, paths, err)
		}
	}
	for _, args := range [][]string{
		{"replay", "--config", file}, {"replay", "sweep", "--config=" + file}, {"--config", file, "replay"}, {"--config=" + file, "replay", "models"},
	} {
		if paths, err := configPaths(args); err != nil || !slices.Equal(paths, defaultConfigPaths()) {
			t.Errorf("%v: %v, %v", args, paths, err)
		}
	}
	if paths, err := configPaths([]string{"up"}); err != nil || paths != nil {
		t.Errorf("none is named by %s: %v, %v", configEnv, paths, err)
	}
}
