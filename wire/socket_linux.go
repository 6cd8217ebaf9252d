package wire

import (
	"encoding/binary"
	"net"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/quic-go/quic-go"
)

// laneSocket asks for BBR, which keeps its rate under the loss rates of real networks where the default collapses. Both
// options are wishes: where the kernel does not have them the lane works without.
func laneSocket(cfg *Config) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr")
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(cfg.Timeouts.Progress.Milliseconds()))
		})
	}
}

// batched makes quic-go receive coalesced datagrams (UDP_GRO): one system call and one pass through the kernel's stack
// for dozens of packets. Without kernel support the socket is used as it is.
func batched(c *net.UDPConn) net.PacketConn {
	raw, err := c.SyscallConn()
	if err != nil {
		return c
	}
	var opt error
	if err := raw.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	}); err != nil || opt != nil {
		return c
	}
	g := &groConn{UDPConn: c, pc: ipv4.NewPacketConn(c), in: make([]ipv4.Message, groBatch)}
	for i := range g.in {
		g.in[i].Buffers = [][]byte{make([]byte, 64<<10)}
		g.in[i].OOB = make([]byte, 128)
	}
	return g
}

// groBatch is the number of coalesced datagrams read at once, 64 KiB of buffer each.
const groBatch = 4

// groConn splits coalesced datagrams for quic-go's batch reader, its only reader.
type groConn struct {
	*net.UDPConn
	pc  *ipv4.PacketConn
	in  []ipv4.Message // as read from the kernel
	n   int            // messages of in that are valid
	cur int            // the one being split
	off int            // its bytes already handed out
	seg int            // its segment size
}

var _ quic.OOBCapablePacketConn = (*groConn)(nil)

// ReadBatch fills ms with datagrams, one each.
func (g *groConn) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	if g.cur == g.n {
		for i := range g.in {
			g.in[i].OOB = g.in[i].OOB[:cap(g.in[i].OOB)]
		}
		n, err := g.pc.ReadBatch(g.in, flags)
		if err != nil {
			return 0, err
		}
		g.n, g.cur, g.off = n, 0, 0
		if n > 0 {
			g.seg = segmentSize(&g.in[0])
		}
	}
	filled := 0
	for filled < len(ms) && g.cur < g.n {
		m := &g.in[g.cur]
		part := m.Buffers[0][g.off:min(m.N, g.off+g.seg)]
		out := &ms[filled]
		out.N = copy(out.Buffers[0], part)
		out.NN = copy(out.OOB, m.OOB[:m.NN])
		out.Addr = m.Addr
		filled++
		g.off += len(part)
		if g.off >= m.N {
			g.cur++
			g.off = 0
			if g.cur < g.n {
				g.seg = segmentSize(&g.in[g.cur])
			}
		}
	}
	return filled, nil
}

// segmentSize returns the size of the datagrams in a coalesced message: the kernel's note, or everything.
func segmentSize(m *ipv4.Message) int {
	for oob := m.OOB[:m.NN]; len(oob) > 0; {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(body) >= 4 {
			if n := int(binary.NativeEndian.Uint32(body)); n > 0 {
				return n
			}
		}
		oob = rest
	}
	return max(m.N, 1)
}
