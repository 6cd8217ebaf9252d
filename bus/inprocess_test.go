package bus

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// TestMemoryConn: writing never waits, what was written before Close arrives, in order, and then the end.
func TestMemoryConn(t *testing.T) {
	near, far := net.Pipe()
	m := newMemoryConn(near, 1<<20)
	var want []byte
	for i := range 100 {
		part := bytes.Repeat([]byte{byte(i)}, i)
		want = append(want, part...)
		if n, err := m.Write(part); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := m.Read(make([]byte, 1)); err == nil {
		t.Error("read after close")
	}
	if got, err := io.ReadAll(far); !bytes.Equal(got, want) || err != nil {
		t.Errorf("%d bytes of %d arrived, %v", len(got), len(want), err)
	}
}

// TestMemoryConnBounded: a server that takes nothing costs bounded memory, and then the connection.
func TestMemoryConnBounded(t *testing.T) {
	near, far := net.Pipe()
	m := newMemoryConn(near, 1000)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = m.Write(make([]byte, 100))
	}
	if !errors.Is(err, errBacklog) || n < 10 {
		t.Errorf("%d writes, %v", n, err)
	}
	if _, err := io.ReadAll(far); err != nil {
		t.Errorf("the other end: %v", err)
	}
	if _, err := m.Write([]byte("x")); err == nil {
		t.Error("write after the end")
	}
	m.Close()
}

// TestMemoryConnBroken: the server's end is seen by the next writes.
func TestMemoryConnBroken(t *testing.T) {
	near, far := net.Pipe()
	m := newMemoryConn(near, 1<<20)
	far.Close()
	if _, err := m.Read(make([]byte, 1)); err == nil {
		t.Error("read from nobody")
	}
	for {
		if _, err := m.Write([]byte("x")); err != nil {
			break
		}
	}
	m.Close()
}
