package move

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/model/wide"
	"github.com/tandem-llm/tandem/pair"
)

// Slots of the engine: pair.Slot is exported, importSlot imported into.
const importSlot = 1

// pageTokens are the sizes of pages, of a model with 64 KiB per token.
var pageTokens = []int{64, 256, 1024}

func (r *runner) pages(ctx context.Context) error {
	const tokens = 2048 // 128 MiB: two pages of the largest size, so that what an import allocates once is not one page's
	m, err := wide.Attention(16, 8)
	if err != nil {
		return err
	}
	path, err := r.seeded(m)
	if err != nil {
		return err
	}
	e, _, err := r.open(path, 2*tokens+256, r.Threads)
	if err != nil {
		return err
	}
	defer e.Close()
	if _, err := r.prefill(ctx, &pair.Host{Engine: e}, tokens, 512); err != nil {
		return err
	}
	for _, n := range pageTokens {
		if err := r.pageSize(ctx, e, tokens, n); err != nil {
			return err
		}
	}
	return nil
}

// pageSize moves a sequence of tokens positions out and in, in pages of n.
func (r *runner) pageSize(ctx context.Context, e engine.Engine, tokens, n int) error {
	const rounds = 2 // over the whole sequence, per turn
	count := tokens / n
	src, dst := make([][]byte, count), make([][]byte, count)
	for i := range src {
		src[i], dst[i] = make([]byte, e.PageBytes(n)), make([]byte, e.PageBytes(n))
	}
	each := func(f func(i int) error) error {
		for i := range count {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	export := func() error {
		return each(func(i int) error {
			_, err := e.ExportPage(pair.Slot, i*n, (i+1)*n, src[i])
			return err
		})
	}
	scan := func() error {
		return each(func(i int) error { return e.ScanPage(i*n, (i+1)*n, src[i]) })
	}
	bring := func(c *cost, scanned bool) error {
		imp, err := e.BeginImport(importSlot, tokens)
		if err != nil {
			return err
		}
		if scanned {
			imp.Scanned()
		}
		if err := c.do(count, func() error {
			return each(func(i int) error { return imp.Page(i*n, (i+1)*n, src[i]) })
		}); err != nil {
			return err
		}
		return imp.Discard()
	}
	size := fmt.Sprintf("%d MiB page", n/16)
	moving := func(context.Context) ([]bench.Figure, error) {
		var out, checks, in, whole cost
		for range rounds {
			if err := out.do(count, export); err != nil {
				return nil, err
			}
			if err := checks.do(count, scan); err != nil {
				return nil, err
			}
			if err := bring(&in, true); err != nil {
				return nil, err
			}
			if err := bring(&whole, false); err != nil {
				return nil, err
			}
		}
		return figures(size, out, checks, in, whole), nil
	}
	copying := func(context.Context) ([]bench.Figure, error) {
		return copied(size, rounds, dst, src), nil
	}
	return r.compare(ctx, Pages, size, moving, copying)
}

// compare runs the two sides and judges what figures names.
func (r *runner) compare(ctx context.Context, p Part, size string, moving, copying func(context.Context) ([]bench.Figure, error)) error {
	runs, err := bench.Alternate(ctx, r.plan(p), bench.Side{Name: "engine", Run: moving}, bench.Side{Name: "memcpy", Run: copying})
	bars := map[string]*bench.Bar{
		size + ": export":                           bench.AtMost(bench.OnRatio, copyBar),
		size + ": import after a scan":              bench.AtMost(bench.OnRatio, copyBar),
		size + ": validation, of a checking import": bench.AtMost(bench.OnValue, checkBar),
	}
	if p == Pages { // a snapshot comes once per handoff and may allocate
		bars[size+": allocations of an export"] = bench.AtMost(bench.OnValue, 0)
		bars[size+": allocations of an import"] = bench.AtMost(bench.OnValue, 0)
	}
	r.add(runs, bars)
	return err
}

func figures(size string, out, checks, in, whole cost) []bench.Figure {
	return []bench.Figure{
		{Name: size + ": export", Unit: "ms", Value: out.ms()},
		{Name: size + ": import after a scan", Unit: "ms", Value: in.ms()},
		{Name: size + ": import that checks", Unit: "ms", Value: whole.ms()},
		{Name: size + ": scan", Unit: "ms", Value: checks.ms()},
		{Name: size + ": validation, of a checking import", Value: checks.ms() / whole.ms()},
		{Name: size + ": allocations of an export", Value: out.perOne()},
		{Name: size + ": allocations of an import", Value: in.perOne()},
	}
}

// piece is the size of the copies that llama.cpp makes for a page of 64 tokens
// here: the keys or the values of one layer.
const piece = 128 << 10

// copied copies src to dst and gives the time the names of what it is compared
// with. A copy in pieces is timed too: above 1 MiB Go's copy writes past the cache,
// as the C library's does only for much larger ones.
func copied(size string, rounds int, dst, src [][]byte) []bench.Figure {
	var whole, pieces cost
	for range rounds {
		_ = whole.do(len(src), func() error {
			for i := range src {
				copy(dst[i], src[i])
			}
			return nil
		})
		_ = pieces.do(len(src), func() error {
			for i := range src {
				for at := 0; at < len(src[i]); at += piece {
					copy(dst[i][at:], src[i][at:min(at+piece, len(src[i]))])
				}
			}
			return nil
		})
	}
	return []bench.Figure{
		{Name: size + ": export", Unit: "ms", Value: whole.ms()},
		{Name: size + ": import after a scan", Unit: "ms", Value: whole.ms()},
		{Name: size + ": import that checks", Unit: "ms", Value: whole.ms()},
		{Name: size + ": scan", Unit: "ms", Value: whole.ms()},
		{Name: size + ": copy in pieces of 128 KiB", Unit: "ms", Value: pieces.ms()},
	}
}

func (r *runner) snapshot(ctx context.Context) error {
	path, err := r.seeded(wide.Recurrent())
	if err != nil {
		return err
	}
	const tokens = 64
	e, _, err := r.open(path, 512, r.Threads)
	if err != nil {
		return err
	}
	defer e.Close()
	if _, err := r.prefill(ctx, &pair.Host{Engine: e}, tokens, tokens); err != nil {
		return err
	}
	n, err := e.SnapshotBytes(pair.Slot)
	if err != nil {
		return err
	}
	src, dst := make([]byte, n), make([]byte, n)
	export := func() error { _, _, err := e.ExportSnapshot(pair.Slot, src); return err }
	scan := func() error { return e.ScanSnapshot(tokens, src) }
	bring := func(c *cost, scanned bool) error {
		imp, err := e.BeginImport(importSlot, tokens)
		if err != nil {
			return err
		}
		if scanned {
			imp.Scanned()
		}
		if err := c.do(1, func() error { return imp.Snapshot(src) }); err != nil {
			return err
		}
		return imp.Discard()
	}
	size := fmt.Sprintf("snapshot of %d MiB", n>>20)
	moving := func(context.Context) ([]bench.Figure, error) {
		var out, checks, in, whole cost
		for range snapTries {
			if err := out.do(1, export); err != nil {
				return nil, err
			}
			if err := checks.do(1, scan); err != nil {
				return nil, err
			}
			if err := bring(&in, true); err != nil {
				return nil, err
			}
			if err := bring(&whole, false); err != nil {
				return nil, err
			}
		}
		return figures(size, out, checks, in, whole), nil
	}
	copying := func(context.Context) ([]bench.Figure, error) {
		return copied(size, snapTries, [][]byte{dst}, [][]byte{src}), nil
	}
	return r.compare(ctx, Snapshot, size, moving, copying)
}
