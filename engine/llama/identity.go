package llama

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/llama/blob"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/state"
)

// stateVersion numbers what this package makes of llama.cpp's blobs: which
// sections a page and a snapshot have, and what is normalised in them.
const stateVersion = 1

// identity is everything of this engine that changes the numerics or the
// meaning of its state. The build is named by its release: builds of one
// release differ in compiler and packaging, which Info.Backend stands for.
func identity(o *Options, file *model.Model, weights state.Digest) state.Identity {
	return state.Identity{
		Schema:         state.SchemaVersion,
		Weights:        weights,
		Tokenizer:      file.Tokenizer.Digest,
		Architecture:   file.Architecture,
		Layers:         uint32(file.LayerCount),
		Rope:           file.Rope,
		KVTypeK:        o.KVType,
		KVTypeV:        o.KVType,
		FlashAttention: true,
		SWAFull:        false,
		EngineBuild:    "llama.cpp v" + Version,
		EngineState:    stateVersion,
		Endian:         state.LittleEndian,
	}
}

// frame adds to each component the bytes that blobs put around its content, so
// that Component.Bytes is exact, and checks that the content is what the file's
// metadata promised. A difference means that one of the two was misread.
func frame(inv state.Inventory, s *blob.Schema) error {
	for i := range inv {
		c := &inv[i]
		if !c.Active() {
			continue
		}
		var perToken, fixed uint64 // of the payload, framing included
		switch c.Kind {
		case state.AttentionKV:
			perToken = uint64(s.PageBytes(2) - s.PageBytes(1))
			fixed = uint64(s.PageBytes(1)) - perToken
		case state.WindowKV:
			one, two := length(s, 1, c.Kind), length(s, 2, c.Kind)
			perToken, fixed = two-one, 2*one-two
			if least, most := s.WindowCells(1 << 30); int(c.WindowMin) != least || int(c.WindowMax) != most {
				return fmt.Errorf("llama: the window keeps %d or %d tokens, the file says %d to %d", least, most, c.WindowMin, c.WindowMax)
			}
		case state.Conv, state.Recurrent:
			fixed = length(s, 1, c.Kind)
		default:
			return fmt.Errorf("llama: no layout for %v", c.Kind)
		}
		if content := contentBytes(s, c.Kind); c.PerToken+c.Fixed != content {
			return fmt.Errorf("llama: %v has %d bytes of content, the file says %d", c.Kind, content, c.PerToken+c.Fixed)
		}
		c.FramePerToken = perToken - c.PerToken
		c.FrameFixed = fixed - c.Fixed
	}
	return nil
}

// length is the bytes of a component of a snapshot with that many window cells.
func length(s *blob.Schema, window int, kind state.Kind) uint64 {
	for _, c := range s.Components(window) {
		if c.Kind == kind {
			return uint64(c.Length)
		}
	}
	return 0
}

// contentBytes is the bytes of one cell of a component.
func contentBytes(s *blob.Schema, kind state.Kind) uint64 {
	var n uint64
	for _, list := range map[state.Kind][][]blob.Tensor{
		state.AttentionKV: {s.Base.K, s.Base.V},
		state.WindowKV:    {s.Window.K, s.Window.V},
		state.Conv:        {s.R},
		state.Recurrent:   {s.S},
	}[kind] {
		for _, t := range list {
			n += t.Row
		}
	}
	return n
}
