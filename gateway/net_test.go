package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// pipes is a listener whose connections are net.Pipes: real HTTP in virtual time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "gateway" }

// dial returns the client's end of a new connection.
func (p *pipes) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-time.After(time.Minute):
		return nil, errors.New("nobody accepts")
	}
}

// client returns an HTTP client that uses the pipes.
func (p *pipes) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: p.dialContext}}
}

func (p *pipes) dialContext(context.Context, string, string) (net.Conn, error) { return p.dial() }
