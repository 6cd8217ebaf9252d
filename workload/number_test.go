package workload

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"
)

// FuzzParseTime compares with exact arithmetic.
func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{"0", "-1.5", "27482", "1700000000.123456789", "1e3", "1.", ".5", "--1", "9223372036.854775807", "1e400", "0.0000000019", "1e-9x"} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, text string, milli bool) {
		unit := nanosPerSecond
		if milli {
			unit = nanosPerMilli
		}
		got, ok := parseTime([]byte(text), unit)
		if len(text) > 30 || strings.ContainsAny(text, "/pPxX_+bBoO") || strings.Count(text, "e")+strings.Count(text, "E") > 0 && len(text) > 6 {
			return // big.Rat reads more than JSON has, and large powers slowly
		}
		want, valid := new(big.Rat).SetString(text)
		if !ok {
			if _, err := json.Number(text).Float64(); err == nil && json.Valid([]byte(text)) && new(big.Rat).Abs(want).Cmp(big.NewRat(900_000_000, 1)) < 0 {
				t.Fatalf("refuses %q", text)
			}
			return
		}
		if !valid {
			t.Fatalf("reads %q as %d", text, got)
		}
		want.Mul(want, big.NewRat(unit, 1))
		off := new(big.Rat).Sub(want, big.NewRat(got, 1))
		slack := new(big.Rat).Abs(want)
		slack.Mul(slack, big.NewRat(1, 1<<52)) // of a float64, with an exponent
		if !strings.ContainsAny(text, "eE") {
			slack = big.NewRat(0, 1)
		}
		if off.Abs(off).Cmp(slack.Add(slack, big.NewRat(1, 1))) >= 0 {
			t.Fatalf("reads %q as %d ns", text, got)
		}
	})
}

// FuzzParseDate compares with package time.
func FuzzParseDate(f *testing.F) {
	for _, seed := range []string{
		"2023-11-16 18:15:46.6805900", "2023-11-16T18:15:46Z", "2024-02-29 00:00:00.5+01:00", "2023-02-29 00:00:00", "2024-05-10 23:59:59.009930-11:30",
		"2023-11-16 18:15:46.", "2023-11-16 18:15", "2023-11-16 18:15:46+1:00", "1969-12-31 23:59:59.999999999",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseDate([]byte(text))
		want, err := time.Parse("2006-01-02 15:04:05Z07:00", strings.Replace(text, "T", " ", 1))
		if err != nil {
			want, err = time.Parse("2006-01-02 15:04:05", strings.Replace(text, "T", " ", 1))
		}
		if !ok {
			// Package time also reads commas, and hours of one digit.
			if err == nil && want.Year() >= 1700 && want.Year() <= 2200 && !strings.Contains(text, ",") &&
				strings.HasPrefix(strings.Replace(text, "T", " ", 1), want.Format("2006-01-02 15:04:05")) {
				t.Fatalf("refuses %q", text)
			}
			return
		}
		if err != nil || want.UnixNano() != got {
			t.Fatalf("reads %q as %v, want %v, %v", text, time.Unix(0, got).UTC(), want, err)
		}
	})
}

// FuzzJSON compares with encoding/json: no valid object is a syntax error, and
// what is read is what is there.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}`,
		`{"arrival":1,"input":7,"output":9,"x":{"a":[1,{"b":"]}"}],"c":"\\\""},"hashes":[ ],"tenant":"\ud83d\ude00","session":5,"turn":null}`,
		`{"arrival":1,"input":7,"input":8,"output":9}`, `[]`, `{}`, `{"arrival":1,,}`, `{"input":1e2}`, "{\"in\\u0070ut\":3}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r record
		p := jsonParser{hashTokens: 512, tenants: map[string]string{}}
		bad := p.parse([]byte(text), &r)
		var want map[string]json.RawMessage
		err := json.Unmarshal([]byte(text), &want)
		if err != nil || want == nil || strings.Contains(text, `\u`) || strings.Count(text, "[")+strings.Count(text, "{") > maxDepth {
			return // keys with escapes are other keys here, and deep values are refused
		}
		if bad != nil {
			wrongKind := false // a value of the wrong kind where a list or a string belongs
			for _, key := range []string{"hashes", "hash_ids", "tenant"} {
				wrongKind = wrongKind || want[key] != nil
			}
			if bad.Problem == Syntax && !wrongKind {
				for _, key := range []string{"timestamp", "arrival", "input", "input_length", "output", "output_length", "session", "turn", "hash_tokens"} {
					if _, odd := want[key]; odd {
						return // not a number, found out as something else
					}
				}
				t.Fatalf("refuses %q: %v", text, bad)
			}
			return
		}
		for key, got := range map[string]int{"input": r.request.Input, "output": r.request.Output, "turn": r.request.Turn} {
			var n int
			if raw, there := want[key]; there && want[key+"_length"] == nil && (json.Unmarshal(raw, &n) != nil || n != got) {
				t.Fatalf("%q: %s is %s, read as %d", text, key, raw, got)
			}
		}
		var ids []uint64
		if raw, there := want["hashes"]; there && want["hash_ids"] == nil && string(raw) != "null" && !strings.Contains(string(raw), "-") {
			if err := json.Unmarshal(raw, &ids); err != nil || len(ids) != len(r.hashes) {
				t.Fatalf("%q: %d ids, %v", text, len(r.hashes), err)
			}
			for i := range ids {
				if ids[i] != r.hashes[i] {
					t.Fatalf("%q: id %d is %d", text, i, r.hashes[i])
				}
			}
		}
	})
}
