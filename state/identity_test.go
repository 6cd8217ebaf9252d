package state

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// leaves calls visit for every settable scalar, string, slice and array inside v, by path.
func leaves(path string, v reflect.Value, visit func(string, reflect.Value)) {
	if v.Kind() != reflect.Struct {
		visit(path, v)
		return
	}
	for i := range v.NumField() {
		leaves(strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), v.Field(i), visit)
	}
}

// mutate changes the value to another valid one.
func mutate(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() ^ 3) // 1 and 2 become 2 and 1, which are valid for every enumeration here
	case reflect.Float32:
		v.SetFloat(v.Float() + 0.25)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Array:
		e := v.Index(v.Len() - 1)
		e.SetUint(e.Uint() ^ 1)
	case reflect.Slice:
		switch s := v.Interface().(type) {
		case []byte:
			v.SetBytes(append(bytes.Clone(s), 1))
		default:
			n := reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1)
			reflect.Copy(n, v)
			v.Set(n)
		}
	default:
		t.Fatalf("%s: do not know how to change a %v", path, v.Kind())
	}
}

// A field that is added to Identity and forgotten anywhere fails here: each must be in the list of
// fields, and so change the encoding and the digest, be named by Match, and come back.
func TestIdentityHasEveryField(t *testing.T) {
	lim := DefaultLimits()
	base := testIdentity()
	listed := map[uintptr]string{}
	id := testIdentity()
	for _, f := range id.fields() {
		p := reflect.ValueOf(f.ptr).Pointer()
		if listed[p] != "" {
			t.Errorf("%s and %s are the same field", listed[p], f.name)
		}
		listed[p] = f.name
	}
	seen := 0
	leaves("", reflect.ValueOf(&id).Elem(), func(path string, v reflect.Value) {
		seen++
		name := listed[v.Addr().Pointer()]
		if name == "" {
			t.Errorf("%s is not in the list of fields", path)
			return
		}
		if wire := strings.ToLower(strings.ReplaceAll(path, ".", "")); strings.ReplaceAll(strings.ReplaceAll(name, "_", ""), ".", "") != wire {
			t.Errorf("%s is listed as %q", path, name)
		}
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		mutate(t, path, v)
		defer v.Set(old)

		wantRefusal(t, base.Match(id), ErrIdentity, name)
		if base.Equal(id) || id.Equal(base) {
			t.Errorf("%s: equal although it differs", path)
		}
		if bytes.Equal(base.Encode(), id.Encode()) {
			t.Errorf("%s: not in the encoding", path)
		}
		if base.Digest() == id.Digest() {
			t.Errorf("%s: not in the digest", path)
		}
		got, err := DecodeIdentity(id.Encode(), &lim)
		if path == "Schema" {
			wantRefusal(t, err, ErrSchema, "schema")
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff(id, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	})
	if seen != len(listed) {
		t.Errorf("%d fields, %d listed", seen, len(listed))
	}
}

func TestIdentityMatchShowsValuesButNoDigest(t *testing.T) {
	a, b := testIdentity(), testIdentity()
	b.EngineBuild = "other"
	if err := a.Match(b).Error(); !strings.Contains(err, `"other"`) || !strings.Contains(err, a.EngineBuild) {
		t.Errorf("error %q shows not both builds", err)
	}
	b = testIdentity()
	b.Weights = Digest{0xab, 0xcd}
	if err := a.Match(b).Error(); !strings.Contains(err, "weights") || strings.Contains(err, "abcd") {
		t.Errorf("error %q should name weights and show no digest", err)
	}
}

func TestBindingHasEveryField(t *testing.T) {
	lim := DefaultLimits()
	base, b := testBinding(), testBinding()
	listed := map[uintptr]string{}
	for _, f := range b.fields() {
		listed[reflect.ValueOf(f.ptr).Pointer()] = f.name
	}
	leaves("", reflect.ValueOf(&b).Elem(), func(path string, v reflect.Value) {
		name := listed[v.Addr().Pointer()]
		if name != strings.ToLower(path) {
			t.Errorf("%s is listed as %q", path, name)
		}
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		mutate(t, path, v)
		defer v.Set(old)

		wantRefusal(t, base.Match(b), ErrBinding, name)
		if base.Equal(b) {
			t.Errorf("%s: equal although it differs", path)
		}
		if DeriveKey([]byte("secret"), base) == DeriveKey([]byte("secret"), b) {
			t.Errorf("%s: not in the digest key", path)
		}
		got, err := DecodeBinding(b.Encode(), &lim)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff(b, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	})
}

func drawIdentity(t *rapid.T) Identity {
	f := func(name string) float32 { return rapid.Float32().Draw(t, name) }
	return Identity{
		Schema: SchemaVersion, Weights: drawDigest(t, "weights"), Tokenizer: drawDigest(t, "tokenizer"),
		Architecture: rapid.StringN(0, 20, 80).Draw(t, "architecture"),
		Layers:       rapid.Uint32().Draw(t, "layers"),
		Rope: Rope{RopeScaling(rapid.IntRange(0, 3).Draw(t, "scaling")), f("base"), f("scale"), f("ext"), f("attn"),
			f("fast"), f("slow"), rapid.Uint32().Draw(t, "orig")},
		KVTypeK: DType(rapid.IntRange(0, 4).Draw(t, "k")), KVTypeV: DType(rapid.IntRange(0, 4).Draw(t, "v")),
		FlashAttention: rapid.Bool().Draw(t, "fa"), SWAFull: rapid.Bool().Draw(t, "swa"),
		EngineBuild: rapid.StringN(0, 20, 80).Draw(t, "build"),
		EngineState: rapid.Uint32().Draw(t, "state"),
		Endian:      Endian(rapid.IntRange(1, 2).Draw(t, "endian")),
	}
}

func drawBinding(t *rapid.T) Binding {
	s := func(name string) string { return rapid.StringN(0, 20, 80).Draw(t, name) }
	b := Binding{
		Request: s("request"), Tenant: s("tenant"),
		Source:      Peer{s("source"), rapid.Uint64().Draw(t, "source.incarnation")},
		Destination: Peer{s("destination"), rapid.Uint64().Draw(t, "destination.incarnation")},
		Deadline:    time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "deadline")),
	}
	copy(b.Handoff[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "handoff"))
	return b
}

func TestIdentityRoundTrip(t *testing.T) {
	lim := DefaultLimits()
	rapid.Check(t, func(t *rapid.T) {
		id := drawIdentity(t)
		got, err := DecodeIdentity(id.Encode(), &lim)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(id) || got.Digest() != id.Digest() {
			t.Fatal(cmp.Diff(id, got))
		}
	})
}

func TestBindingRoundTrip(t *testing.T) {
	lim := DefaultLimits()
	rapid.Check(t, func(t *rapid.T) {
		b := drawBinding(t)
		got, err := DecodeBinding(b.Encode(), &lim)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// recordRefusals change an encoded identity or binding.
var recordRefusals = []struct {
	name    string
	binding bool
	want    error
	field   string
	edit    func(b []byte) []byte
}{
	{"identity magic", false, ErrMagic, "magic", func(b []byte) []byte { b[0]++; return b }},
	{"identity schema", false, ErrSchema, "schema", func(b []byte) []byte { b[5] = 1; return b }},
	{"identity with more behind", false, ErrTrailing, "endian", func(b []byte) []byte { return append(b, 0) }},
	{"identity without end", false, ErrTruncated, "endian", func(b []byte) []byte { return b[:len(b)-1] }},
	{"identity byte order", false, ErrField, "endian", func(b []byte) []byte { b[len(b)-1] = 3; return b }},
	{"identity long name", false, ErrLimit, "architecture", func(b []byte) []byte { b[6+64+1] = 0xff; return b }},
	{"identity name not UTF-8", false, ErrField, "architecture", func(b []byte) []byte { b[6+64+4] = 0xff; return b }},
	{"identity rope scaling", false, ErrField, "rope.scaling", func(b []byte) []byte { b[6+64+4+6+4] = 4; return b }},
	{"identity NaN", false, ErrField, "rope.freq_base", func(b []byte) []byte {
		copy(b[6+64+4+6+4+1:], []byte{1, 0, 0x80, 0x7f})
		return b
	}},
	{"identity KV type", false, ErrField, "kv_type_k", func(b []byte) []byte { b[6+64+4+6+4+1+28] = 5; return b }},
	{"identity flash attention", false, ErrField, "flash_attention", func(b []byte) []byte { b[6+64+4+6+4+1+28+2] = 2; return b }},
	{"binding magic", true, ErrMagic, "magic", func(b []byte) []byte { b[0]++; return b }},
	{"binding schema", true, ErrSchema, "schema", func(b []byte) []byte { b[5] = 1; return b }},
	{"binding with more behind", true, ErrTrailing, "deadline", func(b []byte) []byte { return append(b, 0) }},
	{"binding without end", true, ErrTruncated, "deadline", func(b []byte) []byte { return b[:len(b)-1] }},
	{"binding negative deadline", true, ErrField, "deadline", func(b []byte) []byte { b[len(b)-1] = 0x80; return b }},
	{"binding long request", true, ErrLimit, "request", func(b []byte) []byte { b[6+16+2] = 1; return b }},
}

func TestRecordRefusals(t *testing.T) {
	lim := DefaultLimits()
	for _, tt := range recordRefusals {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			if tt.binding {
				_, err = DecodeBinding(tt.edit(testBinding().Encode()), &lim)
			} else {
				_, err = DecodeIdentity(tt.edit(testIdentity().Encode()), &lim)
			}
			wantRefusal(t, err, tt.want, tt.field)
		})
	}
}

// Every prefix is refused as truncated, never accepted and never a panic.
func TestRecordsTruncated(t *testing.T) {
	lim := DefaultLimits()
	id, b := testIdentity().Encode(), testBinding().Encode()
	for n := range id {
		if _, err := DecodeIdentity(id[:n], &lim); !errors.Is(err, ErrTruncated) {
			t.Fatalf("identity of %d bytes: %v", n, err)
		}
	}
	for n := range b {
		if _, err := DecodeBinding(b[:n], &lim); !errors.Is(err, ErrTruncated) {
			t.Fatalf("binding of %d bytes: %v", n, err)
		}
	}
}
