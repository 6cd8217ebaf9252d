package report

import "io"

// Result is the report of one run. Its JSON is the same bytes for the same run.
// It can be read back from that JSON.
type Result struct {
}

// Table writes the report for a terminal.
func (r *Result) Table(w io.Writer) error { return nil }

// HTML writes the report as one page that needs nothing else.
func (r *Result) HTML(w io.Writer) error { return nil }
