package timed

import (
	"fmt"
	"strings"
)

// Where numbers of hardware were read. Rates are those of vendors' data sheets,
// dense, as these projects keep them.
const (
	aiSystems = "ai-dynamo/aiconfigurator 095f58a, systems/"
	blisMFU   = "MFU: inference-sim/inference-sim f90a1e3, hardware_config.json. "
	aiMBU     = "MBU: aiconfigurator's mem_bw_empirical_scaling_factor"
	noMFU     = "MFU: not measured, taken from H100. "
)

// Hardwares lists the built-in descriptions of hardware, in a fixed order.
func Hardwares() []HardwareSpec {
	return []HardwareSpec{
		{Name: "h100-sxm", Source: aiSystems + "h100_sxm.yaml",
			BF16TFLOPS: 989, FP8TFLOPS: 1978, GBps: 3350, MemoryGB: 85.899, LinkGBps: 450,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: blisMFU + aiMBU},
		{Name: "h100-pcie", Source: aiSystems + "h100_pcie.yaml",
			BF16TFLOPS: 756.5, FP8TFLOPS: 1513, GBps: 2000, MemoryGB: 85.899, LinkGBps: 64,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "h200-sxm", Source: aiSystems + "h200_sxm.yaml",
			BF16TFLOPS: 989, FP8TFLOPS: 1978, GBps: 4800, MemoryGB: 151.397, LinkGBps: 450,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "a100-80gb", Source: aiSystems + "a100_sxm.yaml",
			BF16TFLOPS: 312, GBps: 2039, MemoryGB: 85.899, LinkGBps: 300,
			PrefillMFU: 0.38, DecodeMFU: 0.18, MBU: 0.8, EfficiencySource: blisMFU + aiMBU},
		{Name: "b200-sxm", Source: aiSystems + "b200_sxm.yaml",
			BF16TFLOPS: 2250, FP8TFLOPS: 4500, FP4TFLOPS: 9000, GBps: 7700, MemoryGB: 193.273, LinkGBps: 900,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "gb200", Source: aiSystems + "gb200.yaml",
			BF16TFLOPS: 2500, FP8TFLOPS: 5000, FP4TFLOPS: 10000, GBps: 8000, MemoryGB: 198.674, LinkGBps: 900,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "b300-sxm", Source: aiSystems + "b300_sxm.yaml",
			BF16TFLOPS: 2250, FP8TFLOPS: 4500, FP4TFLOPS: 14000, GBps: 7750, MemoryGB: 288.400, LinkGBps: 900,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "l40s", Source: aiSystems + "l40s.yaml",
			BF16TFLOPS: 362.05, FP8TFLOPS: 733, GBps: 864, MemoryGB: 48.306, LinkGBps: 32,
			PrefillMFU: 0.32, DecodeMFU: 0.08, MBU: 0.8, EfficiencySource: blisMFU + aiMBU},
		{Name: "rtx-pro-6000", Source: aiSystems + "rtx_pro_6000_server.yaml",
			BF16TFLOPS: 467.8, FP8TFLOPS: 935.6, FP4TFLOPS: 1871.2, GBps: 1792, MemoryGB: 102.642, LinkGBps: 64,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: noMFU + aiMBU},
		{Name: "rtx-4090", Source: "NVIDIA's Ada white paper as quoted by waredb.com/processor/nvidia-geforce-rtx-4090; no link between cards is assumed",
			BF16TFLOPS: 165.15, FP8TFLOPS: 330.3, GBps: 1008, MemoryGB: 24,
			PrefillMFU: 0.32, DecodeMFU: 0.08, MBU: 0.8, EfficiencySource: "not measured, taken from L40S, the same architecture"},
		{Name: "mi300x", Source: "AMD's data sheet as quoted by alpharomercoma/MI300X-vs-H200, METHODOLOGY.md; memory: mlcommons/inference_results_v4.1, closed/AMD/systems; link: seven of 64 GB/s each way",
			BF16TFLOPS: 1307.4, FP8TFLOPS: 2614.9, GBps: 5300, MemoryGB: 192, LinkGBps: 448,
			PrefillMFU: 0.45, DecodeMFU: 0.30, MBU: 0.8, EfficiencySource: "not measured, taken from H100"},
		{Name: "m1-ultra", Source: "64-core GPU; 21.2 TFLOPS: cpu-monkey.com; 800 GB/s and 128 GB: Apple",
			BF16TFLOPS: 21.2, GBps: 800, MemoryGB: 128,
			PrefillMFU: 0.57, DecodeMFU: 0.57, MBU: 0.75,
			EfficiencySource: "prompts: 2142.59 tokens/s of Llama-3.2-3B Q4_K_M, geerlingguy/ai-benchmarks issue 48; MBU not measured, taken from M3 Ultra; decode MFU not measured"},
		{Name: "m3-ultra", Source: "80-core GPU; 819 GB/s: Apple; about 28.4 TFLOPS: not published, from cores × 128 ALUs × 2 × clock; memory from 96 to 512 GB",
			BF16TFLOPS: 28.4, GBps: 819, MemoryGB: 256,
			PrefillMFU: 0.78, DecodeMFU: 0.78, MBU: 0.75,
			EfficiencySource: "162.30 tokens/s of prompt and 14.41 of decode of Llama-3.3-70B Q4_K_M, geerlingguy/beowulf-ai-cluster issue 17; decode MFU not measured"},
	}
}

// FindHardware returns the built-in description of that name.
func FindHardware(name string) (*HardwareSpec, error) {
	var names []string
	for _, h := range Hardwares() {
		if h.Name == name {
			return &h, nil
		}
		names = append(names, h.Name)
	}
	return nil, fmt.Errorf("timed: no hardware %q is built in; there are %s", name, strings.Join(names, ", "))
}

// String describes the hardware in a line.
func (h *HardwareSpec) String() string {
	return fmt.Sprintf("%s: %g TFLOP/s bf16, %g GB/s, %g GB, link %g GB/s", h.Name, h.BF16TFLOPS, h.GBps, h.MemoryGB, h.LinkGBps)
}
