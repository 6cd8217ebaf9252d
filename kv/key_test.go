package kv_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kv"
)

// Keys depend on everything before them, on the tenant and on the block's size,
// and not on how the tokens came.
func TestChain(t *testing.T) {
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	keys := func(tenant string, size int, pieces ...[]int32) (all []kv.Key) {
		c := kv.NewChain(kv.SaltFor([]byte("secret"), tenant), size)
		for _, p := range pieces {
			all = c.Tokens(p, all)
		}
		return all
	}
	whole := keys("a", 2, tokens)
	if len(whole) != 4 || slices.Contains(whole, kv.Key{}) {
		t.Fatalf("%d keys, want 4 that are not zero", len(whole))
	}
	if in := keys("a", 2, tokens[:1], tokens[1:4], nil, tokens[4:]); !slices.Equal(in, whole) {
		t.Error("keys depend on how the tokens came")
	}
	tests := []struct {
		name string
		keys []kv.Key
		same int // leading keys that are equal
	}{
		{"the same again", keys("a", 2, tokens), 4},
		{"a longer prompt", keys("a", 2, tokens, tokens), 4},
		{"a token in the third block", keys("a", 2, []int32{1, 2, 3, 4, 5, 7, 7, 8}), 2},
		{"the first token", keys("a", 2, []int32{2, 2, 3, 4, 5, 6, 7, 8}), 0},
		{"the same block after another", keys("a", 2, tokens[2:]), 0},
		{"another tenant", keys("b", 2, tokens), 0},
		{"another size", keys("a", 4, tokens), 0},
	}
	for _, test := range tests {
		same := 0
		for same < min(len(whole), len(test.keys)) && whole[same] == test.keys[same] {
			same++
		}
		equal := slices.ContainsFunc(whole[same:], func(k kv.Key) bool { return slices.Contains(test.keys, k) })
		if same != test.same || equal {
			t.Errorf("%s: %d equal leading keys, want %d; equal later ones: %v", test.name, same, test.same, equal)
		}
	}
	if kv.SaltFor([]byte("ab"), "c") == kv.SaltFor([]byte("a"), "bc") {
		t.Error("the salt does not separate secret and tenant")
	}
}

// Ids of a trace chain like tokens.
func TestChainOfIDs(t *testing.T) {
	keys := func(ids ...uint64) []kv.Key { return kv.NewChain(kv.Salt{}, 512).IDs(ids, nil) }
	a, b := keys(1, 2, 3), keys(1, 2, 4)
	if a[0] != b[0] || a[1] != b[1] || a[2] == b[2] || keys(2, 2)[1] == a[1] || keys(1, 1)[0] == keys(1, 1)[1] {
		t.Error("keys of ids are not chained")
	}
	one := kv.NewChain(kv.Salt{}, 512)
	if again := one.IDs([]uint64{2, 3}, one.IDs([]uint64{1}, nil)); !slices.Equal(again, a) {
		t.Error("keys depend on how the ids came")
	}
}

// A chain allocates nothing once it is made.
func TestChainDoesNotAllocate(t *testing.T) {
	c := kv.NewChain(kv.Salt{}, 16)
	tokens, keys := make([]int32, 160), make([]kv.Key, 0, 16)
	if n := testing.AllocsPerRun(100, func() { keys = c.Tokens(tokens, keys[:0]) }); n != 0 || len(keys) != 10 {
		t.Errorf("%v allocations, %d keys", n, len(keys))
	}
}

func TestNames(t *testing.T) {
	for o := kv.Outcome(0); o <= kv.Busy; o++ {
		if s := o.String(); s == "" || s == kv.Outcome(200).String() {
			t.Errorf("outcome %d has no name", o)
		}
		if want := o == kv.LackMemory || o == kv.LackSlots || o == kv.LackHeadroom; o.Lacks() != want {
			t.Errorf("%v lacks: %v", o, !want)
		}
	}
	for k := kv.EventKind(0); k <= kv.Unmarked; k++ {
		if s := k.String(); s == "" || s == kv.EventKind(200).String() {
			t.Errorf("event %d has no name", k)
		}
	}
}

func BenchmarkChain(b *testing.B) {
	for _, size := range []int{16, 64, 512} {
		b.Run(fmt.Sprintf("block=%d", size), func(b *testing.B) {
			c := kv.NewChain(kv.Salt{}, size)
			tokens, keys := make([]int32, size), make([]kv.Key, 0, 1)
			b.ReportAllocs()
			for b.Loop() {
				keys = c.Tokens(tokens, keys[:0])
			}
		})
	}
}
