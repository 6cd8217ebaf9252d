package page

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// evil is text that would end its element if it were not escaped.
const evil = `</script><script>alert("1")</script> & 'x' <!--`

// sample has a chart of every kind, gaps and names that need escaping.
func sample() *Page {
	wave := func(n int, by float64) Values {
		v := make(Values, n)
		for i := range v {
			v[i] = 10 + by*math.Sin(float64(i)/9)
		}
		return v
	}
	gaps := wave(500, 3)
	gaps[7], gaps[499] = math.NaN(), math.Inf(1)
	return &Page{
		Title: "Title " + evil, Lead: evil,
		Facts: []Fact{{Label: evil, Value: "1", Note: "x", Tone: Good}, {Label: "bad", Value: "2", Tone: Bad}},
		Sections: []Section{
			{Title: "Time", Note: evil, Charts: []Chart{
				{Kind: Lines, Title: "lines", Group: "t", Step: 0.5, X: Axis{Label: "time", Unit: Seconds}, Y: Axis{Unit: PerSecond, CanLog: true},
					Series: []Series{{Name: "a", Y: wave(500, 3)}, {Name: evil, Y: gaps, Color: 1, Dash: true}}, Marks: []Mark{{"y", 11, "limit"}}},
				{Kind: Areas, Title: "areas", Group: "t", Step: 0.5, X: Axis{Label: "time", Unit: Seconds}, Y: Axis{Unit: Share},
					Series: []Series{{Name: "a", Y: wave(500, 3)}, {Name: "b", Y: wave(500, 1), Color: 2}}},
				{Kind: Lines, Title: "empty", Series: []Series{{Name: "none", X: Values{}, Y: Values{}}}},
			}},
			{Title: "Others", Charts: []Chart{
				{Kind: Steps, Title: "steps", X: Axis{Label: "TTFT", Unit: Seconds, CanLog: true}, Y: Axis{Unit: Share},
					Series: []Series{{Name: "a", X: Values{0.1, 0.2, 3}, Y: Values{0, 0.5, 1}}}, Marks: []Mark{{"x", 0.4, "SLO"}}},
				{Kind: Bars, Title: "bars", Wide: true, Rows: []string{"export", "wire"}, X: Axis{Unit: Seconds},
					Series: []Series{{Name: "mean", Y: Values{1, 2}}, {Name: "p99", Y: Values{3, 4}, Color: 1}}},
				{Kind: Heat, Title: "heat", Rows: []string{"1", "2"}, Cols: []string{"3", "4"}, X: Axis{Label: "decode"}, Y: Axis{Label: "prefill", Unit: PerSecond},
					Series: []Series{{Name: "1", Y: Values{1, 2}}, {Name: "2", Y: Values{math.NaN(), 4}}}},
			}, Tables: []Table{{Title: "table", Head: []string{"name", "value"}, Rows: [][]Cell{{Text(evil), Figure("1 s", 1)}, {Text("b"), Cell{Text: "no", Left: true, Sort: math.NaN(), Tone: Bad}}}}}},
		},
	}
}

func write(t *testing.T, p *Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestWellFormed: every element that is opened is closed, in order, and there are
// as many scripts as the page has, whatever names say.
func TestWellFormed(t *testing.T) {
	text := write(t, sample())
	void := map[string]bool{"meta": true, "br": true, "hr": true, "img": true, "input": true, "link": true}
	var open []string
	scripts := 0
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		switch z.Next() {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("not closed: %v", open)
			}
			if scripts != 2 {
				t.Errorf("%d scripts, want the data and the code", scripts)
			}
			return
		case html.StartTagToken:
			name, _ := z.TagName()
			if !void[string(name)] {
				open = append(open, string(name))
			}
			if string(name) == "script" {
				scripts++
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("</%s> closes %v", name, open)
			}
			open = open[:len(open)-1]
		}
	}
}

// TestOffline: nothing in the page can make a browser ask another machine, and
// the page forbids it.
func TestOffline(t *testing.T) {
	text := write(t, sample())
	if !strings.Contains(text, `content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"`) {
		t.Error("no policy that forbids loading")
	}
	text = strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "") // a name, not an address
	if m := regexp.MustCompile(`(?i)https?:|//[a-z0-9-]+\.[a-z]|src\s*=|href\s*=|@import|url\((?:[^#]|$)|fetch\(|XMLHttp|WebSocket|import\(`).FindString(strings.ReplaceAll(text, "url(#${clip})", "")); m != "" {
		t.Errorf("the page has %q", m)
	}
}

func TestValues(t *testing.T) {
	text, err := json.Marshal(Values{0, 1.0 / 3, math.NaN(), math.Inf(-1), 123456, -2e-7})
	if want := "[0,0.33333,null,null,123460,-2e-07]"; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if text, _ := json.Marshal(Values(nil)); string(text) != "[]" {
		t.Errorf("nil is %s, want []", text)
	}
}

// TestScript runs the page's code and uses its charts.
func TestScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("install Node.js to run this test: %v", err)
	}
	text := write(t, sample())
	dir := t.TempDir()
	_, rest, _ := strings.Cut(text, `id="data">`)
	data, rest, _ := strings.Cut(rest, "</script>")
	_, code, _ := strings.Cut(rest, "<script>")
	code, _, _ = strings.Cut(code, "</script>")
	for name, content := range map[string]string{"code.js": code, "data.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(node, filepath.Join("testdata", "page_test.js"), filepath.Join(dir, "code.js"), filepath.Join(dir, "data.json")).CombinedOutput()
	if err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
