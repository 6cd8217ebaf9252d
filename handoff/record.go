package handoff

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
)

// MaxRecordBytes bounds one encoded Record, newline included. The largest
// handoff (64 streams) stays below a quarter of it.
const MaxRecordBytes = 128 << 10

// Record is one application of a fact to a machine, as a live host wrote it
// down: enough to check later that the machine decides the same again. It holds
// no content, as facts and actions hold none.
type Record struct {
	Host    string        `json:"host,omitempty"`    // who ran the machine: worker and incarnation, or gateway
	Role    Role          `json:"role"`              // which machine
	Handoff ID            `json:"handoff,omitzero"`  // key of a Source or Destination
	Request string        `json:"request,omitempty"` // key of a Request; optional elsewhere
	Now     time.Duration `json:"now_ns"`            // the host's time
	Result  Result        `json:"result,omitempty"`  // unset when Err is set
	Err     string        `json:"error,omitempty"`   // text of the refusal
	State   string        `json:"state"`             // the machine's state afterwards

	// Exactly one fact is set, the one of Role, with its actions.
	SourceFact         *SourceFact         `json:"source_fact,omitempty"`
	SourceActions      []SourceAction      `json:"source_actions,omitempty"`
	DestinationFact    *DestinationFact    `json:"destination_fact,omitempty"`
	DestinationActions []DestinationAction `json:"destination_actions,omitempty"`
	RequestFact        *RequestFact        `json:"request_fact,omitempty"`
	RequestActions     []RequestAction     `json:"request_actions,omitempty"`
}

// SourceRecord makes the record of one m.Apply(now, f, nil) = actions, result,
// err. The actions are copied; set Host and Request on the result.
func SourceRecord(id ID, now time.Duration, f SourceFact, actions []SourceAction, result Result, err error, m *Source) Record {
	return Record{Role: RoleSource, Handoff: id, Now: now, Result: result, Err: errText(err), State: m.State().String(),
		SourceFact: &f, SourceActions: slices.Clone(actions)}
}

// DestinationRecord is SourceRecord for a Destination.
func DestinationRecord(id ID, now time.Duration, f DestinationFact, actions []DestinationAction, result Result, err error, m *Destination) Record {
	return Record{Role: RoleDestination, Handoff: id, Now: now, Result: result, Err: errText(err), State: m.State().String(),
		DestinationFact: &f, DestinationActions: slices.Clone(actions)}
}

// RequestRecord is SourceRecord for a Request, keyed by the client request's id.
func RequestRecord(request string, now time.Duration, f RequestFact, actions []RequestAction, result Result, err error, m *Request) Record {
	return Record{Role: RoleRequest, Handoff: f.Handoff, Request: request, Now: now, Result: result, Err: errText(err), State: m.State().String(),
		RequestFact: &f, RequestActions: slices.Clone(actions)}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// check verifies the shape of a record from outside.
func (r *Record) check() error {
	var kind FactKind
	unset := false
	switch {
	case r.Role == RoleSource && r.SourceFact != nil && r.DestinationFact == nil && r.RequestFact == nil:
		kind = r.SourceFact.Kind
		unset = slices.ContainsFunc(r.SourceActions, func(a SourceAction) bool { return a.Kind == 0 })
	case r.Role == RoleDestination && r.DestinationFact != nil && r.SourceFact == nil && r.RequestFact == nil:
		kind = r.DestinationFact.Kind
		unset = slices.ContainsFunc(r.DestinationActions, func(a DestinationAction) bool { return a.Kind == 0 })
	case r.Role == RoleRequest && r.RequestFact != nil && r.SourceFact == nil && r.DestinationFact == nil:
		kind = r.RequestFact.Kind
		unset = slices.ContainsFunc(r.RequestActions, func(a RequestAction) bool { return a.Kind == 0 })
	default:
		return fmt.Errorf("handoff: record of role %s needs exactly that role's fact: %w", r.Role, ErrInvalid)
	}
	if kind == 0 || unset {
		return fmt.Errorf("handoff: record of role %s has a fact or action without a kind: %w", r.Role, ErrInvalid)
	}
	if r.Role == RoleRequest && r.Request == "" || r.Role != RoleRequest && r.Handoff.IsZero() {
		return fmt.Errorf("handoff: record of role %s has no key: %w", r.Role, ErrInvalid)
	}
	return nil
}

// AppendRecord appends r as one line of JSON with its newline.
func AppendRecord(dst []byte, r Record) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	line, err := json.Marshal(&r)
	if err != nil {
		return dst, fmt.Errorf("handoff: record cannot be encoded: %w", err)
	}
	if len(line)+1 > MaxRecordBytes {
		return dst, fmt.Errorf("handoff: record has %d bytes, limit %d: shorten Host and Request: %w", len(line), MaxRecordBytes, ErrInvalid)
	}
	return append(append(dst, line...), '\n'), nil
}

// DecodeRecord reads one line. It is strict: unknown fields and names are
// refused, because a newer version's records cannot be judged by this one.
func DecodeRecord(line []byte) (Record, error) {
	var r Record
	if len(line) > MaxRecordBytes {
		return r, fmt.Errorf("handoff: record has %d bytes, limit %d: %w", len(line), MaxRecordBytes, ErrInvalid)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("handoff: record is not valid: %w: %w", ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Record{}, fmt.Errorf("handoff: record is followed by more data on its line: %w", ErrInvalid)
	}
	if err := r.check(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// ReadRecords yields the records of r, one per line, empty lines skipped. It
// stops after the first error; memory is bounded by MaxRecordBytes.
func ReadRecords(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, MaxRecordBytes)
		for n := 1; lines.Scan(); n++ {
			if len(bytes.TrimSpace(lines.Bytes())) == 0 {
				continue
			}
			rec, err := DecodeRecord(lines.Bytes())
			if err != nil {
				yield(Record{}, fmt.Errorf("line %d: %w", n, err))
				return
			}
			if !yield(rec, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Record{}, fmt.Errorf("handoff: records cannot be read (a line may exceed %d bytes): %w", MaxRecordBytes, err))
		}
	}
}
