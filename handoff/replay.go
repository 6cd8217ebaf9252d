package handoff

import (
	"fmt"
	"iter"
	"reflect"
)

// ReplayError names the first record that a fresh machine would have answered
// differently.
type ReplayError struct {
	Index     int    // of the record, from 0
	Role      Role   // machine
	Handoff   ID     // its key, or the attempt of a Request
	Request   string // key of a Request
	Fact      string // fact that was applied
	What      string // "result", "error", "state" or "actions"
	Got, Want string // replayed, recorded
}

// Error names the record and the difference.
func (e *ReplayError) Error() string {
	return fmt.Sprintf("handoff: record %d (%s %s %s, %s): replayed %s is %s, recorded %s: the host did not do what its machine said, or the machine changed",
		e.Index, e.Role, e.Handoff, e.Request, e.Fact, e.What, e.Got, e.Want)
}

// replayKey names one machine of one host.
type replayKey struct {
	host string
	role Role
	key  string
}

// Replay feeds recorded facts to fresh machines, in the order given (which must
// be the order of application per machine, any order between machines), and
// compares result, error, actions and state of every record. It returns nil, the
// first error of the input, or a *ReplayError.
func Replay(records iter.Seq2[Record, error]) error {
	sources := map[replayKey]*Source{}
	destinations := map[replayKey]*Destination{}
	requests := map[replayKey]*Request{}
	i := -1
	for r, err := range records {
		i++
		if err != nil {
			return err
		}
		if err := r.check(); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		key := replayKey{r.Host, r.Role, r.Request}
		if r.Role != RoleRequest {
			key.key = r.Handoff.String()
		}
		got := Record{}
		var fact FactKind
		var same bool
		var gotActions, wantActions any
		switch r.Role {
		case RoleSource:
			m := machineOf(sources, key)
			actions, result, err := m.Apply(r.Now, *r.SourceFact, nil)
			got = SourceRecord(r.Handoff, r.Now, *r.SourceFact, actions, result, err, m)
			fact, same = r.SourceFact.Kind, sameActions(got.SourceActions, r.SourceActions)
			gotActions, wantActions = got.SourceActions, r.SourceActions
		case RoleDestination:
			m := machineOf(destinations, key)
			actions, result, err := m.Apply(r.Now, *r.DestinationFact, nil)
			got = DestinationRecord(r.Handoff, r.Now, *r.DestinationFact, actions, result, err, m)
			fact, same = r.DestinationFact.Kind, sameActions(got.DestinationActions, r.DestinationActions)
			gotActions, wantActions = got.DestinationActions, r.DestinationActions
		case RoleRequest:
			m := machineOf(requests, key)
			actions, result, err := m.Apply(r.Now, *r.RequestFact, nil)
			got = RequestRecord(r.Request, r.Now, *r.RequestFact, actions, result, err, m)
			fact, same = r.RequestFact.Kind, sameActions(got.RequestActions, r.RequestActions)
			gotActions, wantActions = got.RequestActions, r.RequestActions
		}
		diff := &ReplayError{Index: i, Role: r.Role, Handoff: r.Handoff, Request: r.Request, Fact: fact.String()}
		switch {
		case got.Err != r.Err:
			diff.What, diff.Got, diff.Want = "error", got.Err, r.Err
		case got.Result != r.Result:
			diff.What, diff.Got, diff.Want = "result", got.Result.String(), r.Result.String()
		case got.State != r.State:
			diff.What, diff.Got, diff.Want = "state", got.State, r.State
		case !same:
			diff.What, diff.Got, diff.Want = "actions", fmt.Sprintf("%+v", gotActions), fmt.Sprintf("%+v", wantActions)
		default:
			continue
		}
		return diff
	}
	return nil
}

// machineOf returns the machine of key, fresh at its first record.
func machineOf[M any](machines map[replayKey]*M, key replayKey) *M {
	m := machines[key]
	if m == nil {
		m = new(M)
		machines[key] = m
	}
	return m
}

// sameActions compares action lists; none and empty are the same.
func sameActions[A any](a, b []A) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
