package sweep

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAxis(t *testing.T) {
	for text, want := range map[string]string{
		"a=1":                      "a: 1",
		"a.b[2].c=x,1..3,y":        "a.b[2].c: x 1 2 3 y",
		"a=1..8/3":                 "a: 1 4 7",
		"a=0..1/0.25":              "a: 0 0.25 0.5 0.75 1",
		"a=0.1..0.5/0.1":           "a: 0.1 0.2 0.3 0.4 0.5",
		"a=1..64*2":                "a: 1 2 4 8 16 32 64",
		"a=-2..0":                  "a: -2 -1 0",
		"a=3..3":                   "a: 3",
		"p.n:d.n=1:7,6:2":          "p.n,d.n: 1,7 6,2",
		"p:d=4":                    "p,d: 1,3 2,2 3,1",
		"p:d=2,3":                  "p,d: 1,1 1,2 2,1",
		"a:b:c=1:2:x":              "a,b,c: 1,2,x",
		"links.default.gbps=1,100": "links.default.gbps: 1 100",
	} {
		a, err := ParseAxis(text)
		var parts []string
		for _, v := range a.Values {
			parts = append(parts, strings.Join(v, ","))
		}
		if got := strings.Join(a.Paths, ",") + ": " + strings.Join(parts, " "); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "a", "a=", "=1", "a=1,,2", "a=5..1", "a=1..x", "a=1..5/0", "a=0..5*2", "a=1..5*1", "a=1..1e9", "a=1..9/NaN", "a=-Inf..3", "a=1..Inf",
		"a:b=1", "a:b=1:2:3", "a:b=x", "a:b=1:", "a:a=1:2", "a:b:c=9", "a..b=1", ".a=1", "a[x]=1", "a[-1]=1", "a[1=1", "a b=1", "[0][1=1", "a.[0]=1",
	} {
		if a, err := ParseAxis(text); !errors.Is(err, ErrAxis) && !errors.Is(err, ErrPath) {
			t.Errorf("%q is read as %v, %v", text, a, err)
		}
	}
}

func TestSet(t *testing.T) {
	for _, c := range []struct {
		path, value string
		want        string // the document, or a part of the error
	}{
		{"pools[1].count", "8", "map[pools:[map[count:1 name:prefill] map[count:8 name:decode]] workload:map[rate:1]]"},
		{"pools.prefill.count", "0.5", "map[pools:[map[count:0.5 name:prefill] map[count:1 name:decode]] workload:map[rate:1]]"},
		{"workload.a.b", "x y", "map[pools:[map[count:1 name:prefill] map[count:1 name:decode]] workload:map[a:map[b:x y] rate:1]]"},
		{"workload", "1", "leads to a group of fields"},
		{"pools[2].count", "1", "the list has 2 items"},
		{"pools.far.count", "1", "no item of the list has the name far"},
		{"workload.rate.x", "1", "leads through a value (1)"},
		{"workload[0]", "1", "[0] of something that is no list"},
		{"new[0]", "1", "there is no list"},
	} {
		doc, err := Set(base(), c.path, c.value)
		got := fmt.Sprint(doc)
		if err != nil {
			got = err.Error()
			if !errors.Is(err, ErrPath) {
				t.Errorf("%s: %v is no path error", c.path, err)
			}
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s = %s: %s, want %s", c.path, c.value, got, c.want)
		}
	}
	for text, want := range map[string]any{"1": int64(1), "-1.5": -1.5, "1e3": 1000.0, "true": true, "false": false, "null": nil, "auto": "auto", "5ms": "5ms", "inf": "inf", "0x10": "0x10", "1.2.3": "1.2.3"} {
		if diff := cmp.Diff(want, scalar(text)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestGet(t *testing.T) {
	for path, want := range map[string]string{"pools.decode.count": "1", "pools[0].name": "prefill", "workload.rate": "1", "workload": "", "pools[7].x": "", "pools.x.y": "", "workload.rate.x": "", "a..b": "", "none": ""} {
		if got := Get(base(), path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	got := shorten([]string{"pools.prefill.count", "pools.decode.count", "links.default.gbps", "gbps"})
	if diff := cmp.Diff([]string{"prefill.count", "decode.count", "default.gbps", "gbps"}, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzParseAxis: whatever the text, an answer comes soon and is bounded.
func FuzzParseAxis(f *testing.F) {
	for _, s := range []string{"a=1..8", "a:b=8", "a[0].b=1..64*2,x", "a=1e300..1e301/1", "a=1..2/1e-300"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAxis(text)
		if err == nil && (len(a.Values) == 0 || len(a.Values) > MaxValues || len(a.Paths) == 0) {
			t.Errorf("%q: %d values of %d paths", text, len(a.Values), len(a.Paths))
		}
		for _, v := range a.Values {
			if len(v) != len(a.Paths) {
				t.Fatalf("%q: %v for %v", text, v, a.Paths)
			}
		}
	})
}
