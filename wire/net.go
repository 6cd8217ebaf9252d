package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/tandem-llm/tandem/mesh"
)

// Application protocols: the control connection, and the bulk lanes beside it.
const (
	alpnControl = "tandem/1"
	alpnLane    = "tandem-lane/1"
)

// netTransport is the transport of sockets: one UDP socket for all QUIC connections, in and out, and one TCP listener.
type netTransport struct {
	cfg       *Config
	udp       *net.UDPConn
	quic      *quic.Transport
	conf      *quic.Config
	in        *quic.Listener
	tcp       net.Listener      // nil without TLS lanes
	unix      *net.UnixListener // nil without same-host lanes
	localName string
	end       Endpoint
	wg        sync.WaitGroup
	ctx       context.Context
	cancel    context.CancelFunc
	shakes    chan struct{} // bounds TLS handshakes under way
}

// maxHandshakes bounds incoming TLS handshakes under way; more wait in the kernel.
const maxHandshakes = 64

func listenNet(cfg *Config) (_ *netTransport, err error) {
	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, configError("Addr", "is not host:port")
	}
	announce := cfg.Advertise
	if announce == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return nil, configError("Advertise", "is missing, and Addr names no host that peers could dial")
		}
		announce = host
	}
	t := &netTransport{cfg: cfg, shakes: make(chan struct{}, maxHandshakes)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	ua, err := net.ResolveUDPAddr("udp", cfg.Addr)
	if err != nil {
		return nil, &Error{Code: ErrConfig, Detail: "Addr", Cause: err}
	}
	if t.udp, err = net.ListenUDP("udp", ua); err != nil {
		return nil, &Error{Code: ErrConfig, Detail: "cannot listen on UDP " + cfg.Addr + "; is another worker using it?", Cause: err}
	}
	udpPort := t.udp.LocalAddr().(*net.UDPAddr).Port
	t.end = Endpoint{QUIC: net.JoinHostPort(announce, strconv.Itoa(udpPort))}
	if cfg.Lane.has(LaneLocal) {
		if err := t.listenLocal(); err != nil && cfg.Lane == LaneLocal {
			return nil, &Error{Code: ErrConfig, Detail: "cannot listen for same-host lanes", Cause: err}
		}
	}
	if cfg.Lane.has(LaneTLS) {
		lc := laneListenConfig(cfg)
		// The same number for both is easier to open in a firewall, but only an explicit port must have it.
		t.tcp, err = lc.Listen(t.ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(udpPort)))
		if err != nil && port == "0" {
			t.tcp, err = lc.Listen(t.ctx, "tcp", net.JoinHostPort(host, "0"))
		}
		if err != nil {
			return nil, &Error{Code: ErrConfig, Detail: "cannot listen on TCP " + cfg.Addr + "; is another worker using it?", Cause: err}
		}
		tcpPort := t.tcp.Addr().(*net.TCPAddr).Port
		t.end.TLS = net.JoinHostPort(announce, strconv.Itoa(tcpPort))
		t.end.Lanes = cfg.Lanes
	}
	t.quic = &quic.Transport{Conn: batched(t.udp)}
	t.conf = quicConfig(cfg)
	t.in, err = t.quic.Listen(cfg.Identity.ServerTLS([]string{alpnControl}, mesh.Allow(mesh.RoleWorker)), t.conf)
	if err != nil {
		return nil, &Error{Code: ErrConfig, Detail: "cannot serve QUIC", Cause: err}
	}
	return t, nil
}

func (t *netTransport) endpoint() Endpoint { return t.end }
func (t *netTransport) local() string      { return t.localName }

func (t *netTransport) close() error {
	t.cancel()
	if t.tcp != nil {
		t.tcp.Close()
	}
	if t.unix != nil {
		t.unix.Close()
	}
	var err error
	if t.quic != nil {
		if t.in != nil {
			t.in.Close()
		}
		err = t.quic.Close()
	}
	if t.udp != nil {
		t.udp.Close()
	}
	return err
}

func (t *netTransport) serve(onLink func(link), onLane func(lane)) {
	t.wg.Go(func() {
		for {
			c, err := t.in.Accept(t.ctx)
			if err != nil {
				return
			}
			t.wg.Go(func() {
				l, err := newQUICLink(c)
				if err != nil {
					c.CloseWithError(quic.ApplicationErrorCode(ErrIdentity), "")
					return
				}
				onLink(l)
			})
		}
	})
	if t.tcp != nil {
		t.wg.Go(func() { t.acceptTCP(onLane) })
	}
	if t.unix != nil {
		t.wg.Go(func() { t.acceptLocal(onLane) })
	}
	t.wg.Wait()
}

func (t *netTransport) acceptTCP(onLane func(lane)) {
	t.acceptLanes(t.tcp, func(c net.Conn) (lane, error) {
		conf := t.cfg.Identity.ServerTLS([]string{alpnLane}, mesh.Allow(mesh.RoleWorker))
		return shakeLane(t.ctx, c, t.cfg, func(c net.Conn) *tls.Conn { return tls.Server(c, conf) })
	}, onLane)
}

// acceptLanes hands over what dials in and shakes hands, until the transport is closed.
func (t *netTransport) acceptLanes(in net.Listener, shake func(net.Conn) (lane, error), onLane func(lane)) {
	for {
		select {
		case t.shakes <- struct{}{}:
		case <-t.ctx.Done():
			return
		}
		c, err := in.Accept()
		if err != nil {
			if !isTemporary(err) || !t.pause() {
				return
			}
			<-t.shakes
			continue
		}
		t.wg.Go(func() {
			l, err := shake(c)
			<-t.shakes
			if err == nil {
				onLane(l)
			}
		})
	}
}

// isTemporary says that accepting may succeed later: too many open files, a connection that was reset in the queue.
func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// pause waits before the next attempt to accept, and reports false when there will be none.
func (t *netTransport) pause() bool {
	select {
	case <-time.After(acceptPause):
		return true
	case <-t.ctx.Done():
		return false
	}
}

// acceptPause is long enough for a process without descriptors not to be busy with asking for them.
const acceptPause = 20 * time.Millisecond

func (t *netTransport) dial(ctx context.Context, to Endpoint, want string) (link, error) {
	addr, err := resolveUDP(ctx, to.QUIC)
	if err != nil {
		return nil, &Error{Code: ErrUnreachable, Peer: want, Detail: "its QUIC address does not resolve", Cause: err}
	}
	conf := t.cfg.Identity.ClientTLS([]string{alpnControl}, mesh.Peer{Role: mesh.RoleWorker, Name: want})
	c, err := t.quic.Dial(ctx, addr, conf, t.conf)
	if err != nil {
		return nil, dialError(want, err)
	}
	l, err := newQUICLink(c)
	if err != nil {
		c.CloseWithError(quic.ApplicationErrorCode(ErrIdentity), "")
		return nil, dialError(want, err)
	}
	return l, nil
}

func (t *netTransport) dialLane(ctx context.Context, to Endpoint, want string) (lane, error) {
	d := laneDialer(t.cfg)
	c, err := d.DialContext(ctx, "tcp", to.TLS)
	if err != nil {
		return nil, dialError(want, err)
	}
	conf := t.cfg.Identity.ClientTLS([]string{alpnLane}, mesh.Peer{Role: mesh.RoleWorker, Name: want})
	l, err := shakeLane(ctx, c, t.cfg, func(c net.Conn) *tls.Conn { return tls.Client(c, conf) })
	if err != nil {
		return nil, dialError(want, err)
	}
	return l, nil
}

func resolveUDP(ctx context.Context, hostport string) (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q is not a number", truncate(port, 16))
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(ips) == 0 {
		return nil, errors.New("no address")
	}
	return &net.UDPAddr{IP: ips[0].IP, Zone: ips[0].Zone, Port: int(p)}, nil
}

// dialError tells a peer that is not there from one that is somebody else.
func dialError(want string, err error) error {
	code := ErrUnreachable
	var m *mesh.Error
	var q *quic.TransportError
	var a tls.AlertError
	if errors.As(err, &m) || errors.As(err, &q) && q.ErrorCode.IsCryptoError() || errors.As(err, &a) {
		code = ErrIdentity
	}
	return &Error{Code: code, Peer: want, Cause: err}
}
