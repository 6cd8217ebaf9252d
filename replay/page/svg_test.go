package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// TestSVG: the picture is XML, needs nothing from outside, shows each series and
// stays within its frame.
func TestSVG(t *testing.T) {
	c := Chart{
		Kind: Lines, Title: "Goodput " + evil, X: Axis{Label: "rate"}, Y: Axis{Label: "good", Unit: PerSecond},
		Series: []Series{
			{Name: "colocated <1>", X: Values{1, 2, 4}, Y: Values{1, 2, 0}, Dots: true},
			{Name: "disaggregated", X: Values{1, 2, 3, 4}, Y: Values{1, math.NaN(), 3, 4}, Color: 1, Dash: true},
			{Name: strings.Repeat("a long name ", 9), X: Values{}, Y: Values{}, Color: 2},
		},
		Marks: []Mark{{"y", 3, "limit"}, {"x", 2, "knee"}},
	}
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	for _, want := range []string{"colocated &lt;1&gt;", "M76 ", "<circle", "stroke-dasharray", "limit", "knee", `fill="#ffffff"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "<script", "href", ">-0<"} {
		if strings.Contains(text, bad) {
			t.Errorf("the picture has %q", bad)
		}
	}
	// The gap splits the second line in two.
	if n := strings.Count(text[strings.Index(text, `fill="none"`)-200:], "M"); n < 3 {
		t.Errorf("%d beginnings of lines", n)
	}
	var again bytes.Buffer
	c.SVG(&again)
	if again.String() != text {
		t.Error("the picture differs the second time")
	}
	if err := (&Chart{Kind: Bars}).SVG(io.Discard); err == nil {
		t.Error("bars are written")
	}
	if err := (&Chart{Kind: Lines}).SVG(io.Discard); err != nil {
		t.Errorf("nothing to draw: %v", err)
	}
}
