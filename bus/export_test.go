package bus

import "time"

// SetPending bounds the messages that wait for one handler.
func (o *Options) SetPending(n int) { o.pending = n }

// Backoff is backoff.
func Backoff(attempt int, lo, hi time.Duration) time.Duration { return backoff(attempt, lo, hi) }

// RegistrySize is the number of names that a registry remembers.
func RegistrySize(r *Registry) int { return len(r.entries) }

// Ending reports whether Close has begun.
func (c *Conn) Ending() bool { return c.nc.IsDraining() || c.nc.IsClosed() }

// Flush waits until the server has answered everything sent before.
func (c *Conn) Flush() error { return c.nc.FlushTimeout(10 * time.Second) }
