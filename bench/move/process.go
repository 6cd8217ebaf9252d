package move

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/model/wide"
	"github.com/tandem-llm/tandem/pair"
	"github.com/tandem-llm/tandem/wire"
)

// largePage bounds Transfer's pages: beyond it nothing is gained, and windows of
// four pages grow.
const largePage = 16 << 20

// both is a sequence here and a process to move it to.
type both struct {
	host *pair.Host
	p    *pair.Pair
	page int64 // bytes of a page
}

// connect opens the model here and in a child.
func (r *runner) connect(ctx context.Context, path string, tokens, pageTokens int) (_ *both, err error) {
	cells := tokens + 512
	e, o, err := r.open(path, cells, r.Threads)
	if err != nil {
		return nil, err
	}
	b := &both{host: &pair.Host{Engine: e}, page: int64(e.PageBytes(pageTokens))}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.p, err = pair.Start(ctx, r.Pair); err != nil {
		return nil, err
	}
	o.Threads = 1
	_, err = b.p.Open(ctx, o, pair.Transport{Lanes: []wire.LaneMode{r.Lane}, PageTokens: pageTokens, Tokens: tokens, Window: r.Window})
	return b, err
}

func (b *both) close() {
	if b.p != nil {
		_ = b.p.Close()
	}
	_ = b.host.Engine.Close()
}

// limit is the most that a handoff may hold on either side, in bytes.
func (r *runner) limit(page, snapshot int64) int64 {
	window := r.Window
	if window == 0 {
		window = defaultWindow
	}
	return max(4*page, window, snapshot)
}

// defaultWindow is wire.Config's.
const defaultWindow = 16 << 20

// transfer moves a prefilled sequence.
func (r *runner) transfer(ctx context.Context) error {
	path := r.Model
	if path == "" {
		m, err := wide.Attention(32, 16)
		if err != nil {
			return err
		}
		if path, err = r.seeded(m); err != nil {
			return err
		}
	}
	tokens, per, err := tokensFor(path, r.TransferBytes, 256)
	if err != nil {
		return err
	}
	pageTokens := int(min(max(largePage/per, 1), int64(r.PageTokens)))
	b, err := r.connect(ctx, path, tokens, pageTokens)
	if err != nil {
		return err
	}
	defer b.close()
	prompt, err := r.prefill(ctx, b.host, tokens, 512)
	if err != nil {
		return err
	}
	r.report.Set("transfer", fmt.Sprintf("%s, %d tokens of %d bytes in pages of %d tokens", b.host.Engine.Info().Model, tokens, per, pageTokens))
	name := string(r.Lane) + " lane"
	if r.Against != nil {
		name = "tandem"
	}
	sides := []bench.Side{{Name: name, Run: func(ctx context.Context) ([]bench.Figure, error) {
		m, err := b.p.Send(ctx, pair.Sending{Host: b.host, Prompt: prompt, PageTokens: pageTokens, Lane: r.Lane})
		if err != nil {
			return nil, err
		}
		if _, err := b.p.Continue(ctx, 1); err != nil { // it is ready, as was said
			return nil, err
		}
		return transferred(m), b.p.Clear(ctx)
	}}}
	if r.Against != nil {
		r.say("prefill of %s", r.Against.Name)
		if err := r.Against.Prefill(ctx, prompt); err != nil {
			return fmt.Errorf("%s: %w", r.Against.Name, err)
		}
		sides = append(sides, bench.Side{Name: r.Against.Name, Run: func(ctx context.Context) ([]bench.Figure, error) {
			took, bytes, more, err := r.Against.Move(ctx)
			return append(arrived(took, bytes), more...), err
		}})
	}
	runs, err := bench.Alternate(ctx, r.plan(Transfer), sides...)
	r.add(runs, map[string]*bench.Bar{figureReady: bench.AtMost(bench.OnRatio, againstBar)})
	return err
}

const figureReady = "transfer: ready to decode after"

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// arrived are the figures that every way has.
func arrived(took time.Duration, bytes int64) []bench.Figure {
	return []bench.Figure{
		{Name: figureReady, Unit: "ms", Value: ms(took)},
		{Name: "transfer: rate", Unit: "Gb/s", Value: 8 * float64(bytes) / took.Seconds() / 1e9},
		{Name: "transfer: state in MiB", Value: float64(bytes) / (1 << 20)},
	}
}

func transferred(m *pair.Moved) []bench.Figure {
	return append(arrived(m.Total, m.Bytes), []bench.Figure{
		{Name: "transfer: source, export", Unit: "ms", Value: ms(m.Export)},
		{Name: "transfer: source, seal", Unit: "ms", Value: ms(m.Seal)},
		{Name: "transfer: source, waiting for room", Unit: "ms", Value: ms(m.Blocked)},
		{Name: "transfer: destination, hash", Unit: "ms", Value: ms(m.Received.Hash)},
		{Name: "transfer: destination, import", Unit: "ms", Value: ms(m.Received.Import)},
		{Name: "transfer: destination, commit", Unit: "ms", Value: ms(m.Received.Commit)},
		{Name: "transfer: destination, last unit to commit", Unit: "ms", Value: ms(m.Received.Tail)},
		{Name: "transfer: peak at the source", Unit: "MiB", Value: float64(m.Wire.Peak) / (1 << 20)},
		{Name: "transfer: peak at the destination", Unit: "MiB", Value: float64(m.Received.Wire.Peak) / (1 << 20)},
	}...)
}

// stream computes a prompt with its state leaving and with it staying.
func (r *runner) stream(ctx context.Context) error {
	path := r.Model
	if path == "" {
		m, err := wide.Attention(4, 8)
		if err != nil {
			return err
		}
		if path, err = r.seeded(m); err != nil {
			return err
		}
	}
	b, err := r.connect(ctx, path, r.StreamTokens, r.PageTokens)
	if err != nil {
		return err
	}
	defer b.close()
	prompt := pair.Prompt(b.host.Engine.Vocab(), r.StreamTokens, 1)
	r.report.Set("stream", fmt.Sprintf("%s, %d tokens in chunks of %d", b.host.Engine.Info().Model, len(prompt), r.PageTokens))
	var snapshot int64
	prefill := func(ctx context.Context, run func() (time.Duration, error)) (time.Duration, error) {
		if err := b.host.Clear(); err != nil {
			return 0, err
		}
		return run()
	}
	streaming := func(ctx context.Context) ([]bench.Figure, error) {
		var m *pair.Moved
		took, err := prefill(ctx, func() (_ time.Duration, err error) {
			m, err = b.p.Send(ctx, pair.Sending{Host: b.host, Prompt: prompt, PageTokens: r.PageTokens, Chunk: r.PageTokens, Lane: r.Lane})
			if err != nil {
				return 0, err
			}
			return m.Total - m.Tail, nil
		})
		if err != nil {
			return nil, err
		}
		n, err := b.host.Engine.SnapshotBytes(pair.Slot)
		if err != nil {
			return nil, err
		}
		snapshot = int64(n)
		return r.streamed(b, m, took, int64(n), len(prompt)), b.p.Clear(ctx)
	}
	plain := func(ctx context.Context) ([]bench.Figure, error) {
		took, err := prefill(ctx, func() (time.Duration, error) {
			start := time.Now()
			_, err := b.host.Prefill(prompt, r.PageTokens, func(int) error { return ctx.Err() })
			return time.Since(start), err
		})
		return []bench.Figure{{Name: figurePrefill, Unit: "s", Value: took.Seconds()}}, err
	}
	runs, err := bench.Alternate(ctx, r.plan(Stream), bench.Side{Name: "streaming", Run: streaming}, bench.Side{Name: "staying", Run: plain})
	limit := float64(r.limit(b.page, snapshot)) / (1 << 20)
	r.add(runs, map[string]*bench.Bar{
		figurePrefill:     bench.AtMost(bench.OnRatio, slowBar),
		figureEarly:       bench.AtLeast(bench.OnValue, earlyBar),
		figureTail:        bench.AtMost(bench.OnValue, tailBar),
		figureSource:      bench.AtMost(bench.OnValue, limit),
		figureDestination: bench.AtMost(bench.OnValue, limit),
	})
	return err
}

// Figures of Stream that have bars.
const (
	figurePrefill     = "stream: prefill"
	figureEarly       = "stream: share that left before the prefill ended"
	figureTail        = "stream: tail over what cannot be avoided"
	figureSource      = "stream: peak at the source"
	figureDestination = "stream: peak at the destination"
)

// streamed computes the figures of one streamed prompt. What cannot be avoided
// after the prefill is to bring over the last page and the snapshot, at the rate
// at which this handoff's bytes went and were imported, and one round trip.
func (r *runner) streamed(b *both, m *pair.Moved, prefill time.Duration, snapshot int64, tokens int) []bench.Figure {
	last := int64(b.host.Engine.PageBytes((tokens-1)%r.PageTokens + 1))
	share := float64(last+snapshot) / float64(m.Bytes)
	wireTime := time.Duration(share * float64(m.Wire.Wire))
	importTime := time.Duration(share * float64(m.Received.Import))
	least := wireTime + importTime + m.Wire.RTT
	kv := float64(m.Bytes - snapshot)
	return []bench.Figure{
		{Name: figurePrefill, Unit: "s", Value: prefill.Seconds()},
		{Name: figureTail, Value: float64(m.Tail) / float64(least)},
		{Name: figureEarly, Value: min(float64(m.Early)/kv, 1)},
		{Name: "stream: tail", Unit: "ms", Value: ms(m.Tail)},
		{Name: "stream: last page and snapshot on the wire", Unit: "ms", Value: ms(wireTime)},
		{Name: "stream: their import", Unit: "ms", Value: ms(importTime)},
		{Name: "stream: round trip", Unit: "ms", Value: ms(m.Wire.RTT)},
		{Name: "stream: export and seal during the prefill", Unit: "ms", Value: ms(m.Export + m.Seal)},
		{Name: "stream: state", Unit: "MiB", Value: float64(m.Bytes) / (1 << 20)},
		{Name: figureSource, Unit: "MiB", Value: float64(m.Wire.Peak) / (1 << 20)},
		{Name: figureDestination, Unit: "MiB", Value: float64(m.Received.Wire.Peak) / (1 << 20)},
	}
}
