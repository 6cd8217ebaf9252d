package tiny

// The shape of expert layers.
const (
	experts     = 8
	expertsUsed = 2
	expertFFN   = 48
	sharedFFN   = 64
)

// nemotronLayers is the order of layers: M recurrent, E experts, * attention.
// One multi-token-prediction block follows them.
const nemotronLayers = "ME*MEM*E"

func (b *builder) nemotron() {
	const a, n = "nemotron_h_moe", len(nemotronLayers)
	kv := make([]uint32, n+1)
	ff := make([]uint32, n+1)
	for i, kind := range nemotronLayers {
		switch kind {
		case '*':
			kv[i] = headsKV
		case 'E':
			ff[i] = expertFFN
		}
	}
	kv[n], ff[n] = headsKV, expertFFN
	b.general(NemotronHMoE, n+1)
	b.w.Uint32(a+".nextn_predict_layers", 1)
	b.w.Uint32s(a+".feed_forward_length", ff)
	b.attentionKeys(a)
	b.w.Uint32s(a+".attention.head_count_kv", kv)
	b.w.Float32(a+".attention.layer_norm_epsilon", 1e-5)
	b.w.Float32(a+".attention.layer_norm_rms_epsilon", 1e-5)
	b.ssmKeys(a)
	b.w.Uint32(a+".expert_count", experts)
	b.w.Uint32(a+".expert_used_count", expertsUsed)
	b.w.Uint32(a+".expert_feed_forward_length", expertFFN)
	b.w.Uint32(a+".expert_shared_feed_forward_length", sharedFFN)
	b.w.Uint32(a+".expert_shared_count", 1)
	b.w.Bool(a+".expert_weights_norm", true)
	b.w.Float32(a+".expert_weights_scale", 1)
	b.w.Uint32(a+".expert_group_count", 1)
	voc := b.tokenizer()
	b.embedding(1)
	for i, kind := range nemotronLayers {
		switch kind {
		case 'M':
			if i == 0 {
				b.recentSSM(i, 1)
			} else {
				b.ssm(i, 1.2)
			}
		case '*':
			b.norm(i, "attn_norm.weight")
			b.attention(i, 1.2)
		case 'E':
			b.norm(i, "attn_norm.weight")
			b.moe(i, 1)
		}
	}
	b.norm(n, "nextn.enorm.weight")
	b.norm(n, "nextn.hnorm.weight")
	b.put(blk(n, "nextn.eh_proj.weight"), b.matrix(blk(n, "nextn.eh_proj.weight"), 1, 2*embd, embd), 2*embd, embd)
	b.norm(n, "nextn.shared_head_norm.weight")
	b.norm(n, "attn_norm.weight")
	b.attention(n, 1)
	b.norm(n, "post_attention_norm.weight")
	b.moe(n, 1)
	b.head(voc)
}

// moe writes a mixture of experts with a shared one.
func (b *builder) moe(i int, res float64) {
	gate := b.reader(blk(i, "ffn_gate_inp.weight"), 1, experts)
	b.vector(blk(i, "ffn_gate_inp.weight"), len(gate), func(k int) float32 { return gate[k] }, embd, experts)
	b.vector(blk(i, "exp_probs_b.bias"), experts, constant(0))
	b.put(blk(i, "ffn_down_exps.weight"), b.writer(blk(i, "ffn_down_exps.weight"), res, expertFFN, experts), expertFFN, embd, experts)
	b.put(blk(i, "ffn_up_exps.weight"), b.reader(blk(i, "ffn_up_exps.weight"), 1, expertFFN*experts), embd, expertFFN, experts)
	b.put(blk(i, "ffn_down_shexp.weight"), b.writer(blk(i, "ffn_down_shexp.weight"), res, sharedFFN, 1), sharedFFN, embd)
	b.put(blk(i, "ffn_up_shexp.weight"), b.reader(blk(i, "ffn_up_shexp.weight"), 1, sharedFFN), embd, sharedFFN)
}
