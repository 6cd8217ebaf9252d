package timed

// A ModelSpec describes a model's shape: all that the roofline needs.
type ModelSpec struct {
	// Name is what one writes in a configuration, such as "llama-3.1-8b".
	Name string `yaml:"name" json:"name"`
	// Source says where the shape was read.
	Source string `yaml:"source" json:"source"`
	// Hidden is the width of the residual stream, Vocab the number of tokens.
	Hidden int `yaml:"hidden" json:"hidden"`
	Vocab  int `yaml:"vocab" json:"vocab"`
	// Tied means that input and output embeddings are one matrix.
	Tied bool `yaml:"tied,omitempty" json:"tied,omitempty"`
	// Context is the longest sequence the model was made for.
	Context int `yaml:"context,omitempty" json:"context,omitempty"`
	// Blocks are the trunk's layers, in groups of equal ones; order does not matter.
	Blocks []Block `yaml:"blocks" json:"blocks"`
	// MTP are the multi-token-prediction layers, in use only with speculation.
	MTP []Block `yaml:"mtp,omitempty" json:"mtp,omitempty"`
}

// A Block is Count equal layers. Each has a mixer (at most one of Attention, MLA
// and Mamba) or a feed-forward part (at most one of Dense and MoE), or both.
type Block struct {
	Count     int        `yaml:"count" json:"count"`
	Attention *Attention `yaml:"attention,omitempty" json:"attention,omitempty"`
	MLA       *MLA       `yaml:"mla,omitempty" json:"mla,omitempty"`
	Mamba     *Mamba     `yaml:"mamba,omitempty" json:"mamba,omitempty"`
	Dense     *Dense     `yaml:"dense,omitempty" json:"dense,omitempty"`
	MoE       *MoE       `yaml:"moe,omitempty" json:"moe,omitempty"`
}

// Attention is grouped-query attention; with KVHeads equal to Heads it is
// multi-head attention.
type Attention struct {
	Heads   int `yaml:"heads" json:"heads"`
	KVHeads int `yaml:"kv_heads" json:"kv_heads"`
	HeadDim int `yaml:"head_dim" json:"head_dim"`
	// Window is how many tokens a token sees, itself included; 0 means all.
	Window int `yaml:"window,omitempty" json:"window,omitempty"`
	// Bias means that queries, keys and values have biases.
	Bias bool `yaml:"bias,omitempty" json:"bias,omitempty"`
}

// MLA is multi-head latent attention: one compressed row per token and layer.
type MLA struct {
	Heads int `yaml:"heads" json:"heads"`
	// QRank is the rank of the compressed queries, 0 if they are not compressed.
	QRank int `yaml:"q_rank,omitempty" json:"q_rank,omitempty"`
	// KVRank and RopeDim are the cached row; NopeDim and ValueDim the width per head.
	KVRank   int `yaml:"kv_rank" json:"kv_rank"`
	RopeDim  int `yaml:"rope_dim" json:"rope_dim"`
	NopeDim  int `yaml:"nope_dim" json:"nope_dim"`
	ValueDim int `yaml:"value_dim" json:"value_dim"`
}

// Mamba is a Mamba-2 mixer.
type Mamba struct {
	Heads   int `yaml:"heads" json:"heads"`
	HeadDim int `yaml:"head_dim" json:"head_dim"`
	State   int `yaml:"state" json:"state"`
	Groups  int `yaml:"groups" json:"groups"`
	Conv    int `yaml:"conv" json:"conv"`
}

// Dense is a feed-forward part of that width; Gated ones have three matrices,
// others two.
type Dense struct {
	Width int  `yaml:"width" json:"width"`
	Gated bool `yaml:"gated,omitempty" json:"gated,omitempty"`
}

// MoE is a mixture of experts.
type MoE struct {
	Experts int `yaml:"experts" json:"experts"`
	TopK    int `yaml:"top_k" json:"top_k"`
	Width   int `yaml:"width" json:"width"`
	// SharedWidth is the width of all shared experts together, 0 without.
	SharedWidth int `yaml:"shared_width,omitempty" json:"shared_width,omitempty"`
	// Latent is the width that routed experts work on, 0 if that is the model's own.
	Latent int  `yaml:"latent,omitempty" json:"latent,omitempty"`
	Gated  bool `yaml:"gated,omitempty" json:"gated,omitempty"`
}

// A HardwareSpec describes one device.
type HardwareSpec struct {
	// Name is what one writes in a configuration, such as "h100-sxm".
	Name string `yaml:"name" json:"name"`
	// Source says where the numbers were read.
	Source string `yaml:"source" json:"source"`
	// Dense peak rates in 10^12 operations a second; 0 where the device has none.
	BF16TFLOPS float64 `yaml:"bf16_tflops" json:"bf16_tflops"`
	FP8TFLOPS  float64 `yaml:"fp8_tflops,omitempty" json:"fp8_tflops,omitempty"`
	FP4TFLOPS  float64 `yaml:"fp4_tflops,omitempty" json:"fp4_tflops,omitempty"`
	// GBps is memory bandwidth in 10^9 bytes a second, MemoryGB its size in 10^9 bytes.
	GBps     float64 `yaml:"gbps" json:"gbps"`
	MemoryGB float64 `yaml:"memory_gb" json:"memory_gb"`
	// LinkGBps is what one device sends to its neighbours at a time, one way, in
	// 10^9 bytes a second; 0 if it has no such link.
	LinkGBps float64 `yaml:"link_gbps,omitempty" json:"link_gbps,omitempty"`
	// The parts of the peak rates that engines reach: compute in prompts and in
	// decodes, and memory bandwidth. EfficiencySource says where they come from.
	PrefillMFU       float64 `yaml:"prefill_mfu" json:"prefill_mfu"`
	DecodeMFU        float64 `yaml:"decode_mfu" json:"decode_mfu"`
	MBU              float64 `yaml:"mbu" json:"mbu"`
	EfficiencySource string  `yaml:"efficiency_source,omitempty" json:"efficiency_source,omitempty"`
}

// Common are the options of every kind of model.
type Common struct {
	// Geometry is the size of a sequence's state. The roofline computes it instead.
	Geometry Geometry `yaml:"geometry,omitempty" json:"geometry,omitzero"`
	// Moves are the costs of exports and imports. For the roofline, rates of 0 are
	// one pass over the bytes at the memory's speed.
	Moves Moves `yaml:"moves,omitempty" json:"moves,omitzero"`
	// Speculation is how many tokens a step yields; nil means one.
	Speculation *Speculation `yaml:"speculation,omitempty" json:"speculation,omitempty"`
	// MaxDecodes is the largest batch to make tables for; 0 means
	// DefaultMaxDecodes, 8192 is the most.
	MaxDecodes int `yaml:"max_decodes,omitempty" json:"max_decodes,omitempty"`
}

// Options are how the roofline's model runs on its hardware.
type Options struct {
	Common `yaml:",inline"`
	// TP is the number of tensor-parallel ways; 0 means 1.
	TP int `yaml:"tp,omitempty" json:"tp,omitempty"`
	// WeightBits is bits per weight (4.82 for llama.cpp's Q4_K_M), KVBits per
	// element of attention state (8.5 for q8_0); 0 means 16. RecurrentBits and
	// ConvBits are the same for recurrent and convolution state; 0 means 32 and 16.
	WeightBits    float64 `yaml:"weight_bits,omitempty" json:"weight_bits,omitempty"`
	KVBits        float64 `yaml:"kv_bits,omitempty" json:"kv_bits,omitempty"`
	RecurrentBits float64 `yaml:"recurrent_bits,omitempty" json:"recurrent_bits,omitempty"`
	ConvBits      float64 `yaml:"conv_bits,omitempty" json:"conv_bits,omitempty"`
	// Compute is the type of the matrix products: "bf16" (default), "fp8" or "fp4".
	Compute string `yaml:"compute,omitempty" json:"compute,omitempty"`
	// PrefillMFU, DecodeMFU, MBU and LinkGBps replace the hardware's when not 0.
	PrefillMFU float64 `yaml:"prefill_mfu,omitempty" json:"prefill_mfu,omitempty"`
	DecodeMFU  float64 `yaml:"decode_mfu,omitempty" json:"decode_mfu,omitempty"`
	MBU        float64 `yaml:"mbu,omitempty" json:"mbu,omitempty"`
	LinkGBps   float64 `yaml:"link_gbps,omitempty" json:"link_gbps,omitempty"`
	// StepUS and LayerUS are microseconds that each step, and each layer in it,
	// takes beside its work; AllReduceUS the latency of one all-reduce.
	StepUS      float64 `yaml:"step_us,omitempty" json:"step_us,omitempty"`
	LayerUS     float64 `yaml:"layer_us,omitempty" json:"layer_us,omitempty"`
	AllReduceUS float64 `yaml:"all_reduce_us,omitempty" json:"all_reduce_us,omitempty"`
}
