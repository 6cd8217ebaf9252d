package wire

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem/mesh"
)

// LaneMode chooses how bulk bytes travel.
type LaneMode string

// The lane modes of Config.Lane.
const (
	// LaneAuto uses shared memory where the peer is a process of the same user on the same host (Linux), else TLS lanes
	// where the peer's TLS port answers within Timeouts.Probe, else QUIC streams.
	LaneAuto LaneMode = "auto"
	// LaneQUIC uses QUIC streams only: one UDP port, several times the CPU per byte.
	LaneQUIC LaneMode = "quic"
	// LaneTLS uses TLS lanes only; a handoff to a peer whose TLS port does not answer fails with ErrLane.
	LaneTLS LaneMode = "tls"
	// LaneLocal uses shared memory only; a handoff to a peer on another host fails with ErrLane.
	LaneLocal LaneMode = "local"
)

// has reports whether a mode may use another, concrete one.
func (m LaneMode) has(one LaneMode) bool { return m == one || m == LaneAuto }

// UnmarshalText accepts the modes; empty means auto.
func (m *LaneMode) UnmarshalText(b []byte) error {
	switch v := LaneMode(b); v {
	case "":
		*m = LaneAuto
	case LaneAuto, LaneQUIC, LaneTLS, LaneLocal:
		*m = v
	default:
		return configError("Lane", fmt.Sprintf("is %q; use auto, quic, tls or local", truncate(string(b), 32)))
	}
	return nil
}

// Timeouts bound every wait for a peer. Zero fields take the defaults in brackets.
type Timeouts struct {
	// Handshake bounds one QUIC or TLS handshake together with its hello [5s].
	Handshake time.Duration
	// Probe bounds the first attempt to reach a peer's TLS port in auto mode [1s].
	Probe time.Duration
	// FirstByte is how long a peer may stay silent after an open or a grant [10s].
	FirstByte time.Duration
	// Progress is how long a peer may stay silent later, or leave a unit half sent or bytes without credit [30s].
	// A source whose host computes shows life three times in this period, so a long prefill does not count as silence.
	Progress time.Duration
	// Commit is how long a destination repeats its commit before it gives up [30s]; Retry is the pause between [1s].
	Commit, Retry time.Duration
	// Dead is how long a silent connection lives [10s]; it is probed three times in that period.
	Dead time.Duration
	// Idle is how long a connection without handoffs is kept [5m].
	Idle time.Duration
}

// Config configures a Node. Identity, Incarnation and Addr are required.
type Config struct {
	// Identity proves this worker's name. Its role must be worker.
	Identity *mesh.Identity
	// Incarnation tells this process from earlier ones of the same name. It must grow with every start (milliseconds
	// since 1970 do) and is never zero.
	Incarnation uint64
	// Addr is the host:port to listen on, UDP for QUIC and TCP for TLS lanes; port 0 takes free ones.
	Addr string
	// Advertise is the host that peers dial, without port. It is required where Addr names no single host.
	Advertise string
	// Lane chooses the lanes [auto].
	Lane LaneMode
	// Lanes is the largest number of TLS lanes to one peer, 1 to 16 [4].
	Lanes int
	// PageBytes is the largest payload of a page [4 MiB], and LargestUnit that of any unit, snapshot included [64 MiB,
	// at least PageBytes]. A larger unit is refused on either side. They follow from the model, so that both ends of
	// a pair have the same.
	PageBytes, LargestUnit int64
	// Window is the credit of one handoff, in bytes [16 MiB]; 4 × PageBytes where that is more.
	Window int64
	// Total bounds the payload bytes of all handoffs, received and sent each [1 GiB]. A handoff takes the larger of its
	// window and LargestUnit from it when it is granted, and waits in order where that is not free; one handoff alone is
	// always granted.
	Total int64
	// Retain bounds the free buffers kept for reuse, in bytes [128 MiB].
	Retain int64
	// ManifestBytes is the largest manifest accepted [16 MiB].
	ManifestBytes int
	// Timeouts bound every wait.
	Timeouts Timeouts
}

// withDefaults checks the configuration and fills in defaults.
func (c Config) withDefaults() (Config, error) {
	if c.Identity == nil {
		return c, configError("Identity", "is missing; load one with mesh.Load or issue one")
	}
	if c.Identity.Role() != mesh.RoleWorker {
		return c, configError("Identity", "has role "+string(c.Identity.Role())+"; only workers move state")
	}
	return c.fill()
}

// fill is withDefaults without the identity.
func (c Config) fill() (Config, error) {
	if c.Incarnation == 0 {
		return c, configError("Incarnation", "is zero; use the start time in milliseconds")
	}
	if c.Addr == "" {
		return c, configError("Addr", "is missing; give host:port")
	}
	if err := c.Lane.UnmarshalText([]byte(c.Lane)); err != nil {
		return c, err
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.PageBytes, 4<<20)
	def(&c.LargestUnit, max(64<<20, c.PageBytes))
	def(&c.Window, 16<<20)
	def(&c.Total, 1<<30)
	def(&c.Retain, 128<<20)
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	if c.ManifestBytes == 0 {
		c.ManifestBytes = 16 << 20
	}
	switch {
	case c.Lanes < 1 || c.Lanes > 16:
		return c, configError("Lanes", fmt.Sprintf("is %d; use 1 to 16", c.Lanes))
	case c.PageBytes < 0 || c.LargestUnit < c.PageBytes || c.LargestUnit > maxUnit:
		return c, configError("LargestUnit", fmt.Sprintf("is %d with pages of %d; use at least a page and at most %d", c.LargestUnit, c.PageBytes, int64(maxUnit)))
	case c.Window < 64<<10 || c.Total < 64<<10 || c.Retain < 0:
		return c, configError("Window", "and Total must be at least 64 KiB, Retain not negative")
	case c.ManifestBytes < 0 || c.ManifestBytes > 256<<20:
		return c, configError("ManifestBytes", "must be between 1 and 256 MiB")
	}
	t := &c.Timeouts
	for _, f := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&t.Handshake, 5 * time.Second},
		{&t.Probe, time.Second},
		{&t.FirstByte, 10 * time.Second},
		{&t.Progress, 30 * time.Second},
		{&t.Commit, 30 * time.Second},
		{&t.Retry, time.Second},
		{&t.Dead, 10 * time.Second},
		{&t.Idle, 5 * time.Minute},
	} {
		if *f.v < 0 {
			return c, configError("Timeouts", "must not be negative")
		}
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	return c, nil
}

// window is the credit of one handoff.
func (c *Config) window() int64 { return max(c.Window, 4*c.PageBytes) }

// charge is what one granted handoff takes from Total.
func (c *Config) charge() int64 { return max(c.window(), c.LargestUnit) }

// maxUnit is the largest unit that any configuration may allow, 64 GiB.
const maxUnit = 64 << 30

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
