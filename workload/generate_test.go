package workload

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/engine/timed"
	"pgregory.net/rapid"
)

func generator(t testing.TB, text string) *Generator {
	t.Helper()
	s, err := ParseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// take takes the next request with hashes of its own, and ends its turn so
// much later.
func take(t testing.TB, src Source, after timed.Time) (Request, bool) {
	t.Helper()
	q, ok, err := src.Next()
	if err != nil {
		t.Fatal(err)
	}
	q.Hashes, q.Answer = slices.Clone(q.Hashes), slices.Clone(q.Answer)
	src.Finished(q.Session, q.Arrival+after)
	return q, ok
}

// Gaps have the mean and the spread that were asked for: 40,000 of them, so
// that 3 % is far beyond chance. The seed is fixed.
func TestArrivals(t *testing.T) {
	for name, tc := range map[string]struct {
		text     string
		mean, cv float64
		slack    float64
	}{
		"poisson":    {"poisson rate=40", 0.025, 1, 0.03},
		"gamma":      {"gamma rate=40 cv=2", 0.025, 2, 0.05},
		"even gamma": {"gamma rate=40 cv=0.25", 0.025, 0.25, 0.03},
		"constant":   {"constant rate=3", 1.0 / 3, 0, 1e-9},
		"bursty":     {"bursty rate=40 on=1 off=7", 0.025, -1, 0.15},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator(t, tc.text+" input=1 output=1 requests=40001 seed=7")
			all, err := drain(t, g)
			if err != nil || len(all) != 40001 {
				t.Fatalf("%d requests, %v", len(all), err)
			}
			var sum, squares float64
			for i := range all[1:] {
				gap := (all[i+1].Arrival - all[i].Arrival).Seconds()
				sum += gap
				squares += gap * gap
			}
			n := float64(len(all) - 1)
			mean := sum / n
			cv := math.Sqrt(max(squares/n-mean*mean, 0)) / mean
			if math.Abs(mean/tc.mean-1) > tc.slack {
				t.Errorf("mean gap %v s, want %v", mean, tc.mean)
			}
			if tc.cv >= 0 && math.Abs(cv-tc.cv) > tc.slack*tc.cv+1e-6 {
				t.Errorf("coefficient of variation %v, want %v", cv, tc.cv)
			}
		})
	}
}

// Within bursts, and only there, arrivals come at rate·(on+off)/on.
func TestBursts(t *testing.T) {
	g := generator(t, "bursty rate=10 on=10 off=90 input=1 output=1 requests=100000 seed=3")
	all, _ := drain(t, g)
	long, within := 0, 0.0
	for i := range all[1:] {
		gap := (all[i+1].Arrival - all[i].Arrival).Seconds()
		if gap > 1 { // a gap within a burst is 10 ms in the mean
			long++
		} else {
			within += gap
		}
	}
	if per := within / float64(len(all)-1-long); math.Abs(per/0.01-1) > 0.03 {
		t.Errorf("gaps within bursts are %v s, want 0.01", per)
	}
	if long < 60 || long > 140 { // 1,000 arrivals a burst
		t.Errorf("%d pauses, want about 100", long)
	}
}

func TestDist(t *testing.T) {
	for text, tc := range map[string]struct{ mean, sd, low, high float64 }{
		"512":                      {512, 0, 512, 512},
		"uniform:10:20":            {15, 3.1623, 10, 20},  // whole numbers: sd √((11²−1)/12)
		"normal:128:64:1:256":      {128.3, 56.3, 1, 256}, // of the truncated one
		"lognormal:300:400":        {300, 400, 1, 1e6},
		"exponential:5":            {5.02, 4.96, 1, 1e6},
		"empirical:5,10*2,100*0.5": {150.0 / 7 * 1, 31.6, 5, 100},
		"normal:1000:1:5:6":        {6, 0, 6, 6}, // never inside: the nearer end
	} {
		t.Run(text, func(t *testing.T) {
			g := generator(t, "poisson rate=1 requests=50000 seed=11 output=1 input="+text)
			all, _ := drain(t, g)
			var sum, squares float64
			low, high := math.Inf(1), 0.0
			for _, q := range all {
				v := float64(q.Input)
				sum, squares, low, high = sum+v, squares+v*v, min(low, v), max(high, v)
			}
			n := float64(len(all))
			mean := sum / n
			sd := math.Sqrt(max(squares/n-mean*mean, 0))
			if math.Abs(mean-tc.mean) > 0.03*tc.mean || math.Abs(sd-tc.sd) > 0.06*tc.sd || low < tc.low || high > tc.high {
				t.Errorf("mean %.2f, sd %.2f, from %v to %v; want %+v", mean, sd, low, high, tc)
			}
		})
	}
}

// A session's next prompt is the last one with its answer, and says so: its
// ids begin with those of all whole blocks before.
func TestSessions(t *testing.T) {
	g := generator(t, "poisson rate=2 turns=uniform:1:5 think=uniform:1:3 input=uniform:1:40 output=uniform:1:40 hash_tokens=8 requests=2000 groups=3 prefix=uniform:4:30")
	prompts := map[uint64]Request{} // by session
	ends := map[uint64]timed.Time{}
	known := map[uint64]uint64{} // the id before each id: an id stands for all before it
	parts := map[uint64]bool{}   // ids of blocks that were not whole
	turns, alike := 0, 0
	for {
		const lasts = 2 * timed.Second
		q, ok := take(t, g, lasts)
		if !ok {
			break
		}
		last, going := prompts[q.Session]
		if going != (q.Turn > 1) || going && q.Turn != last.Turn+1 {
			t.Fatalf("turn %d of session %d after %d", q.Turn, q.Session, last.Turn)
		}
		if len(q.Hashes) != blocks(q.Input, 8) || q.HashTokens != 8 {
			t.Fatalf("%d ids for %d tokens", len(q.Hashes), q.Input)
		}
		if going {
			turns++
			grown := q.Input - last.Input - last.Output
			if grown < 1 || grown > 40 {
				t.Fatalf("grew from %d+%d to %d", last.Input, last.Output, q.Input)
			}
			if grown == last.Output {
				alike++
			}
			whole := slices.Concat(last.Hashes[:last.Input/8], last.Answer)
			if len(whole) != (last.Input+last.Output)/8 || !slices.Equal(q.Hashes[:len(whole)], whole) {
				t.Fatalf("session %d: %d tokens with %d generated share %d blocks with the next turn", q.Session, last.Input, last.Output, len(whole))
			}
			if pause := (q.Arrival - ends[q.Session]).Seconds(); pause < 1 || pause > 3 {
				t.Fatalf("pause of %v s", pause)
			}
		}
		before := uint64(0)
		for _, id := range q.Hashes {
			if parts[id] {
				t.Fatal("a part of a block has the id of another block")
			}
			if was, ok := known[id]; ok && was != before {
				t.Fatal("an id follows two different ones")
			}
			known[id] = before
			before = id
		}
		if q.Input%8 > 0 {
			parts[before] = true
		}
		prompts[q.Session], ends[q.Session] = q, q.Arrival+lasts
	}
	if turns < 500 {
		t.Fatalf("only %d later turns", turns)
	}
	if alike > turns/10 { // one of 40, by chance
		t.Errorf("%d of %d prompts grew by as much as the last answer was long", alike, turns)
	}
	if len(g.waiting) > 0 && g.made < 2000 {
		t.Fatal("sessions wait for ever")
	}
}

// Requests of one group begin with the same whole blocks of its prefix, and
// share nothing else; frequent groups are more frequent.
func TestGroups(t *testing.T) {
	g := generator(t, "poisson rate=2 input=uniform:1:40 output=1 hash_tokens=8 requests=5000 groups=4 prefix=83 zipf=1 tenants=2")
	count, tenants := map[uint64]int{}, map[uint64]string{}
	all, _ := drain(t, g)
	rest := map[uint64]bool{}
	for _, q := range all {
		if q.Session != 0 || q.Turn != 0 || q.Answer != nil {
			t.Fatalf("a session: %+v", q)
		}
		group := q.Hashes[9] // the last whole block of the prefix
		count[group]++
		if before, ok := tenants[group]; ok && before != q.Tenant {
			t.Fatal("a group of two tenants")
		}
		tenants[group] = q.Tenant
		for _, id := range q.Hashes[10:] {
			if rest[id] {
				t.Fatal("shares more than the prefix")
			}
			rest[id] = true
		}
	}
	var n []int
	for _, c := range count {
		n = append(n, c)
	}
	slices.Sort(n)
	slices.Reverse(n)
	if len(n) != 4 || math.Abs(float64(n[0])/5000-0.48) > 0.03 || math.Abs(float64(n[3])/5000-0.12) > 0.03 {
		t.Errorf("groups of %v requests, want about 48 %%, 24 %%, 16 %%, 12 %%", n)
	}
}

// In a closed loop so many sessions are alive, whatever a turn takes.
func TestClosed(t *testing.T) {
	g := generator(t, "closed sessions=5 turns=uniform:1:3 think=exponential:1 input=10 output=10 seconds=1000 seed=1")
	inFlight := []Request{}
	turns, now := 0, timed.Time(0)
	for {
		at, ok, err := g.Peek()
		if err != nil {
			t.Fatal(err)
		}
		// A turn takes 10 s, so ends come before arrivals or after.
		if len(inFlight) > 0 && (!ok || inFlight[0].Arrival+10*timed.Second <= at) {
			now = inFlight[0].Arrival + 10*timed.Second
			g.Finished(inFlight[0].Session, now)
			inFlight = inFlight[1:]
			continue
		}
		if !ok {
			break
		}
		if at < now {
			t.Fatalf("arrives at %v, after %v", at, now)
		}
		q, _, _ := g.Next()
		now = at
		turns++
		if inFlight = append(inFlight, q); len(inFlight)+len(g.turns) != 5 {
			t.Fatalf("%d sessions alive", len(inFlight)+len(g.turns))
		}
	}
	if want := 5 * 1000 / 11; turns < want-50 || turns > want+50 {
		t.Errorf("%d turns, want about %d", turns, want)
	}
}

// Two fleets get the same sessions, however long their turns take; another
// distribution of answers changes answers alone; another seed changes all.
func TestSameSessions(t *testing.T) {
	const text = "closed sessions=9 turns=uniform:1:4 think=exponential:2 input=lognormal:100:80 requests=1000 groups=5 prefix=uniform:10:900 tenants=3"
	type key struct {
		session uint64
		turn    int
	}
	run := func(text string, after timed.Time) map[key]Request {
		g, got := generator(t, text), map[key]Request{}
		for {
			q, ok := take(t, g, after)
			if !ok {
				return got
			}
			q.Arrival = 0
			got[key{q.Session, q.Turn}] = q
		}
	}
	a, b := run(text+" output=normal:50:20", timed.Second), run(text+" output=normal:50:20", 70*timed.Second)
	shared := 0
	for k, q := range a {
		if r, ok := b[k]; ok {
			shared++
			if diff := cmp.Diff(q, r); diff != "" {
				t.Fatalf("%+v: %s", k, diff)
			}
		}
	}
	if shared < 800 {
		t.Fatalf("only %d turns are the same ones", shared)
	}
	c, d := run(text+" output=7", timed.Second), run(text+" output=7 seed=2", timed.Second)
	equal := 0
	for k, q := range a {
		if k.turn == 1 && (c[k].Input != q.Input || c[k].Tenant != q.Tenant || !slices.Equal(c[k].Hashes, q.Hashes)) {
			t.Fatalf("%+v: another prompt with another answer", k)
		}
		if d[k].Input == q.Input {
			equal++
		}
	}
	if equal > len(a)/10 {
		t.Errorf("%d of %d prompts are as long with another seed", equal, len(a))
	}
}

func TestContext(t *testing.T) {
	g := generator(t, "poisson rate=1 turns=100 input=uniform:1:300 output=100 context=1000 requests=2000")
	late := 0
	for {
		q, ok := take(t, g, 0)
		if !ok {
			break
		}
		if q.Input+q.Output > 1000 {
			t.Fatalf("%d+%d tokens", q.Input, q.Output)
		}
		late = max(late, q.Turn)
	}
	if late < 3 {
		t.Error("no session has turns")
	}
	g = generator(t, "poisson rate=1 input=5000 output=100 context=1000 requests=1")
	if q, _ := take(t, g, 0); q.Input != 999 || q.Output != 1 {
		t.Errorf("a first turn of %d+%d tokens", q.Input, q.Output)
	}
}

func TestParseSpec(t *testing.T) {
	const text = "gamma rate=1.5 cv=2 requests=10 seconds=3.25 seed=9 input=empirical:5,10*0.1 output=normal:128:64:1:256 turns=uniform:1:3 think=exponential:5 context=4096 groups=2 prefix=512 zipf=0.5 hash_tokens=16 tenants=3"
	s, err := ParseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.String(); got != text {
		t.Errorf("written as %q, want %q", got, text)
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Spec
	if err := json.Unmarshal(encoded, &back); err != nil || back.String() != text {
		t.Errorf("%s reads as %q, %v", encoded, back, err)
	}
	if err := json.Unmarshal([]byte(`{"arrivals":"constant","rate":1,"requests":5,"input":7,"output":"8"}`), &back); err != nil || back.Input.String() != "7" {
		t.Errorf("a plain number is %v, %v", back.Input, err)
	}

	for text, want := range map[string]SpecError{
		"":                                  {"arrivals", "must come first"},
		"uniform rate=1":                    {"arrivals", "must be poisson"},
		"poisson speed=1":                   {"speed", "is no key: choose from rate,"},
		"poisson arrivals=gamma":            {"arrivals", "is no key"},
		"poisson rate":                      {"rate", "is not of the form key=value"},
		"poisson rate=1 rate=2":             {"rate", "is given twice"},
		"poisson rate=x":                    {"rate", "is no number"},
		"poisson rate=-1":                   {"rate", "is no number"},
		"poisson rate=NaN":                  {"rate", "is no number"},
		"poisson requests=1.5":              {"requests", "is no whole number"},
		"poisson seed=-1":                   {"seed", "is no whole number"},
		"poisson input=norm:1:2":            {"input", "is no distribution: no such"},
		"poisson input=normal:1":            {"input", "is no distribution: normal has 1 numbers, want the form normal:MEAN:SD"},
		"poisson input=normal:1:2:9:8":      {"input", "is no distribution: normal: low is above high"},
		"poisson input=uniform:1":           {"input", "is no distribution: uniform has 1"},
		"poisson input=empirical:1*0":       {"input", "is no distribution: empirical: the weights"},
		"poisson requests=1":                {"rate", "must be from"},
		"poisson rate=1 cv=2":               {"cv", "belongs to gamma arrivals"},
		"gamma rate=1":                      {"cv", "is needed for gamma"},
		"bursty rate=1 on=5":                {"off", "is needed for bursty"},
		"closed rate=1 sessions=1":          {"rate", "does not go with closed"},
		"closed sessions=99999999":          {"sessions", "must be from"},
		"poisson rate=1":                    {"requests", "or seconds"},
		"poisson rate=1 requests=1":         {"input", "is needed"},
		"poisson rate=1 requests=1 input=1": {"output", "is needed"},
		"poisson rate=1 requests=1 input=1 output=1 think=3":   {"think", "needs turns"},
		"poisson rate=1 requests=1 input=1 output=1 groups=3":  {"prefix", "is needed"},
		"poisson rate=1 requests=1 input=1 output=1 zipf=3":    {"zipf", "needs groups"},
		"poisson rate=1 requests=1 input=1 output=1 context=1": {"context", "must be from 2"},
	} {
		_, err := ParseSpec(text)
		var got *SpecError
		if !errors.As(err, &got) || got.Field != want.Field || !strings.HasPrefix(got.Reason, want.Reason) {
			t.Errorf("%q: %v, want %v", text, err, &want)
		}
	}
}

// A rate too low for the number of requests is an error, not a short source.
func TestTooLong(t *testing.T) {
	g := generator(t, "poisson rate=1e-6 requests=100 input=1 output=1")
	all, err := drain(t, g)
	if !errors.Is(err, ErrTooLong) || len(all) > 50 {
		t.Errorf("%d requests, %v", len(all), err)
	}
}

// Whatever a spec says, it is refused, or its source hands out sane requests in
// order; and its text form says the same.
func FuzzParseSpec(f *testing.F) {
	f.Add("poisson rate=40 input=512 output=normal:128:64:1:256 requests=100")
	f.Add("closed sessions=3 turns=uniform:1:3 think=exponential:5 input=1 output=empirical:1,2*3 seconds=5")
	f.Add("bursty rate=2 on=1 off=2 input=lognormal:5:9 output=1 groups=3 prefix=9 zipf=2 hash_tokens=4 seconds=9 tenants=2")
	f.Add("gamma rate=2 cv=0.001 input=5 output=1 requests=5 context=6")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSpec(text)
		if err != nil {
			return
		}
		again, err := ParseSpec(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q reads as %q, %v", s, again, err)
		}
		s.Sessions, s.Groups, s.Tenants = min(s.Sessions, 100), min(s.Groups, 100), min(s.Tenants, 100) // for speed alone
		g, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		last := timed.Time(0)
		for range 50 {
			q, ok := take(t, g, timed.Second)
			if !ok {
				break
			}
			if q.Arrival < last || q.Input < 1 || q.Output < 1 || g.sharing != (q.Hashes != nil) || q.Hashes != nil && len(q.Hashes) != blocks(q.Input, q.HashTokens) {
				t.Fatalf("%+v after %v", q, last)
			}
			last = q.Arrival
		}
	})
}

// Wrappers keep order and scale pauses too.
func TestWrappers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{
			"poisson rate=40 requests=200 input=uniform:1:9 output=1",
			"closed sessions=4 turns=uniform:1:3 think=exponential:1 requests=200 input=5 output=5",
		}).Draw(t, "text")
		speed := rapid.SampledFrom([]float64{0.1, 1, 3, 1000}).Draw(t, "speed")
		window := Window{
			From: timed.Time(rapid.IntRange(0, 3).Draw(t, "from")) * timed.Second,
			To:   timed.Time(rapid.IntRange(0, 6).Draw(t, "to")) * timed.Second,
			Skip: rapid.IntRange(0, 20).Draw(t, "skip"), Limit: rapid.IntRange(0, 50).Draw(t, "limit"),
		}
		s, _ := ParseSpec(text)
		g, _ := New(s)
		src := Cut(Speed(g, speed), window)
		last, n := timed.Time(0), 0
		for {
			at, ok, err := src.Peek()
			q, taken, err2 := src.Next()
			if err != nil || err2 != nil || ok != taken {
				t.Fatal(ok, taken, err, err2)
			}
			if !ok {
				break
			}
			if n++; q.Arrival != at || at < last || window.To > 0 && at >= window.To-window.From || window.Limit > 0 && n > window.Limit {
				t.Fatalf("request %d at %v after %v, Peek %v", n, q.Arrival, last, at)
			}
			last = at
			src.Finished(q.Session, at)
		}
	})
}

func TestSpeed(t *testing.T) {
	slow, _ := drain(t, generator(t, "poisson rate=1 requests=100 input=1 output=1"))
	fast, _ := drain(t, Speed(generator(t, "poisson rate=1 requests=100 input=1 output=1"), 4))
	for i := range slow {
		if diff := slow[i].Arrival/4 - fast[i].Arrival; diff < -1 || diff > 1 {
			t.Fatalf("request %d at %v, want a quarter of %v", i, fast[i].Arrival, slow[i].Arrival)
		}
	}
	src := Speed(generator(t, "closed sessions=1 think=8 requests=2 input=1 output=1"), 4)
	q, _, _ := src.Next()
	src.Finished(q.Session, 10*timed.Second)
	if at, _, _ := src.Peek(); q.Arrival != 2*timed.Second || at != 12*timed.Second {
		t.Errorf("arrivals at %v and %v, want 2 s and 2 s after the turn's end at 10 s", q.Arrival, at)
	}
	if _, _, err := Speed(src, math.NaN()).Next(); !errors.Is(err, ErrSpeed) {
		t.Error(err)
	}
}

func TestCut(t *testing.T) {
	all, _ := drain(t, generator(t, "constant rate=1 requests=100 input=uniform:1:1000 output=1"))
	got, _ := drain(t, Cut(generator(t, "constant rate=1 requests=100 input=uniform:1:1000 output=1"),
		Window{From: 10 * timed.Second, To: 20 * timed.Second, Skip: 3, Limit: 4}))
	want := slices.Clone(all[13:17])
	for i := range want {
		want[i].Arrival -= 10 * timed.Second
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestGenerateDoesNotAllocate(t *testing.T) {
	for _, text := range []string{
		"poisson rate=40 input=512 output=normal:128:64:1:256 requests=100000000",
		"closed sessions=50 turns=uniform:1:4 think=exponential:5 input=300 output=200 requests=100000000 groups=10 prefix=1000 tenants=3",
	} {
		g := generator(t, text)
		for range 1000 {
			take(t, g, 0)
		}
		if n := testing.AllocsPerRun(2000, func() {
			q, _, _ := g.Next()
			g.Finished(q.Session, q.Arrival)
		}); n > 0 {
			t.Errorf("%s: %v allocations per request", text, n)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	for name, text := range map[string]string{
		"poisson":  "poisson rate=40 input=512 output=normal:128:64:1:256",
		"bursty":   "bursty rate=40 on=1 off=4 input=lognormal:500:400 output=exponential:128",
		"sessions": "closed sessions=500 turns=uniform:1:8 think=exponential:5 input=300 output=200",
	} {
		b.Run(name, func(b *testing.B) {
			g := generator(b, text+" requests=1000000000")
			b.ReportAllocs()
			for b.Loop() {
				q, _, _ := g.Next()
				g.Finished(q.Session, q.Arrival+timed.Second)
			}
		})
	}
}
