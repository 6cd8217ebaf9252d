package verify

import (
	"encoding/json"
	"io"
	"time"

	"github.com/tandem-llm/tandem/pair"
)

// ReportSchema is the version of a Report's JSON. It grows when a field changes its meaning.
const ReportSchema = 1

// Status is how a cell ended.
type Status string

// The statuses.
const (
	Passed        Status = "passed"
	Explained     Status = "explained" // tokens differ, and a control run of the same layout gives the same bits
	Failed        Status = "failed"
	Skipped       Status = "skipped"        // does not fit this machine, this model or the given limits
	NotBuilt      Status = "not built"      // a later version of Tandem will have it
	NotApplicable Status = "not applicable" // this family has nothing to test there
	Unfinished    Status = "unfinished"     // the run was interrupted before or in it
)

// Kind is what a cell is about.
type Kind string

// The kinds.
const (
	KindImport   Kind = "import"   // a sequence continues in the other process
	KindRefusal  Kind = "refusal"  // damage is refused, and leaves nothing behind
	KindResource Kind = "resource" // what processes own after all of it
	KindLater    Kind = "later"    // not built yet
)

// Result is one cell of a report.
type Result struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Params are those of an import cell.
	Params *Params `json:"params,omitempty"`
	Status Status  `json:"status"`
	// Reason says why, wherever the status is not plain "passed".
	Reason string `json:"reason,omitempty"`
	// Compared says what the status stands on.
	Compared *Compared `json:"compared,omitempty"`
	// Timings are those of the cell's handoff.
	Timings *Timings `json:"timings,omitempty"`
	// Took is the cell's wall time in seconds, its share of prefills excluded.
	Took float64 `json:"took_s"`
}

// Compared is what an import cell compared.
type Compared struct {
	// StateBytes is the length of the canonical state that was equal on both sides.
	StateBytes int `json:"state_bytes"`
	// Steps and Tokens are how many steps were decoded on each side, and how many tokens were equal from
	// the first on.
	Steps  int `json:"steps"`
	Tokens int `json:"tokens"`
	// BitEqual is how many steps had equal logits, from the first on; Controlled says that all had to.
	BitEqual   int  `json:"bit_equal"`
	Controlled bool `json:"controlled"`
	// FinalState says that the state after the last step was equal too.
	FinalState bool `json:"final_state"`
	// Control is "" where no control run was needed, "equal" where it gave the destination's bits, else
	// "differs".
	Control string `json:"control,omitempty"`
	// Margin is by how much the reference preferred its token, in the step at which the tokens part.
	Margin float32 `json:"margin,omitempty"`
}

// Timings are a handoff's, in milliseconds; see pair.Moved.
type Timings struct {
	Bytes  int64   `json:"bytes"`
	Units  int     `json:"units"`
	Total  float64 `json:"total_ms"`
	Export float64 `json:"export_ms"`
	Seal   float64 `json:"seal_ms"`
	Hash   float64 `json:"hash_ms"`
	Import float64 `json:"import_ms"`
	Tail   float64 `json:"tail_ms"`
}

func timings(m *pair.Moved) *Timings {
	return &Timings{
		Bytes: m.Bytes, Units: m.Units, Total: ms(m.Total), Export: ms(m.Export), Seal: ms(m.Seal),
		Hash: ms(m.Received.Hash), Import: ms(m.Received.Import), Tail: ms(m.Tail),
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Model says which model was verified.
type Model struct {
	// File is the name of the file without its directory, Description what the engine calls it.
	File         string `json:"file"`
	Description  string `json:"description"`
	Architecture string `json:"architecture"`
	Family       string `json:"family"`
	Layers       int    `json:"layers"`
	// Weights and Tokenizer are digests of the model file and its vocabulary, in hexadecimal.
	Weights   string `json:"weights"`
	Tokenizer string `json:"tokenizer"`
}

// Side is one process.
type Side struct {
	Backend string `json:"backend"`
	Build   string `json:"build"`
	Threads int    `json:"threads"`
}

// Cap is a bound on prompt lengths, and why.
type Cap struct {
	Tokens int    `json:"tokens"`
	Reason string `json:"reason"`
}

// Report is what Run found.
type Report struct {
	Schema  int       `json:"schema"`
	Tandem  string    `json:"tandem"`
	Started time.Time `json:"started"`
	Took    float64   `json:"took_s"`

	Model       Model `json:"model"`
	Source      Side  `json:"source"`
	Destination Side  `json:"destination"`
	// Identities are what two workers must share, one for each KV type that was verified.
	Identities []Identity `json:"identities"`
	// OtherThreads is the destination's number of threads in cells of that name, 0 without such cells.
	OtherThreads int `json:"other_threads,omitempty"`

	// Quick, Match, Steps, Seed, KVTypes, Lanes and Lengths are what was asked for.
	Quick   bool     `json:"quick"`
	Match   string   `json:"match,omitempty"`
	Steps   int      `json:"steps"`
	Seed    uint64   `json:"seed"`
	KVTypes []string `json:"kv_types"`
	Lanes   []string `json:"lanes"`
	Lengths []int    `json:"lengths"`

	Caps  []Cap    `json:"caps,omitempty"`
	Cells []Result `json:"cells"`
	// Counts are the cells by status.
	Counts map[Status]int `json:"counts"`
	// Interrupted says that the run ended before its plan.
	Interrupted bool `json:"interrupted,omitempty"`
}

// OK reports whether the run reached its end, something passed, and nothing failed.
func (r *Report) OK() bool {
	return !r.Interrupted && r.Counts[Failed] == 0 && r.Counts[Unfinished] == 0 && r.Counts[Passed] > 0
}

// count fills in Counts.
func (r *Report) count() {
	r.Counts = map[Status]int{}
	for i := range r.Cells {
		r.Counts[r.Cells[i].Status]++
	}
}

// WriteJSON writes reports as one indented JSON document: an array.
func WriteJSON(w io.Writer, reports []*Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(reports)
}
