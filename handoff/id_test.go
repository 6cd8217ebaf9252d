package handoff

import (
	"encoding/json"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestIDRoundTripsAndOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Uint64Range(0, 1<<48-1).Draw(t, "ms")
		id := Mint(ms, [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "entropy")))
		if id.UnixMilli() != ms || id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%s is not a UUIDv7 of %d", id, ms)
		}
		back, err := ParseID(id.String())
		if err != nil || back != id {
			t.Fatalf("%s came back as %s: %v", id, back, err)
		}
		if ms > 0 && Mint(ms-1, [10]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255}).Compare(id) >= 0 {
			t.Fatal("ids do not order by mint time")
		}
	})
}

func TestIDRefusesWhatMintCannotMake(t *testing.T) {
	good := Mint(1, [10]byte{}).String()
	for _, s := range []string{"", "x", good[:35], good + "0", "0000000000000-7000-8000-000000000000", good[:14] + "4" + good[15:],
		good[:19] + "0" + good[20:], "g" + good[1:]} {
		if id, err := ParseID(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseID(%q) = %s, %v", s, id, err)
		}
	}
	if id, err := ParseID(ID{}.String()); err != nil || !id.IsZero() {
		t.Errorf("the zero id does not round-trip: %v", err)
	}
}

// Names are written to records and messages: they must stay what they are.
func TestStableNames(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{DestinationFirst, `"destination-first"`}, {OutcomeHandedOff, `"handed-off"`}, {FactClientGone, `"ClientGone"`},
		{FactReservationExpired, `"ReservationExpired"`}, {ActionRenewLease, `"RenewLease"`}, {ActionReleaseDestination, `"ReleaseDestination"`},
		{ReasonShutdown, `"shutdown"`}, {FinishLength, `"length"`}, {ReportReleased, `"released"`}, {PhaseDecode, `"decode"`},
		{BookRun, `"run"`}, {StatusFailed, `"failed"`}, {RoleRequest, `"request"`}, {NoOp, `"no-op"`},
	} {
		got, err := json.Marshal(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("%v is written as %s (%v), want %s", c.v, got, err, c.want)
		}
	}
	if len(factNames) != int(factKinds) || len(actionNames) != int(actionKinds) || len(sourceStateNames) != int(sourceStates) ||
		len(destinationStateNames) != int(destinationStates) || len(requestStateNames) != int(requestStates) {
		t.Error("a name is missing")
	}
	if _, err := json.Marshal(FactKind(0)); !errors.Is(err, ErrInvalid) {
		t.Errorf("an unset kind was written: %v", err)
	}
}
