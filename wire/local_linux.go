package wire

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// localConn is the bulk lane between two processes of one host: a Unix socket for frames, and for each direction memory
// that the source owns and the destination maps read only. Nothing is encrypted, because nothing leaves the kernel; both
// ends are processes of one user, who could read each other's memory anyway, and prove that they are the two ends of
// the session.
type localConn struct {
	*net.UnixConn
	w      *bufio.Writer // the pump's; the handshake uses the socket
	nonces []byte        // of both ends, the dialler's first
	own    *arena
	theirs *mapping
}

// boundedWriter fails a write of which the peer reads nothing for too long, as TCP_USER_TIMEOUT does for TLS lanes.
type boundedWriter struct {
	c     *net.UnixConn
	limit time.Duration
}

func (w boundedWriter) Write(p []byte) (int, error) {
	w.c.SetWriteDeadline(time.Now().Add(w.limit))
	return w.c.Write(p)
}

// localPrefix marks abstract socket names of this package.
const localPrefix = "@tandem-"

// localName is the number of hexadecimal digits behind it: enough to be fresh. The name is no secret, stands in the
// system's errors and so in logs, and must not look like a ticket there.
const localName = 16

// maxArena bounds what a peer may declare as its memory: address space, not memory.
const maxArena = 1 << 42

// listenLocal listens on a fresh abstract name, which exists in this network namespace only.
func listenLocal() (*net.UnixListener, error) {
	var b [localName / 2]byte
	rand.Read(b[:]) // never fails, it ends the process instead
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: localPrefix + hex.EncodeToString(b[:])})
}

// dialLocalConn connects to a name from a peer's hello; where the peer is on another host, nobody listens there.
func dialLocalConn(ctx context.Context, cfg *Config, name string) (*localConn, error) {
	if len(name) != len(localPrefix)+localName || name[:len(localPrefix)] != localPrefix {
		return nil, &Error{Code: ErrProtocol, Detail: "the local address is not one"}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	return shakeLocal(ctx, c.(*net.UnixConn), cfg, true)
}

// localHello precedes the lane hello: a nonce and the size of the sender's memory, whose descriptor comes with it.
const localHello = 32 + 8

// shakeLocal exchanges nonces and memory; it closes c if that fails or ctx ends before.
func shakeLocal(ctx context.Context, c *net.UnixConn, cfg *Config, dialled bool) (_ *localConn, err error) {
	l := &localConn{UnixConn: c, w: bufio.NewWriterSize(boundedWriter{c, cfg.Timeouts.Progress}, 64<<10)}
	defer context.AfterFunc(ctx, l.stop)()
	defer func() {
		if err != nil {
			l.stop()
			l.unmap()
		}
	}()
	if err := sameUser(c); err != nil {
		return nil, err
	}
	end := time.Now().Add(cfg.Timeouts.Handshake)
	c.SetDeadline(end)
	// Room for what both bounds allow to be under way, and address space only until it is used.
	fd, mem, err := newShared(2 * cfg.Total)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	l.own = newArena(mem, cfg.Retain)
	b := make([]byte, localHello)
	rand.Read(b[:32])
	binary.LittleEndian.PutUint64(b[32:], uint64(len(mem)))
	if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fd), nil); err != nil {
		return nil, err
	}
	a := make([]byte, localHello)
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(a, oob)
	if err != nil {
		return nil, err
	}
	theirs, err := oneDescriptor(oob[:oobn])
	if err != nil {
		return nil, err
	}
	defer unix.Close(theirs)
	if _, err := io.ReadFull(c, a[n:]); err != nil {
		return nil, err
	}
	if l.theirs, err = mapShared(theirs, binary.LittleEndian.Uint64(a[32:])); err != nil {
		return nil, err
	}
	c.SetDeadline(time.Time{})
	if dialled {
		l.nonces = append(b[:32:32], a[:32]...)
	} else {
		l.nonces = append(a[:32:32], b[:32]...)
	}
	return l, nil
}

// sameUser refuses a process of another user.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var opt error
	if err := raw.Control(func(fd uintptr) {
		cred, opt = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if opt != nil {
		return opt
	}
	if int(cred.Uid) != os.Geteuid() {
		return &Error{Code: ErrIdentity, Detail: "the process at the local address is another user's"}
	}
	return nil
}

// oneDescriptor returns the descriptor of a control message that carries exactly one.
func oneDescriptor(oob []byte) (int, error) {
	bad := &Error{Code: ErrProtocol, Detail: "a local lane begins with one descriptor"}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return -1, bad
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, bad
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// newShared makes memory of that size that cannot shrink, so that no reader of it can be killed by the other side.
func newShared(size int64) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate("tandem", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.Ftruncate(fd, size); err != nil {
		return -1, nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return -1, nil, err
	}
	mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	return fd, mem, err
}

// mapShared maps a peer's memory after checking that it has that size for ever.
func mapShared(fd int, size uint64) (*mapping, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if seals&unix.F_SEAL_SHRINK == 0 || size == 0 || size > maxArena || uint64(st.Size) != size {
		return nil, &Error{Code: ErrProtocol, Detail: fmt.Sprintf("shared memory of %d bytes may shrink, or is not what was declared", st.Size)}
	}
	// Reserved or not, huge pages may be missing when memory is first touched, and who reads it is killed then. Ordinary
	// memory is never missing short of what ends any process that needs more.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	if uint32(fs.Type) == unix.HUGETLBFS_MAGIC {
		return nil, &Error{Code: ErrProtocol, Detail: "shared memory of huge pages"}
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return newMapping(mem), nil
}

func unmap(mem []byte) { _ = unix.Munmap(mem) }

// discard gives memory back to the system, where that takes it; it reads as zero afterwards.
func discard(mem []byte) {
	if unix.Madvise(mem, unix.MADV_REMOVE) != nil {
		clear(mem)
	}
}

func (c *localConn) kind() string { return "local" }

// peer is empty: the lane hello's proof shows whose lane it is.
func (c *localConn) peer() string { return "" }

func (c *localConn) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c *localConn) flush() error                { return c.w.Flush() }
func (c *localConn) finish()                     { c.w.Flush(); c.Close() }
func (c *localConn) stop()                       { c.Close() }

// export is fresh for every lane, because both ends chose a part of it.
func (c *localConn) export(label string, n int) ([]byte, error) {
	if n != sha256.Size {
		return nil, errors.New("wire: a local lane exports 32 bytes")
	}
	h := sha256.New()
	h.Write([]byte(label))
	h.Write(c.nonces)
	return h.Sum(nil), nil
}

func (c *localConn) shared() (*arena, *mapping) { return c.own, c.theirs }

// unmap drops the lane's own references. No goroutine of the lane may run any more.
func (c *localConn) unmap() {
	if c.own != nil {
		c.own.drop()
	}
	if c.theirs != nil {
		c.theirs.drop()
	}
}

func (t *netTransport) listenLocal() error {
	l, err := listenLocal()
	if err != nil {
		return err
	}
	t.unix, t.localName = l, l.Addr().String()
	return nil
}

func (t *netTransport) acceptLocal(onLane func(lane)) {
	t.acceptLanes(t.unix, func(c net.Conn) (lane, error) { return shakeLocal(t.ctx, c.(*net.UnixConn), t.cfg, false) }, onLane)
}

func (t *netTransport) dialLocal(ctx context.Context, name string) (lane, error) {
	l, err := dialLocalConn(ctx, t.cfg, name)
	if err != nil {
		return nil, err
	}
	return l, nil
}
