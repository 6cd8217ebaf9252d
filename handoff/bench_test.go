package handoff

import "testing"

// benchSource is a whole source's life, destination-first.
var benchSource = []SourceFact{
	dispatched(DestinationFirst), {Kind: FactDestinationReady}, {Kind: FactStreamOpened}, {Kind: FactPrefillPinned, Blocks: 1, For: pinLease},
	{Kind: FactLeaseRenewed, For: renewFor}, {Kind: FactSendCompleted}, {Kind: FactReaderCompleted}, {Kind: FactTransferQuiesced},
}

var benchDestination = []DestinationFact{
	routed(DestinationFirst), {Kind: FactReserved}, {Kind: FactStreamOpened}, {Kind: FactReceiveCompleted}, {Kind: FactActivationApplied},
	{Kind: FactTransferQuiesced}, {Kind: FactDecodeFinished, Finish: FinishStop},
}

var benchRequest = []RequestFact{
	{Kind: FactAdmitted, Deadline: requestDeadline, Patience: attemptPatience},
	{Kind: FactPlaced, Policy: DestinationFirst, Handoff: attemptID(0)},
	{Kind: FactBooked, Handoff: attemptID(0), Booking: BookPrefill}, {Kind: FactBooked, Handoff: attemptID(0), Booking: BookSource},
	{Kind: FactBooked, Handoff: attemptID(0), Booking: BookDecode}, {Kind: FactReserved, Handoff: attemptID(0)},
	{Kind: FactTokenOut, Handoff: attemptID(0), Side: RoleSource}, {Kind: FactPrefillPinned, Handoff: attemptID(0)},
	{Kind: FactCommitted, Handoff: attemptID(0)}, {Kind: FactSourceReleased, Handoff: attemptID(0), Outcome: OutcomeHandedOff},
	{Kind: FactTokenOut, Handoff: attemptID(0), Side: RoleDestination, Index: 1},
	{Kind: FactTokenOut, Handoff: attemptID(0), Side: RoleDestination, Index: 2, Finish: FinishStop},
}

func runSource(b testing.TB, dst []SourceAction) {
	var m Source
	for _, f := range benchSource {
		if _, _, err := m.Apply(0, f, dst); err != nil {
			b.Fatal(err)
		}
	}
	if m.state != SourceReleased {
		b.Fatal(m.state)
	}
}

func runDestination(b testing.TB, dst []DestinationAction) {
	var m Destination
	for _, f := range benchDestination {
		if _, _, err := m.Apply(0, f, dst); err != nil {
			b.Fatal(err)
		}
	}
	if m.state != DestinationReleased {
		b.Fatal(m.state)
	}
}

func runRequest(b testing.TB, dst []RequestAction) {
	var m Request
	for _, f := range benchRequest {
		if _, _, err := m.Apply(0, f, dst); err != nil {
			b.Fatal(err)
		}
	}
	if m.state != RequestDone {
		b.Fatal(m.state)
	}
}

// BenchmarkApply measures one transition of each machine, averaged over a whole
// life (ns/transition).
func BenchmarkApply(b *testing.B) {
	b.Run("source", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]SourceAction, 0, 16)
		for b.Loop() {
			runSource(b, dst)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(benchSource)), "ns/transition")
	})
	b.Run("destination", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]DestinationAction, 0, 16)
		for b.Loop() {
			runDestination(b, dst)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(benchDestination)), "ns/transition")
	})
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]RequestAction, 0, 16)
		for b.Loop() {
			runRequest(b, dst)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(benchRequest)), "ns/transition")
	})
}

// A transition allocates nothing when dst has room.
func TestApplyDoesNotAllocate(t *testing.T) {
	s, d, r := make([]SourceAction, 0, 16), make([]DestinationAction, 0, 16), make([]RequestAction, 0, 16)
	if n := testing.AllocsPerRun(100, func() { runSource(t, s); runDestination(t, d); runRequest(t, r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
