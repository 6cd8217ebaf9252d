package block_test

import (
	"testing"

	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
)

// Two sequences compute the same blocks at once, and the engine keeps both as they are: a
// mark that the second one wants is on what the first one stored, and is found.
func TestMarkFound(t *testing.T) {
	m, err := block.New(kv.Config{Blocks: 16, BlockTokens: 4, Align: 2, Marked: true, MarkBytes: 100, Fixed: true, Events: true})
	if err != nil {
		t.Fatal(err)
	}
	keys := kv.NewChain(kv.Salt{}, 4).Tokens(make([]int32, 24), nil)
	need := kv.Need{Tokens: 24, Keys: keys}
	first, _, _ := m.Start(need)
	second, cached, _ := m.Start(need)
	if cached != 0 {
		t.Fatalf("%d tokens are cached", cached)
	}
	m.Publish(first, 16, keys)
	m.Publish(second, 24, keys)
	if o := m.Mark(second, 16, 10); o != kv.Invalid {
		t.Fatalf("the second sequence's own blocks are found: %v", o)
	}
	for _, c := range []struct {
		name  string
		keys  []kv.Key
		bytes int64
		want  kv.Outcome
	}{
		{"none", nil, 10, kv.Invalid},
		{"no boundary", keys[:3], 10, kv.Invalid},
		{"not all are found", keys, 10, kv.Invalid},
		{"other ones", append([]kv.Key{{1}}, keys[:3]...), 10, kv.Invalid},
		{"no bytes", keys[:4], 0, kv.Invalid},
		{"more than all may have", keys[:4], 101, kv.LackMemory},
		{"a boundary", keys[:4], 60, kv.OK},
		{"once more", keys[:4], 60, kv.Duplicate},
		{"another, for which the first must go", keys[:2], 60, kv.OK},
		{"and back", keys[:4], 60, kv.OK},
	} {
		b, o := m.MarkFound(c.keys, c.bytes)
		if o != c.want {
			t.Errorf("%s: %v, want %v", c.name, o, c.want)
		}
		if o == kv.OK || o == kv.Duplicate {
			if want := m.Blocks(first, nil)[len(c.keys)-1]; b != want {
				t.Errorf("%s: block %d, want %d", c.name, b, want)
			}
		}
	}
	if s := m.Snapshot(); s.Marks != 60 {
		t.Errorf("%d bytes are marked", s.Marks)
	}
	m.Free(first)
	m.Free(second)
	if _, cached, _ := m.Start(need); cached != 16 {
		t.Errorf("%d tokens are cached", cached)
	}
}
