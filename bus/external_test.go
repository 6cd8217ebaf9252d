package bus_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/mesh"
)

// TestExternalConfigText pins the text; that a stock server obeys it is what the tests on "external" show.
func TestExternalConfigText(t *testing.T) {
	got, err := bus.ExternalConfig(bus.ExternalOptions{
		Peers: []mesh.Peer{{Role: mesh.RoleGateway, Name: "gw"}, {Role: mesh.RoleWorker, Name: "w1"}}, Dir: "/etc/tandem/bus",
	})
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "external.conf")
	if os.Getenv("TANDEM_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.ReplaceAll(string(want), "\r\n", "\n"), filepath.ToSlash(got)); d != "" {
		t.Error(d)
	}
}

func TestExternalConfigRefuses(t *testing.T) {
	peers := names[:1]
	for _, o := range []bus.ExternalOptions{
		{Dir: "d"},
		{Peers: peers},
		{Peers: peers, Dir: "d", Listen: "x"},
		{Peers: peers, Dir: "d", Listen: "127.0.0.1:0"},
		{Peers: []mesh.Peer{names[0], names[0]}, Dir: "d"},
		{Peers: []mesh.Peer{{Role: mesh.RoleBus, Name: "b"}}, Dir: "d"},
		{Peers: []mesh.Peer{{Role: mesh.RoleWorker, Name: `a" }`}}, Dir: "d"},
		{Peers: []mesh.Peer{{Role: mesh.RoleWorker}}, Dir: "d"},
	} {
		_, err := bus.ExternalConfig(o)
		if err == nil {
			t.Fatalf("%+v accepted", o)
		}
		isKind(t, err, bus.ErrConfig)
	}
}
