package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/bus"
	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry/otlp"
	"github.com/tandem-llm/tandem/wire"
)

// between refuses a flag's value outside a range, with the flag's name: what the
// packages below would say of it names their own fields.
func between[T cmp.Ordered](flag string, v, low, high T) error {
	if v < low || v > high {
		return usageError{fmt.Errorf("--%s: %v is not between %v and %v", flag, v, low, high)}
	}
	return nil
}

const (
	most      = 1 << 30 // of anything that is counted
	mostSlots = 255     // llama.cpp has 256 sequences, of which the engine needs one
	mostTime  = 7 * 24 * time.Hour
)

func (f *serveFlags) check() error { return between("drain", f.Drain, 0, mostTime) }

func (f *engineFlags) check() error {
	return errors.Join(
		between("slots", f.Slots, 1, mostSlots), between("context", f.Context, 0, most), between("cells", f.Cells, 0, most),
		between("page-tokens", f.PageTokens, 8, 1<<16), between("threads", f.Threads, 0, 1024), between("gpu-layers", f.GPULayers, -1, most),
		f.stepTokens(), between("headroom", f.Headroom, 0, most),
		between("cached-slots", f.CachedSlots, 0, mostSlots-f.Slots), between("cached-tokens", f.CachedTokens, 0, most), between("snapshot-cache", f.SnapshotCache, 0, 1<<50),
	)
}

// stepTokens refuses steps that no page fits into.
func (f *engineFlags) stepTokens() error {
	if f.StepTokens == 0 {
		return nil
	}
	return between("step-tokens", f.StepTokens, f.PageTokens, most)
}

// fits refuses sequences that are longer than the model can tell positions apart.
func (f *engineFlags) fits(m *model.Model) error {
	if m.Context > 0 && f.Context > m.Context {
		return usageError{fmt.Errorf("--context: the model was trained for %d tokens, not for %d", m.Context, f.Context)}
	}
	return nil
}

func (f *gatewayFlags) check() error {
	var collector error
	if f.OTLP != "" {
		if err := otlp.Check(f.OTLP); err != nil {
			collector = usageError{fmt.Errorf("--otlp: %w", err)}
		}
	}
	_, _, policies := route.ParsePolicies(f.Route)
	if policies != nil {
		policies = usageError{fmt.Errorf("--route: %w", policies)}
	}
	return errors.Join(
		collector, policies, between("slo-ttft", f.SLOTTFT, 0, mostTime), between("slo-tpot", f.SLOTPOT, 0, mostTime),
		between("max-active", f.MaxActive, 1, most), between("max-queue", f.MaxQueue, 1, most), between("max-per-tenant", f.MaxPerTenant, 0, most),
		between("request-timeout", f.RequestTimeout, time.Millisecond, mostTime), between("retries", f.Retries, 0, 255),
	)
}

func (f *dataFlags) check() error {
	return errors.Join(between("lanes", f.Lanes, 1, 16), between("window", f.Window, 0, 1<<40))
}

// load reads the process's identity, which must be of the role.
func (f *processFlags) load(role mesh.Role) (*mesh.Identity, error) {
	id, err := mesh.Load(f.Mesh, nil)
	if err == nil && id.Role() != role {
		err = usageError{fmt.Errorf("--mesh: %s is the identity of %s; one of role %s is needed (tandem mesh issue)", f.Mesh, id.Peer(), role)}
	}
	return id, err
}

// blame marks errors of other packages that a flag's value is the cause of.
func blame(flags string, err error) error {
	if errors.Is(err, wire.ErrConfig) || errors.Is(err, bus.ErrConfig) || errors.Is(err, bus.ErrListen) {
		return usageError{fmt.Errorf("%s: %w", flags, err)}
	}
	return err
}
