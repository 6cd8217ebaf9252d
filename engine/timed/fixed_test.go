package timed

import "testing"

func TestFixedTimes(t *testing.T) {
	m, err := NewFixed(Fixed{DecodeMS: 10, ChunkMS: 1, TokenMS: 0.5}, Common{
		Geometry: Geometry{AttentionPerToken: 100, WindowPerToken: 10, WindowTokens: 8, Recurrent: 7, Conv: 3, MTPPerToken: 20},
		Moves:    Moves{ExportBytesPerSecond: 1e9, ImportBytesPerSecond: 5e8, ImportMS: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		b    Batch
		want Time
	}{
		{Batch{}, 0},
		{Batch{Decodes: 5, Context: 1e6}, 10 * Millisecond},
		{Batch{Chunks: []Chunk{{New: 100}}}, 51 * Millisecond},
		{Batch{Decodes: 1, Chunks: []Chunk{{New: 100, Past: 7}, {New: 2}}}, 63 * Millisecond},
	} {
		if got := m.Step(&c.b); got != c.want {
			t.Errorf("%+v takes %v, want %v", c.b, got, c.want)
		}
	}
	if got := m.Stretch(3, 10, 1000); got != 10*Second {
		t.Errorf("1000 steps take %v", got)
	}
	if got := m.StepsWithin(3, 10, 99*Millisecond, 1000); got != 9 {
		t.Errorf("%d steps in 99 ms", got)
	}
	if got := m.Export(3e9); got != 3*Second {
		t.Errorf("3 GB leave in %v", got)
	}
	if got := m.Import(1e9); got != 2002*Millisecond {
		t.Errorf("1 GB enters in %v", got)
	}
	if got := m.Convert(1e9); got != 0 {
		t.Errorf("a conversion without a cost takes %v", got)
	}
	g := m.Geometry()
	if g.PerToken() != 120 || g.Snapshot(4) != 50 || g.Snapshot(100) != 90 || g.Bytes(100) != 12090 || len(g.Parts()) != 5 {
		t.Errorf("geometry: %d a token, snapshot %d and %d, %d in all, %d parts", g.PerToken(), g.Snapshot(4), g.Snapshot(100), g.Bytes(100), len(g.Parts()))
	}
}
