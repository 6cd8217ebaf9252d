package bus

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/mesh"
)

// Limits on messages of each kind, in bytes, checked before decoding: what a decoder allocates is a multiple of what it
// is given. Only commands, which carry prompts, may fill a payload.
const (
	MaxRegistration = 1 << 20
	MaxStatuses     = 1 << 20
	maxBeat         = 4 << 10
	maxReply        = 64 << 10
)

// Limits on the parts of a registration.
const (
	MaxIdentity     = 16 << 10 // bytes
	MaxCapabilities = 64
	MaxText         = 1024 // bytes of one capability, name or other text
	MaxOwned        = 4096
)

// HandoffBytes is the length of a handoff id on the bus.
const HandoffBytes = 16

// Pending limits: what may wait in a process for its handlers. Beyond them messages are dropped and reported as ErrSlow.
const (
	pendingMessages = 64 << 10
	pendingBytes    = 64 << 20
)

// decode reads a message of at most limit bytes.
func decode(data []byte, limit int, m proto.Message) error {
	if len(data) > limit {
		return tooLarge(len(data), int64(limit))
	}
	return proto.Unmarshal(data, m)
}

// CheckRegistration refuses a registration whose parts exceed the limits of this package or make no sense. Links and
// Registry call it.
func CheckRegistration(r *buspb.Registration) error {
	bad := func(format string, args ...any) error {
		return &Error{Kind: ErrMalformed, Detail: "registration: " + fmt.Sprintf(format, args...)}
	}
	switch {
	case r == nil:
		return bad("missing")
	case !mesh.ValidName(r.Worker):
		return bad("no valid worker name")
	case r.Incarnation == 0:
		return bad("incarnation 0")
	case r.Leaving:
		return nil // a goodbye carries nothing else
	case r.Role != "prefill" && r.Role != "decode" && r.Role != "both":
		return bad("role is not prefill, decode or both")
	case len(r.Identity) == 0 || len(r.Identity) > MaxIdentity:
		return bad("identity of %d bytes", len(r.Identity))
	case r.SchemaMin == 0 || r.SchemaMin > r.SchemaMax:
		return bad("schema range %d to %d", r.SchemaMin, r.SchemaMax)
	case len(r.Capabilities) > MaxCapabilities:
		return bad("%d capabilities", len(r.Capabilities))
	case len(r.Owned) > MaxOwned:
		return bad("%d owned handoffs", len(r.Owned))
	}
	texts := append([]string{
		r.Version, r.ModelName, r.Backend, r.EngineBuild, r.ColocatedOnly, r.Mtp.GetReason(), r.Endpoint.GetQuic(), r.Endpoint.GetTls(),
	}, r.Capabilities...)
	for _, s := range texts {
		if len(s) > MaxText {
			return bad("a text of %d bytes", len(s))
		}
	}
	for _, o := range r.Owned {
		if len(o.Handoff) != HandoffBytes || len(o.Request) > MaxText || len(o.State) > MaxText || !mesh.ValidName(o.Gateway) {
			return bad("an owned handoff that is not valid")
		}
	}
	return nil
}
