package llama

import "github.com/tandem-llm/tandem/engine/llama/blob"

// Schema is the layout of this context's state payloads, nil when its state
// cannot be handed off. It is immutable and may be shared. It is meant for
// inspection and verification, which look at single tensors of a payload.
func (e *Engine) Schema() *blob.Schema { return e.schema }
