//go:build !linux

package wire

import (
	"net"
	"syscall"
)

// laneSocket leaves sockets as the system makes them.
func laneSocket(*Config) func(network, address string, c syscall.RawConn) error { return nil }

// batched leaves the socket as it is: receive coalescing is Linux's.
func batched(c *net.UDPConn) net.PacketConn { return c }
