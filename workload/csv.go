package workload

import (
	"bytes"
	"fmt"
	"strings"
)

// table says what a format's columns are called.
type table struct {
	format                 Format
	arrival, input, output string
	date                   bool // the arrival is a point of time, not seconds
}

var tables = []table{
	{Azure, "TIMESTAMP", "ContextTokens", "GeneratedTokens", true},
	{BurstGPT, "Timestamp", "Request tokens", "Response tokens", false},
}

// csvParser reads lines of comma-separated values, whose columns the header
// names.
type csvParser struct {
	table                  table
	arrival, input, output int // columns
}

// newCSV reads the header. With Auto it takes the format whose columns are all
// there.
func newCSV(header []byte, format Format) (*csvParser, error) {
	for _, t := range tables {
		if format != Auto && format != t.format {
			continue
		}
		p := &csvParser{table: t, arrival: -1, input: -1, output: -1}
		column := 0
		for rest := header; rest != nil; column++ {
			var name []byte
			name, rest = cell(rest)
			switch string(name) {
			case t.arrival:
				p.arrival = column
			case t.input:
				p.input = column
			case t.output:
				p.output = column
			}
		}
		if p.arrival >= 0 && p.input >= 0 && p.output >= 0 {
			return p, nil
		}
		if format == t.format {
			return nil, fmt.Errorf("workload: %w: %s needs a first line with the columns %s", ErrFormat, format,
				strings.Join([]string{t.arrival, t.input, t.output}, ", "))
		}
	}
	return nil, fmt.Errorf("workload: %w: the first line is neither a JSON object nor a header of Azure's or BurstGPT's CSV", ErrFormat)
}

// cell splits off the first value of a line. rest is nil after the last one.
// Quotes around a value are dropped; values with commas in them are not part
// of any format here.
func cell(line []byte) (value, rest []byte) {
	value, rest, found := bytes.Cut(line, []byte{','})
	if found && rest == nil {
		rest = []byte{}
	}
	return bytes.Trim(value, " \t\r\""), rest
}

func (p *csvParser) parse(line []byte, into *record) *LineError {
	into.reset(0)
	var arrival, input, output []byte
	for column, rest := 0, line; rest != nil; column++ {
		var value []byte
		value, rest = cell(rest)
		switch column {
		case p.arrival:
			arrival = value
		case p.input:
			input = value
		case p.output:
			output = value
		}
	}
	var ok bool
	switch {
	case len(arrival) == 0:
		return malformed(Missing, p.table.arrival)
	case len(input) == 0:
		return malformed(Missing, p.table.input)
	case len(output) == 0:
		return malformed(Missing, p.table.output)
	case p.table.date:
		if into.nanos, ok = parseDate(arrival); !ok {
			return malformed(OutOfRange, p.table.arrival+" is not a date and a time")
		}
	default:
		if into.nanos, ok = parseTime(arrival, nanosPerSecond); !ok {
			return malformed(OutOfRange, p.table.arrival+" is not a number of seconds")
		}
	}
	if e := tokens(input, &into.request.Input, p.table.input); e != nil {
		return e
	}
	if e := tokens(output, &into.request.Output, p.table.output); e != nil {
		return e
	}
	return into.check()
}
