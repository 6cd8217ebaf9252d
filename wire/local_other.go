//go:build !linux

package wire

import (
	"context"
	"errors"
)

var errNoLocal = errors.New("wire: this system has no same-host lane")

func unmap([]byte)   {}
func discard([]byte) {}

func (t *netTransport) listenLocal() error { return errNoLocal }

func (t *netTransport) acceptLocal(func(lane)) {}

func (t *netTransport) dialLocal(context.Context, string) (lane, error) { return nil, errNoLocal }
