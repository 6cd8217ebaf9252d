package report

import "github.com/tandem-llm/tandem/handoff"

// Schema names the format of a Result's JSON. Fields may be added under the same
// name; none changes its meaning.
const Schema = "tandem-replay-report/1"

// Result is the report of one run. Its JSON is the same bytes for the same run,
// and can be read back. docs/replay-report.md defines every figure.
type Result struct {
	Schema   string    `json:"schema"`
	Title    string    `json:"title"`
	Settings []Setting `json:"settings"`

	End    Seconds `json:"end_s"`    // virtual time when the run ended
	First  Seconds `json:"first_s"`  // first arrival of a measured request
	Last   Seconds `json:"last_s"`   // end of the last one
	Period Seconds `json:"period_s"` // Last - First: what rates are over

	Requests   Requests   `json:"requests"`
	Latency    Latencies  `json:"latency"`
	Throughput Throughput `json:"throughput"`
	Goodput    Goodput    `json:"goodput"`
	Cache      Cache      `json:"cache"`
	Handoffs   Handoffs   `json:"handoffs"`
	Pools      []PoolUse  `json:"pools"`
	Counts     []Count    `json:"counts"` // in the order of name and reason
	Charts     *Charts    `json:"charts,omitempty"`
}

// Requests says how requests ended. Outside ones count nowhere else.
type Requests struct {
	Measured  int64 `json:"measured"`
	Outside   int64 `json:"outside"` // arrived outside of the measured time
	Completed int64 `json:"completed"`
	Cancelled int64 `json:"cancelled"`
	TimedOut  int64 `json:"timed_out"`
	Refused   int64 `json:"refused"`
	Failed    int64 `json:"failed"`

	InputTokens  int64 `json:"input_tokens"`  // of all measured ones
	OutputTokens int64 `json:"output_tokens"` // that came

	Retried     int64 `json:"retried"` // requests with a second attempt
	Retries     int64 `json:"retries"`
	Preempted   int64 `json:"preempted"` // requests that were preempted
	Preemptions int64 `json:"preemptions"`

	ByPolicy []PolicyCount `json:"by_policy"`
}

// PolicyCount is how many measured requests were served under a policy.
type PolicyCount struct {
	Policy   handoff.Policy `json:"policy"`
	Requests int64          `json:"requests"`
}

// Latencies are those of the measured requests that completed; ITL is of all
// tokens of the whole run.
type Latencies struct {
	TTFT Latency `json:"ttft"`
	TTST Latency `json:"ttst"`
	TPOT Latency `json:"tpot"`
	ITL  Latency `json:"itl"`
	E2E  Latency `json:"e2e"`
}

// Latency is one distribution. Percentiles are nearest-rank: the least value
// that at least that share of all values do not exceed. Where they are not
// exact they come from buckets of 0.1 % (handoffs: 0.4 %), exactly where a bucket
// saw one value; N, Mean, Min and Max always are exact.
type Latency struct {
	N     int64   `json:"n"`
	Exact bool    `json:"exact"`
	Mean  Seconds `json:"mean_s"`
	Min   Seconds `json:"min_s"`
	P50   Seconds `json:"p50_s"`
	P75   Seconds `json:"p75_s"`
	P90   Seconds `json:"p90_s"`
	P95   Seconds `json:"p95_s"`
	P99   Seconds `json:"p99_s"`
	P999  Seconds `json:"p999_s"`
	Max   Seconds `json:"max_s"`
}

// Throughput is over the period, good or not.
type Throughput struct {
	Offered      Number `json:"offered_requests_per_s"` // arrivals, over the time in which they came
	Requests     Number `json:"requests_per_s"`         // completed
	InputTokens  Number `json:"input_tokens_per_s"`
	OutputTokens Number `json:"output_tokens_per_s"`
}

// Goodput is what was served within the SLO.
type Goodput struct {
	SLO        SLOResult `json:"slo"`
	Good       int64     `json:"good"`       // requests
	Attainment Number    `json:"attainment"` // good of measured
	Met        bool      `json:"met"`        // attainment reaches the SLO's
	WithinTTFT Number    `json:"within_ttft"`
	WithinTTST Number    `json:"within_ttst"`
	WithinTPOT Number    `json:"within_tpot"`
	WithinE2E  Number    `json:"within_e2e"`

	Requests       Number `json:"requests_per_s"`
	OutputTokens   Number `json:"output_tokens_per_s"`
	Accelerators   int    `json:"accelerators"`
	PerAccelerator Number `json:"requests_per_s_per_accelerator"` // 0 without accelerators
}

// SLOResult is the SLO as the report shows it; 0 is no limit.
type SLOResult struct {
	TTFT       Seconds `json:"ttft_s"`
	TTST       Seconds `json:"ttst_s"`
	TPOT       Seconds `json:"tpot_s"`
	E2E        Seconds `json:"e2e_s"`
	Attainment Number  `json:"attainment"`
}

// Cache says how much of the prompts of measured requests was found.
type Cache struct {
	SourceTokens      int64  `json:"source_tokens"`
	SourceShare       Number `json:"source_share"` // of input tokens
	SourceRequests    int64  `json:"source_requests"`
	DestinationTokens int64  `json:"destination_tokens"`
	DestinationShare  Number `json:"destination_share"` // of input tokens of handed-off requests
}

// Handoffs says where the time of handoffs of measured requests went.
type Handoffs struct {
	N             int64  `json:"n"`
	Bytes         int64  `json:"bytes"`
	SkippedTokens int64  `json:"skipped_tokens"`
	Hidden        Number `json:"hidden_share"` // of the time that transfers take: overlapped / (overlapped + tail)

	Reserve    Latency `json:"reserve"`
	Queue      Latency `json:"queue"`
	Prefill    Latency `json:"prefill"`
	Export     Latency `json:"export"`
	Wire       Latency `json:"wire"`
	Import     Latency `json:"import"`
	Commit     Latency `json:"commit"`
	Overlapped Latency `json:"overlapped"`
	Tail       Latency `json:"tail"`
}

// PoolUse is the memory and utilisation of one pool over the whole run.
type PoolUse struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Workers    int    `json:"workers"`
	Blocks     int    `json:"blocks"` // of each worker
	BlockBytes int64  `json:"block_bytes"`

	Busy      Number `json:"busy"` // shares of the time that its workers were up
	Prefill   Number `json:"busy_prefill"`
	Decode    Number `json:"busy_decode"`
	Mixed     Number `json:"busy_mixed"`
	Transfer  Number `json:"busy_transfer"`
	LeastBusy Number `json:"least_busy"` // of one worker
	MostBusy  Number `json:"most_busy"`
	Down      Number `json:"down"` // share of all time

	Active   Number `json:"active"` // mean shares of all blocks
	Pinned   Number `json:"pinned"`
	Reserved Number `json:"reserved"`
	Cached   Number `json:"cached"`
	Free     Number `json:"free"`

	PeakUsed     int `json:"peak_used_blocks"` // of one worker
	PeakPinned   int `json:"peak_pinned_blocks"`
	PeakReserved int `json:"peak_reserved_blocks"`

	PinnedByteSeconds   Number `json:"pinned_byte_s"`
	ReservedByteSeconds Number `json:"reserved_byte_s"`
	StrandedByteSeconds Number `json:"stranded_byte_s"` // pinned and reserved
}

// Count is how often something happened for a reason.
type Count struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	N      int64  `json:"n"`
}

// Charts is what the page draws. All series over time have one value per bucket
// of Width, from time 0.
type Charts struct {
	Width Seconds `json:"width_s"`

	Arrivals  []Number `json:"arrivals_per_s"`
	Completed []Number `json:"completed_per_s"`
	Good      []Number `json:"good_per_s"`
	Output    []Number `json:"output_tokens_per_s"`
	Waiting   []Number `json:"waiting"`  // requests without a first token, mean
	Decoding  []Number `json:"decoding"` // requests after their first token, mean

	// TTFT by time of arrival, of completed requests; 0 where none arrived.
	TTFT50 []Number `json:"ttft_p50_s"`
	TTFT90 []Number `json:"ttft_p90_s"`
	TTFT99 []Number `json:"ttft_p99_s"`

	Pools []PoolChart `json:"pools"`

	TTFT *CDF `json:"ttft,omitempty"`
	TTST *CDF `json:"ttst,omitempty"`
	TPOT *CDF `json:"tpot,omitempty"`
	ITL  *CDF `json:"itl,omitempty"`
	E2E  *CDF `json:"e2e,omitempty"`
}

// PoolChart is one pool over time: shares of its blocks, and of its workers'
// time.
type PoolChart struct {
	Name     string   `json:"name"`
	Active   []Number `json:"active"`
	Pinned   []Number `json:"pinned"`
	Reserved []Number `json:"reserved"`
	Cached   []Number `json:"cached"`
	Free     []Number `json:"free"`
	Prefill  []Number `json:"busy_prefill"`
	Decode   []Number `json:"busy_decode"`
	Mixed    []Number `json:"busy_mixed"`
	Transfer []Number `json:"busy_transfer"`
}

// CDF is a cumulative distribution: the share of values that do not exceed a
// value. Points between two equal values are left out.
type CDF struct {
	Shares []Number  `json:"shares"`
	Values []Seconds `json:"values_s"`
}
