package sched_test

import (
	"fmt"

	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/kv"
	"github.com/tandem-llm/tandem/kv/block"
	"github.com/tandem-llm/tandem/sched"
)

// A colocated request and a held prefill on one engine. A real host computes the
// rows of each step between Plan and Done, and uses a notice's Seq to know where
// the state belongs.
func Example() {
	memory, err := block.New(kv.Config{Blocks: 64, BlockTokens: 16, Events: true})
	if err != nil {
		panic(err)
	}
	s, err := sched.New(sched.Config{Budget: 40, Page: 16, Running: 8, Headroom: 32}, memory)
	if err != nil {
		panic(err)
	}
	chat, long := handoff.ID{1}, handoff.ID{2}
	s.Submit(0, chat, sched.Request{Prompt: 10, MaxTokens: 3})
	s.Submit(0, long, sched.Request{Prompt: 50, MaxTokens: 100, Held: true})

	for !s.Idle() {
		step := s.Plan(0)
		for _, d := range step.Decodes {
			fmt.Printf("decode %d at %d\n", d.Ref, d.Pos)
		}
		for _, c := range step.Chunks {
			fmt.Printf("chunk of %d: %d to %d\n", c.Ref, c.First, c.End)
		}
		s.Done(0, sched.Results{})
		for _, n := range s.Notices(nil) {
			fmt.Printf("  %d %v, %d tokens\n", n.Ref, n.Kind, n.Tokens)
		}
	}
	s.Release(0, chat)
	fmt.Println(memory.Snapshot().Pinned, "blocks pinned, drained:", s.Drained())
	s.Release(0, long) // its reader is complete
	fmt.Println(memory.Snapshot().Free, "blocks free, drained:", s.Drained())
	// Output:
	// chunk of 0: 0 to 10
	// chunk of 1: 0 to 16
	//   0 admitted, 0 tokens
	//   1 admitted, 0 tokens
	// decode 0 at 10
	// chunk of 1: 16 to 50
	//   1 pinned, 50 tokens
	// decode 0 at 11
	//   0 finished, 3 tokens
	// 4 blocks pinned, drained: false
	// 64 blocks free, drained: true
}
