package e2e

import (
	bin "encoding/binary"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/gguf"
	"github.com/tandem-llm/tandem/model/tiny"
)

// modelFile is a GGUF file taken apart, to be put together again with something
// wrong in it.
type modelFile struct {
	version uint32
	pairs   []modelPair
	tensors []modelTensor
	counts  [2]uint64 // declared tensors and pairs
}

type modelPair struct {
	key   string
	value []byte // type and value, encoded
}

type modelTensor struct {
	gguf.Tensor
	data []byte
}

// openModel takes a file apart.
func openModel(t *testing.T, path string) *modelFile {
	t.Helper()
	head, err := gguf.Open(path, gguf.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &modelFile{version: head.Version, counts: [2]uint64{uint64(len(head.Tensors)), uint64(len(head.Pairs))}}
	for _, p := range head.Pairs {
		m.pairs = append(m.pairs, modelPair{p.Key, p.Value.Append(nil)})
	}
	for _, tensor := range head.Tensors {
		from := uint64(head.DataOffset) + tensor.Offset
		m.tensors = append(m.tensors, modelTensor{tensor, raw[from : from+tensor.Bytes]})
	}
	return m
}

func ggufString(s string) []byte {
	return append(bin.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
}

func ggufText(s string) []byte {
	return append(bin.LittleEndian.AppendUint32(nil, uint32(gguf.TypeString)), ggufString(s)...)
}

func ggufUint32(v uint32) []byte {
	return bin.LittleEndian.AppendUint32(bin.LittleEndian.AppendUint32(nil, uint32(gguf.TypeUint32)), v)
}

// set replaces or adds a value; nil removes it.
func (m *modelFile) set(key string, value []byte) {
	for i := range m.pairs {
		if m.pairs[i].key == key {
			if m.pairs[i].value = value; value == nil {
				m.pairs = append(m.pairs[:i], m.pairs[i+1:]...)
				m.counts[1]--
			}
			return
		}
	}
	m.pairs = append(m.pairs, modelPair{key, value})
	m.counts[1]++
}

// rename gives the model another architecture, with the same hyperparameters.
func (m *modelFile) rename(from, to string) {
	m.set("general.architecture", ggufText(to))
	for i, p := range m.pairs {
		if rest, ok := strings.CutPrefix(p.key, from+"."); ok {
			m.pairs[i].key = to + "." + rest
		}
	}
}

// bytes puts the file together.
func (m *modelFile) bytes() []byte {
	b := append([]byte("GGUF"), bin.LittleEndian.AppendUint32(nil, m.version)...)
	b = bin.LittleEndian.AppendUint64(bin.LittleEndian.AppendUint64(b, m.counts[0]), m.counts[1])
	for _, p := range m.pairs {
		b = append(append(b, ggufString(p.key)...), p.value...)
	}
	for _, tensor := range m.tensors {
		b = append(b, ggufString(tensor.Name)...)
		b = bin.LittleEndian.AppendUint32(b, uint32(len(tensor.Dims)))
		for _, d := range tensor.Dims {
			b = bin.LittleEndian.AppendUint64(b, d)
		}
		b = bin.LittleEndian.AppendUint32(b, uint32(tensor.Type))
		b = bin.LittleEndian.AppendUint64(b, tensor.Offset)
	}
	data := (len(b) + 31) / 32 * 32
	for _, tensor := range m.tensors {
		if end := data + int(tensor.Offset); end <= 1<<28 && end >= len(b) {
			b = append(append(b, make([]byte, end-len(b))...), tensor.data...)
		}
	}
	return b
}

// TestBadModels gives every command that opens models files that are damaged or
// made to do damage. Each is one error that names the file, and nothing is left.
func TestBadModels(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	good, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	id := meshDirs(t, filepath.Join(dir, "mesh"), "worker/w")
	whole := openModel(t, good).bytes()
	changed := func(change func(*modelFile)) []byte {
		m := openModel(t, good)
		change(m)
		return m.bytes()
	}
	huge := bin.LittleEndian.AppendUint64(nil, math.MaxUint64)
	cases := map[string][]byte{
		"empty":                nil,
		"text":                 []byte("this is no model\n"),
		"only a magic":         []byte("GGUF"),
		"cut in the header":    raw[:20],
		"cut in the metadata":  raw[:2000],
		"cut in the tensors":   raw[:len(raw)/2],
		"cut at the last byte": raw[:len(raw)-1],
		"version 1":            changed(func(m *modelFile) { m.version = 1 }),
		"version 99":           changed(func(m *modelFile) { m.version = 99 }),
		"big endian":           changed(func(m *modelFile) { m.version = 3 << 24 }),
		"endless tensors":      changed(func(m *modelFile) { m.counts[0] = math.MaxUint64 }),
		"too many tensors":     changed(func(m *modelFile) { m.counts[0]++ }),
		"endless pairs":        changed(func(m *modelFile) { m.counts[1] = math.MaxUint64 / 2 }),
		"endless string": changed(func(m *modelFile) {
			m.set("general.name", append(bin.LittleEndian.AppendUint32(nil, uint32(gguf.TypeString)), huge...))
		}),
		"endless array": changed(func(m *modelFile) {
			b := bin.LittleEndian.AppendUint32(nil, uint32(gguf.TypeArray))
			m.set("tokenizer.ggml.scores", append(bin.LittleEndian.AppendUint32(b, uint32(gguf.TypeFloat32)), huge...))
		}),
		"arrays in arrays": changed(func(m *modelFile) {
			var b []byte
			for range 1000 {
				b = bin.LittleEndian.AppendUint32(b, uint32(gguf.TypeArray))
			}
			m.set("deep", b)
		}),
		"unknown type":          changed(func(m *modelFile) { m.set("strange", bin.LittleEndian.AppendUint32(nil, 77)) }),
		"key given twice":       changed(func(m *modelFile) { m.pairs = append(m.pairs, m.pairs[0]); m.counts[1]++ }),
		"tensor outside":        changed(func(m *modelFile) { m.tensors[1].Offset = 1 << 40 }),
		"tensor at an odd byte": changed(func(m *modelFile) { m.tensors[1].Offset++ }),
		"tensors that overlap":  changed(func(m *modelFile) { m.tensors[1].Offset = m.tensors[2].Offset }),
		"tensor without end":    changed(func(m *modelFile) { m.tensors[1].Dims = []uint64{1 << 40, 1 << 40} }),
		"tensor of no size":     changed(func(m *modelFile) { m.tensors[1].Dims[0] = 0 }),
		"tensor of many dimensions": changed(func(m *modelFile) {
			m.tensors[1].Dims = []uint64{1, 1, 1, 1, 1, 1, 1, 1}
		}),
		"no architecture":        changed(func(m *modelFile) { m.set("general.architecture", nil) }),
		"architecture no string": changed(func(m *modelFile) { m.set("general.architecture", ggufUint32(7)) }),
		"no layers":              changed(func(m *modelFile) { m.set("llama.block_count", ggufUint32(0)) }),
		"endless layers":         changed(func(m *modelFile) { m.set("llama.block_count", ggufUint32(math.MaxUint32)) }),
		"no heads":               changed(func(m *modelFile) { m.set("llama.attention.head_count", ggufUint32(0)) }),
		"no width":               changed(func(m *modelFile) { m.set("llama.embedding_length", ggufUint32(0)) }),
		"no context":             changed(func(m *modelFile) { m.set("llama.context_length", ggufUint32(0)) }),
		"no vocabulary":          changed(func(m *modelFile) { m.set("tokenizer.ggml.tokens", nil) }),
	}
	for name, content := range cases {
		if string(content) == string(whole) {
			t.Errorf("%s: nothing is wrong with it", name)
		}
		file := writeFile(t, filepath.Join(dir, "models", strings.ReplaceAll(name, " ", "-")+".gguf"), string(content))
		for tool, args := range map[string][]string{
			"inspect": {"model", "inspect", file},
			"up":      {"up", "--listen=127.0.0.1:0", "--model=" + file},
			"worker":  {"worker", "--role=both", "--mesh=" + id("w"), "--bus=tls://127.0.0.1:1", "--model=" + file},
		} {
			r := command{}.run(t, args...)
			r.check(t, tool+", "+name, 1, "tandem: ", filepath.Base(file))
		}
	}
	// What the metadata does not show, llama.cpp finds.
	for name, content := range map[string][]byte{
		"tensor missing": changed(func(m *modelFile) { m.tensors[2].Name = "blk.0.another" }),
		"tensor misshapen": changed(func(m *modelFile) {
			for _, tensor := range m.tensors {
				if d := tensor.Dims; len(d) > 1 && d[0] != d[1] {
					d[0], d[1] = d[1], d[0]
				}
			}
		}),
		"unknown tokenizer": changed(func(m *modelFile) { m.set("tokenizer.ggml.model", ggufText("crystal ball")) }),
	} {
		file := writeFile(t, filepath.Join(dir, "models", strings.ReplaceAll(name, " ", "-")+".gguf"), string(content))
		r := command{}.run(t, "worker", "--role=both", "--mesh="+id("w"), "--bus=tls://127.0.0.1:1", "--model="+file)
		r.check(t, "worker, "+name, 1, "tandem: ", filepath.Base(file))
		r = command{}.run(t, "up", "--listen=127.0.0.1:0", "--model="+file)
		r.check(t, "up, "+name, 1, "does not start", filepath.Base(file))
	}
	for _, args := range [][]string{
		{"model", "inspect", dir}, {"up", "--model=" + dir}, {"up", "--model=" + dir + "/none.gguf"}, {"model", "inspect", dir + "/none.gguf"},
	} {
		command{}.run(t, args...).check(t, strings.Join(args, " "), 2, "tandem: ")
	}
	checkNoProcess(t)
	if left, _ := filepath.Glob(filepath.Join(dir, "tandem-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestModelWithoutHandoff: a model that llama.cpp can run and this build cannot
// hand off is refused with the reason, and served whole when asked.
func TestModelWithoutHandoff(t *testing.T) {
	dir := t.TempDir()
	good, err := tiny.Cached(tiny.Llama)
	if err != nil {
		t.Fatal(err)
	}
	m := openModel(t, good)
	m.rename("llama", "deci") // the same layers and tensors under a name that is not on the list
	file := writeFile(t, filepath.Join(dir, "deci.gguf"), string(m.bytes()))
	id := meshDirs(t, filepath.Join(dir, "mesh"), "worker/w")

	if got := mustRun(t, "model", "inspect", file); !strings.Contains(got, "deci") || !strings.Contains(got, "not among those that this build has been taught") {
		t.Errorf("inspect does not tell the reason:\n%s", got)
	}
	for _, args := range [][]string{
		{"up", "--listen=127.0.0.1:0", "--model=" + file},
		{"up", "--listen=127.0.0.1:0", "--mode=disaggregated", "--model=" + file},
		{"worker", "--role=both", "--mesh=" + id("w"), "--bus=tls://127.0.0.1:1", "--model=" + file},
	} {
		r := command{}.run(t, args...)
		r.check(t, strings.Join(args, " "), 1, `architecture "deci" cannot be handed off`, "colocated")
		if strings.Contains(r.stdout, "started, pid") {
			t.Errorf("%v started processes for it:\n%s", args, r.stdout)
		}
	}

	f := up(t, "--model="+file, "--mode=colocated", "--context=1024")
	if n := len(f.pids("decode-0")); n != 0 {
		t.Error("a decode worker was started, which nothing can be handed to")
	}
	body := object{"model": f.model, "prompt": "Hello", "max_tokens": 8, "ignore_eos": true}
	for _, tt := range []struct {
		mode, want string
		status     int
	}{
		{"", `"completion_tokens":8`, http.StatusOK},
		{"colocated", `"completion_tokens":8`, http.StatusOK},
		{"auto", `"completion_tokens":8`, http.StatusOK},
		{"disaggregated", "no_workers", http.StatusServiceUnavailable},
	} {
		resp := f.post(t.Context(), "/v1/completions", marshal(body), map[string]string{"Tandem-Mode": tt.mode})
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(raw), tt.want) {
			t.Errorf("mode %q: %d %s, %v; want %d with %s", tt.mode, resp.StatusCode, raw, err, tt.status, tt.want)
		}
		if served := resp.Header.Get("Tandem-Served"); tt.status == http.StatusOK && served != "colocated" {
			t.Errorf("mode %q: served %q", tt.mode, served)
		}
	}
}
