package workload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-llm/tandem/engine/timed"
)

// drain takes all requests, with hashes of their own.
func drain(t testing.TB, src Source) ([]Request, error) {
	t.Helper()
	var all []Request
	for {
		at, ok, err := src.Peek()
		q, taken, err2 := src.Next()
		if ok != taken || err != err2 {
			t.Fatalf("request %d: Peek says %v, %v; Next %v, %v", len(all), ok, err, taken, err2)
		}
		if !ok {
			return all, err
		}
		if q.Arrival != at {
			t.Fatalf("request %d: Peek shows %v, Next brings %v", len(all), at, q.Arrival)
		}
		q.Hashes, q.Answer = slices.Clone(q.Hashes), slices.Clone(q.Answer)
		all = append(all, q)
	}
}

func TestRead(t *testing.T) {
	const ms = timed.Millisecond
	for name, tc := range map[string]struct {
		text    string
		options ReadOptions
		format  Format
		want    []Request
		bad     []LineError
	}{
		"mooncake": {
			text: `{"timestamp": 27482, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 18446744073709551615]}
{"timestamp": 27482, "input_length": 512, "output_length": 1, "hash_ids": [0]}
{"timestamp": 30535, "input_length": 3, "output_length": 2, "hash_ids": [-1]}`,
			format: Mooncake,
			want: []Request{
				{Input: 1025, Output: 500, Hashes: []uint64{0, 1, 1<<64 - 1}, HashTokens: 512},
				{Input: 512, Output: 1, Hashes: []uint64{0}, HashTokens: 512},
				{Arrival: 3053 * ms, Input: 3, Output: 2, Hashes: []uint64{1<<64 - 1}, HashTokens: 512},
			},
		},
		"azure, CRLF, no end of line": {
			text:   "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n2023-11-17T00:00:00+01:00,1,2",
			format: Azure,
			want: []Request{
				{Input: 374, Output: 44},
				{Arrival: 4_314_579_000_000, Input: 396, Output: 109},
				{Arrival: timed.OfSeconds(4*3600 + 44*60 + 13.31941), Input: 1, Output: 2},
			},
		},
		"burstgpt, columns in another order": {
			text:   "Model,Timestamp,Total tokens,Response tokens,Request tokens\n\"GPT-4\",5,10,4,6\nGPT-4,7.25,3,1,2\n",
			format: BurstGPT,
			want:   []Request{{Input: 6, Output: 4}, {Arrival: 2250 * ms, Input: 2, Output: 1}},
		},
		"jsonl with everything": {
			text: "\xef\xbb\xbf" + `{"arrival":1.7e9,"input":5,"output":1,"session":7,"turn":2,"tenant":"a","hashes":[9,8],"hash_tokens":4,"note":{"x":[1,{"y":null}],"z":"\"]"}}` + "\n\n" +
				`{"arrival":1700000000.000000001,"input":5,"output":1,"tenant":"\u00e4\n","hashes":null}`,
			format: JSONL,
			want: []Request{
				{Input: 5, Output: 1, Session: 7, Turn: 2, Tenant: "a", Hashes: []uint64{9, 8}, HashTokens: 4},
				{Arrival: timed.Nanosecond, Input: 5, Output: 1, Tenant: "ä\n"},
			},
		},
		"malformed": {
			text: strings.Join([]string{
				`{"arrival":0,"input":1,"output":1}`,
				`{"arrival":0,"input":1,"output":1`,
				`{"arrival":0,"input":1}`,
				``,
				`{"arrival":0,"input":0,"output":1}`,
				`{"arrival":0,"input":1.5,"output":1}`,
				`{"arrival":"0","input":1,"output":1}`,
				`{"arrival":0,"input":1,"output":1,"hashes":[1,2]}`,
				`{"arrival":0,"input":1,"output":1,"hashes":[18446744073709551616]}`,
				`{"arrival":-1,"input":1,"output":1}`,
				`{"arrival":0,"input":1,"output":1,"pad":"` + strings.Repeat("x", 200) + `"}`,
				`{"arrival":1e7,"input":1,"output":1}`,
				`{"arrival":0,"input":1,"output":1} {}`,
				`{"arrival":1,"input":1,"output":1}`,
			}, "\n"),
			options: ReadOptions{LineLimit: 100},
			format:  JSONL,
			want:    []Request{{Input: 1, Output: 1}, {Arrival: timed.Second, Input: 1, Output: 1}},
			bad: []LineError{
				{2, Syntax, "expected a comma or the end of the object"},
				{3, Missing, "output_length or output"},
				{5, OutOfRange, "input is not a whole number from 1 to 2^30"},
				{6, OutOfRange, "input is not a whole number from 1 to 2^30"},
				{7, OutOfRange, "arrival is not a number of seconds"},
				{8, Blocks, "there is one id for each block of the prompt, the last possibly partial"},
				{9, OutOfRange, "a block id is not a whole number of 64 bits"},
				{10, Disorder, "a later request is ahead of it; sort the trace, or hold more requests back"},
				{11, TooLong, "split it, or raise the limit of a line"},
				{12, OutOfRange, "arrives more than 106 days after the first request"},
				{13, Syntax, "something follows the object"},
			},
		},
		"malformed csv": {
			text:    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n2023-11-16,1,1\n2023-11-16 18:15:46.,1,1\n2023-11-16 18:15:46,1,0\n2023-13-16 18:15:46,1,1\n",
			options: ReadOptions{Format: Azure},
			format:  Azure,
			bad: []LineError{
				{2, Missing, "GeneratedTokens"},
				{3, OutOfRange, "TIMESTAMP is not a date and a time"},
				{4, OutOfRange, "TIMESTAMP is not a date and a time"},
				{5, OutOfRange, "GeneratedTokens is not a whole number from 1 to 2^30"},
				{6, OutOfRange, "TIMESTAMP is not a date and a time"},
			},
		},
		"reordered": {
			text: `{"arrival":3,"input":1,"output":1}
{"arrival":1,"input":2,"output":1}
{"arrival":3,"input":3,"output":1}
{"arrival":2,"input":4,"output":1}
{"arrival":0,"input":5,"output":1}`,
			options: ReadOptions{Reorder: 2},
			format:  JSONL,
			want: []Request{
				{Input: 2, Output: 1},
				{Arrival: timed.Second, Input: 4, Output: 1},
				{Arrival: 2 * timed.Second, Input: 1, Output: 1},
				{Arrival: 2 * timed.Second, Input: 3, Output: 1},
			},
			bad: []LineError{{5, Disorder, "a later request is ahead of it; sort the trace, or hold more requests back"}},
		},
		"the last of equal keys": {
			text:   `{"arrival":5,"arrival":6,"input":9,"input":1,"output":1,"hashes":[1],"hashes":[2]}`,
			format: JSONL,
			want:   []Request{{Input: 1, Output: 1, Hashes: []uint64{2}, HashTokens: 512}},
		},
		"blocks of 16": {
			text:    `{"timestamp":0,"input_length":17,"output_length":1,"hash_ids":[1,2]}`,
			options: ReadOptions{HashTokens: 16},
			format:  Mooncake,
			want:    []Request{{Input: 17, Output: 1, Hashes: []uint64{1, 2}, HashTokens: 16}},
		},
		"empty": {},
	} {
		for _, zipped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gzip %v", name, zipped), func(t *testing.T) {
				var src io.Reader = strings.NewReader(tc.text)
				if zipped {
					var b bytes.Buffer
					w := gzip.NewWriter(&b)
					w.Write([]byte(tc.text))
					w.Close()
					src = &b
				}
				r, err := Read(iotest.HalfReader(src), tc.options)
				if err != nil {
					t.Fatal(err)
				}
				got, err := drain(t, r)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				bad := r.Malformed()
				if diff := cmp.Diff(tc.bad, bad.First); diff != "" {
					t.Errorf("malformed lines (-want +got):\n%s", diff)
				}
				var counts [problems]int
				for _, e := range tc.bad {
					counts[e.Problem]++
				}
				if bad.Lines != len(tc.bad) || bad.Counts != counts {
					t.Errorf("counted %d malformed lines as %v, want %d as %v", bad.Lines, bad.Counts, len(tc.bad), counts)
				}
				if r.Format() != tc.format {
					t.Errorf("format %q, want %q", r.Format(), tc.format)
				}
			})
		}
	}
}

// A strict reader stops at the first malformed line, and stays there.
func TestReadStrict(t *testing.T) {
	text := "{\"arrival\":0,\"input\":1,\"output\":1}\n{}\n{\"arrival\":0,\"input\":1,\"output\":1}\n"
	r, err := Read(strings.NewReader(text), ReadOptions{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := drain(t, r)
	var bad *LineError
	if !errors.As(err, &bad) || bad.Line != 2 || bad.Problem != Missing || len(got) != 1 {
		t.Fatalf("after %d requests: %v", len(got), err)
	}
	if _, ok, again := r.Next(); ok || again != err {
		t.Fatalf("then: %v, %v", ok, again)
	}
}

func TestReadUnknownFormat(t *testing.T) {
	for name, tc := range map[string]struct {
		text   string
		format Format
	}{
		"no header":         {"1,2,3\n", Auto},
		"another header":    {"Timestamp,Request tokens\n", Azure},
		"no such format":    {"{}", "parquet"},
		"not compressed so": {"\x28\xb5\x2f\xfd", Auto},
	} {
		if _, err := Read(strings.NewReader(tc.text), ReadOptions{Format: tc.format}); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What breaks off is an error, never a shorter trace.
func TestReadBroken(t *testing.T) {
	line := `{"arrival":0,"input":1,"output":1}` + "\n"
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(strings.Repeat(line, 50000)))
	w.Close()
	for name, src := range map[string]io.Reader{
		"gzip cut off": bytes.NewReader(b.Bytes()[:b.Len()-20]),
		"read error":   io.MultiReader(strings.NewReader(line), iotest.ErrReader(io.ErrClosedPipe)),
	} {
		r, err := Read(src, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := drain(t, r)
		if len(got) == 0 || !(errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)) {
			t.Errorf("%s: %d requests, %v", name, len(got), err)
		}
	}
}

// endless writes the same bytes for ever.
type endless struct{ text []byte }

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	return n, nil
}

// However long a line is, no more than the limit is held; however many lines
// are malformed, no more than 20 are listed.
func TestReadBounded(t *testing.T) {
	r, err := Read(io.MultiReader(
		strings.NewReader(`{"arrival":0,"input":1,"output":1,"x":"`),
		io.LimitReader(endless{bytes.Repeat([]byte("x"), 4096)}, 8<<20),
		strings.NewReader("\"}\n"),
		strings.NewReader(strings.Repeat("{}\n", 1000)),
		strings.NewReader(`{"arrival":0,"input":2,"output":1}`),
	), ReadOptions{LineLimit: 100 << 10})
	if err != nil {
		t.Fatal(err)
	}
	got, err := drain(t, r)
	bad := r.Malformed()
	if err != nil || len(got) != 1 || got[0].Input != 2 || bad.Lines != 1001 || bad.Counts[TooLong] != 1 || len(bad.First) != listed {
		t.Errorf("%d requests, %d malformed as %v, %d listed, %v", len(got), bad.Lines, bad.Counts, len(bad.First), err)
	}
	if most := 256 << 10; cap(r.lines.long) > most {
		t.Errorf("holds %d bytes of a line", cap(r.lines.long))
	}
}

// Reading does not allocate once the longest line was seen.
func TestReadDoesNotAllocate(t *testing.T) {
	line := []byte(`{"timestamp": 5, "input_length": 2000, "output_length": 10, "hash_ids": [1, 2, 3, 4], "tenant": "a"}` + "\n")
	for name, o := range map[string]ReadOptions{"in order": {}, "held back": {Reorder: 16}} {
		r, err := Read(endless{line}, o)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			r.Next()
		}
		if n := testing.AllocsPerRun(1000, func() {
			r.Peek()
			if _, ok, err := r.Next(); !ok || err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations per request", name, n)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}`+"\n{}\n"), byte(0))
	f.Add([]byte(`{"arrival":1e3,"input":1,"output":1,"tenant":"\u00e4","session":1,"turn":1,"o":{"a":[true,null,-1.5e+3]}}`), byte(2))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16T18:15:50-02:30,396,109"), byte(1))
	f.Add([]byte("Timestamp,Model,Request tokens,Response tokens\n5,x,1,2\n4,y,3,4\n"), byte(3))
	f.Add([]byte("\x1f\x8b"), byte(0))
	f.Fuzz(func(t *testing.T, text []byte, reorder byte) {
		r, err := Read(bytes.NewReader(text), ReadOptions{Reorder: int(reorder % 4), LineLimit: 1 << 10})
		if err != nil {
			return
		}
		got, _ := drain(t, r)
		last := timed.Time(0)
		for _, q := range got {
			if q.Arrival < last || q.Input < 1 || q.Output < 1 || q.Hashes != nil && len(q.Hashes) != blocks(q.Input, q.HashTokens) {
				t.Fatalf("%+v after %v", q, last)
			}
			last = q.Arrival
		}
		if bad := r.Malformed(); len(got)+bad.Lines > r.Lines() {
			t.Fatalf("%d requests and %d malformed lines of %d", len(got), bad.Lines, r.Lines())
		}
	})
}
