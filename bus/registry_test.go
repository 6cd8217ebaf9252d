package bus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/bus/buspb"
)

func announced(worker string, incarnation, seq uint64) *buspb.Registration {
	r := registration()
	r.Worker, r.Incarnation, r.Seq = worker, incarnation, seq
	return r
}

func leaving(worker string, incarnation, seq uint64) *buspb.Registration {
	return &buspb.Registration{Worker: worker, Incarnation: incarnation, Seq: seq, Leaving: true}
}

func show(changes []bus.Change) string {
	var out []string
	for _, c := range changes {
		kind := [...]string{bus.Joined: "joined", bus.Updated: "updated", bus.Left: "left"}[c.Kind]
		why := [...]string{0: "", bus.Expired: " expired", bus.Restarted: " restarted", bus.Goodbye: " goodbye"}[c.Why]
		out = append(out, fmt.Sprintf("%s/%d %s%s", c.Worker, c.Incarnation, kind, why))
	}
	return strings.Join(out, ", ")
}

// TestRegistry is one story under synthetic time; each step says what must change.
func TestRegistry(t *testing.T) {
	const second = time.Second
	r := bus.NewRegistry(3*second, 3)
	for i, step := range []struct {
		at     time.Duration
		reg    *buspb.Registration // nil: expire
		want   string
		living string
	}{
		{0, announced("a", 5, 1), "a/5 joined", "a"},
		{1 * second, announced("a", 5, 2), "a/5 updated", "a"},
		{1 * second, announced("a", 5, 2), "", "a"}, // twice
		{1 * second, announced("a", 5, 1), "", "a"}, // late
		{1 * second, announced("b", 1, 1), "b/1 joined", "a b"},
		{3999 * time.Millisecond, nil, "", "a b"},
		{4 * second, nil, "a/5 left expired, b/1 left expired", ""}, // three seconds after the last
		{4 * second, nil, "", ""},
		{5 * second, announced("a", 5, 2), "", ""},            // late: it does not bring it back
		{5 * second, announced("a", 4, 9), "", ""},            // an older life neither
		{5 * second, announced("a", 5, 3), "a/5 joined", "a"}, // the network was away, not the worker
		{6 * second, announced("a", 6, 1), "a/5 left restarted, a/6 joined", "a"},
		{6 * second, announced("a", 5, 99), "", "a"},
		{6 * second, leaving("a", 5, 100), "", "a"}, // the old life's goodbye comes late
		{7 * second, leaving("a", 6, 2), "a/6 left goodbye", ""},
		{7 * second, announced("a", 6, 3), "", ""}, // never again
		{7 * second, announced("a", 7, 1), "a/7 joined", "a"},
		{7 * second, leaving("a", 8, 1), "a/7 left restarted", ""}, // a life nobody heard of came and went
		{7 * second, announced("a", 7, 2), "", ""},
		{7 * second, leaving("z", 1, 1), "", ""}, // nor of this worker
		{8 * second, announced("c", 1, 1), "c/1 joined", "c"},
		{8 * second, announced("d", 1, 1), "d/1 joined", "c d"},
		{8 * second, announced("e", 1, 1), "e/1 joined", "c d e"},
		{9 * second, announced("c", 1, 2), "c/1 updated", "c d e"},
		{11 * second, nil, "d/1 left expired, e/1 left expired", "c"}, // c beat later
	} {
		var got []bus.Change
		if step.reg == nil {
			got = r.Expire(step.at, nil)
		} else {
			var err error
			if got, err = r.Announce(step.at, step.reg, nil); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		if s := show(got); s != step.want {
			t.Errorf("step %d at %v: %q, want %q", i, step.at, s, step.want)
		}
		var living []string
		for _, w := range r.Workers() {
			living = append(living, w.Worker)
			if r.Worker(w.Worker) != w {
				t.Errorf("step %d: Worker and Workers differ", i)
			}
		}
		if s := strings.Join(living, " "); s != step.living {
			t.Errorf("step %d: living %q, want %q", i, s, step.living)
		}
	}
	if at, ok := r.Next(); !ok || at != 12*second {
		t.Errorf("next expiry at %v, %v, want 12s", at, ok)
	}
}

func TestRegistryBounds(t *testing.T) {
	r := bus.NewRegistry(time.Second, 2)
	must := func(now time.Duration, reg *buspb.Registration) []bus.Change {
		t.Helper()
		c, err := r.Announce(now, reg, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	must(0, announced("a", 1, 1))
	must(0, announced("b", 1, 1))
	_, err := r.Announce(0, announced("c", 1, 1), nil)
	isKind(t, err, bus.ErrTooMany)
	must(0, announced("a", 2, 1)) // a restart needs no room
	_, err = r.Announce(0, &buspb.Registration{}, nil)
	isKind(t, err, bus.ErrMalformed)
	// Names come and go without end; the registry remembers few of the dead.
	for i := range 1000 {
		now := time.Duration(i+1) * time.Hour
		r.Expire(now, nil)
		must(now, announced(fmt.Sprintf("w%d", i), 1, 1))
	}
	if n := bus.RegistrySize(r); n > 4 {
		t.Errorf("%d names remembered with a limit of 2", n)
	}
	if s := show(must(1001*time.Hour, announced("w999", 1, 1))); s != "" {
		t.Errorf("a repetition of one that expired last: %q", s)
	}
}

// TestRegistryDefaults: a worker that misses three beats is still there, the fourth ends it.
func TestRegistryDefaults(t *testing.T) {
	r := bus.NewRegistry(0, 0)
	if _, err := r.Announce(0, announced("a", 1, 1), nil); err != nil {
		t.Fatal(err)
	}
	if got := show(r.Expire(3*bus.Beat, nil)); got != "" {
		t.Error(got)
	}
	if got := show(r.Expire(4*bus.Beat, nil)); got != "a/1 left expired" {
		t.Error(got)
	}
}

// TestRegistryProperties: whatever comes in whatever order, each life of a worker joins and leaves in turn, incarnations
// never go back, one that took leave never returns, and what the changes say is what Workers says.
func TestRegistryProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := bus.NewRegistry(5, 3)
		living, newest, bye := map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 3).Draw(t, "dt"))
			var changes []bus.Change
			if rapid.IntRange(0, 4).Draw(t, "op") == 0 {
				changes = r.Expire(now, nil)
			} else {
				reg := announced(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
					uint64(rapid.IntRange(1, 4).Draw(t, "incarnation")), uint64(rapid.IntRange(1, 5).Draw(t, "seq")))
				if rapid.IntRange(0, 5).Draw(t, "leaving") == 0 {
					reg.Leaving = true
				}
				var err error
				if changes, err = r.Announce(now, reg, nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range changes {
				have, there := living[c.Worker]
				switch c.Kind {
				case bus.Joined:
					if there || c.Incarnation < newest[c.Worker] || bye[c.Worker] == c.Incarnation {
						t.Fatalf("%s: joined", show(changes))
					}
					living[c.Worker], newest[c.Worker] = c.Incarnation, c.Incarnation
				case bus.Updated:
					if !there || have != c.Incarnation {
						t.Fatalf("%s: updated", show(changes))
					}
				case bus.Left:
					if !there || have != c.Incarnation {
						t.Fatalf("%s: left", show(changes))
					}
					delete(living, c.Worker)
					if c.Why == bus.Goodbye {
						bye[c.Worker] = c.Incarnation
					}
				}
			}
			got := map[string]uint64{}
			for _, w := range r.Workers() {
				got[w.Worker] = w.Incarnation
			}
			if fmt.Sprint(got) != fmt.Sprint(living) {
				t.Fatalf("workers %v, changes say %v", got, living)
			}
			if at, ok := r.Next(); ok != (len(living) > 0) || ok && len(r.Expire(at-1, nil)) > 0 && at > now {
				t.Fatalf("next expiry %v %v with %v", at, ok, living)
			}
		}
	})
}

func TestCheckRegistration(t *testing.T) {
	good := func() *buspb.Registration { return announced("w", 1, 1) }
	if err := bus.CheckRegistration(good()); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", bus.MaxText+1)
	for name, edit := range map[string]func(*buspb.Registration){
		"name":               func(r *buspb.Registration) { r.Worker = "a.b" },
		"incarnation":        func(r *buspb.Registration) { r.Incarnation = 0 },
		"role":               func(r *buspb.Registration) { r.Role = "boss" },
		"no identity":        func(r *buspb.Registration) { r.Identity = nil },
		"long identity":      func(r *buspb.Registration) { r.Identity = make([]byte, bus.MaxIdentity+1) },
		"no schema":          func(r *buspb.Registration) { r.SchemaMin = 0 },
		"schema backwards":   func(r *buspb.Registration) { r.SchemaMin = 2 },
		"capabilities":       func(r *buspb.Registration) { r.Capabilities = make([]string, bus.MaxCapabilities+1) },
		"long capability":    func(r *buspb.Registration) { r.Capabilities[0] = long },
		"long model name":    func(r *buspb.Registration) { r.ModelName = long },
		"long reason":        func(r *buspb.Registration) { r.Mtp = &buspb.MTP{Reason: long} },
		"long endpoint":      func(r *buspb.Registration) { r.Endpoint = &buspb.Endpoint{Quic: long} },
		"many owned":         func(r *buspb.Registration) { r.Owned = slices.Repeat(r.Owned, bus.MaxOwned+1) },
		"owned without id":   func(r *buspb.Registration) { r.Owned[0].Handoff = nil },
		"owned for nobody":   func(r *buspb.Registration) { r.Owned[0].Gateway = "" },
		"owned long request": func(r *buspb.Registration) { r.Owned[0].Request = long },
	} {
		r := good()
		edit(r)
		err := bus.CheckRegistration(r)
		if err == nil {
			t.Fatalf("%s: accepted", name)
		}
		isKind(t, err, bus.ErrMalformed)
	}
	isKind(t, bus.CheckRegistration(nil), bus.ErrMalformed)
}
