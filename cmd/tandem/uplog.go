package main

import "sync"

// logTail keeps the newest log lines of a fleet, for the moment in which it does
// not come up. It holds them in memory; the processes' logs carry no content.
type logTail struct {
	mu   sync.Mutex
	keep int
	buf  []byte
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if extra := len(l.buf) - l.keep; extra > 0 {
		l.buf = append(l.buf[:0], l.buf[extra:]...)
	}
	return len(p), nil
}

func (l *logTail) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}
