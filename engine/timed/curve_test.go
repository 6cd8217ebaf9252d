package timed

import (
	"testing"

	"pgregory.net/rapid"
)

// steps adds up the same stretch one step at a time.
func steps(m *Model, decodes int, context int64, n int) Time {
	var total Time
	for range n {
		t := m.Step(&Batch{Decodes: decodes, Context: context})
		if t > Never-total {
			return Never
		}
		total += t
		context += int64(decodes)
	}
	return total
}

// anyCurve draws a curve with pieces of all kinds: steep, flat, falling, short.
func anyCurve(t *rapid.T) curve {
	var c curve
	from := int64(0)
	for i := range rapid.IntRange(1, 12).Draw(t, "pieces") {
		if i > 0 {
			from += rapid.Int64Range(1, 1<<rapid.IntRange(1, 30).Draw(t, "width")).Draw(t, "length")
		}
		c = append(c, seg{
			from:  from,
			base:  rapid.Int64Range(1, 1<<rapid.IntRange(1, 60).Draw(t, "base bits")).Draw(t, "base"),
			slope: rapid.Int64Range(-8, 1<<rapid.IntRange(1, 29).Draw(t, "slope bits")).Draw(t, "slope"),
		})
	}
	c, err := c.seal()
	if err != nil {
		t.Skip(err.Error())
	}
	return c
}

type given struct{ c curve }

func (g given) curve(int) (curve, error) { return g.c, nil }
func (given) mixed(*Batch) float64       { return 0 }
func (given) same() bool                 { return true }

func anyModel(t *rapid.T) *Model {
	m, err := build("test", given{anyCurve(t)}, Common{MaxDecodes: 4})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStretchIsTheSumOfItsSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyModel(t)
		d := rapid.IntRange(1, 1<<rapid.IntRange(1, 20).Draw(t, "decode bits")).Draw(t, "decodes")
		c := rapid.Int64Range(0, 1<<rapid.IntRange(1, 33).Draw(t, "context bits")).Draw(t, "context")
		n := rapid.IntRange(0, 300).Draw(t, "steps")
		want := steps(m, d, c, n)
		if got := m.Stretch(d, c, n); got != want {
			t.Fatalf("Stretch is %d, its steps add up to %d", got, want)
		}
		// A stretch in two parts is the same.
		k := rapid.IntRange(0, n).Draw(t, "split")
		if a, b := m.Stretch(d, c, k), m.Stretch(d, c+int64(d)*int64(k), n-k); want != Never && a+b != want {
			t.Fatalf("in two parts %d + %d, in one %d", a, b, want)
		}
	})
}

func TestStepsWithinInvertsStretch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyModel(t)
		d := rapid.IntRange(1, 1<<rapid.IntRange(1, 20).Draw(t, "decode bits")).Draw(t, "decodes")
		c := rapid.Int64Range(0, 1<<rapid.IntRange(1, 33).Draw(t, "context bits")).Draw(t, "context")
		most := rapid.IntRange(0, 1<<rapid.IntRange(1, 40).Draw(t, "most bits")).Draw(t, "most")
		// Half of the limits are exactly some stretch, or one off.
		limit := Time(rapid.Int64Range(-1, 1<<62).Draw(t, "limit"))
		if rapid.Bool().Draw(t, "exact") {
			limit = m.Stretch(d, c, rapid.IntRange(0, 1000).Draw(t, "steps")) + Time(rapid.IntRange(-1, 0).Draw(t, "off"))
		}
		n := m.StepsWithin(d, c, limit, most)
		if n < 0 || n > most {
			t.Fatalf("%d steps, at most %d were asked for", n, most)
		}
		if got := m.Stretch(d, c, n); n > 0 && got > limit {
			t.Fatalf("%d steps take %d, longer than %d", n, got, limit)
		}
		if got := m.Stretch(d, c, n+1); n < most && got <= limit && got != Never {
			t.Fatalf("%d steps, but %d fit too", n, n+1)
		}
	})
}

func TestStretchITLCountsEachStepInItsBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyModel(t)
		d := rapid.IntRange(1, 1<<rapid.IntRange(1, 20).Draw(t, "decode bits")).Draw(t, "decodes")
		c := rapid.Int64Range(0, 1<<rapid.IntRange(1, 33).Draw(t, "context bits")).Draw(t, "context")
		n := rapid.IntRange(0, 300).Draw(t, "steps")
		i := 0
		m.StretchITL(d, c, n, func(step Time, count int) {
			if count < 1 {
				t.Fatalf("a run of %d", count)
			}
			for range count {
				one := m.Step(&Batch{Decodes: d, Context: c + int64(i)*int64(d)})
				if one.Quantize() != step {
					t.Fatalf("step %d takes %d, in the bucket of %d, and was counted at %d", i, one, one.Quantize(), step)
				}
				i++
			}
		})
		if i != n {
			t.Fatalf("%d steps were visited of %d", i, n)
		}
	})
}

func TestQuantizeIsClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := Time(rapid.Int64Range(1, 1<<rapid.IntRange(1, 62).Draw(t, "bits")).Draw(t, "time"))
		q := x.Quantize()
		if off := max(q-x, x-q); x < 2048 && off != 0 || off > x>>11 {
			t.Fatalf("%d becomes %d", x, q)
		}
		if q.Quantize() != q {
			t.Fatalf("%d becomes %d, and that %d", x, q, q.Quantize())
		}
	})
}
