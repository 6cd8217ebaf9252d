package lane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/tandem-llm/tandem/mesh"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

// Names of the two workers.
const (
	source      = "bench-source"
	destination = "bench-destination"
)

// order is what the source tells the destination, one JSON line each. Every order has one reply.
type order struct {
	Op string // one of the below

	Dir       string        `json:",omitempty"` // setup: of the destination's identity
	Lane      wire.LaneMode `json:",omitempty"`
	PageBytes int64         `json:",omitempty"`
	Pages     int           `json:",omitempty"`

	Binding *state.Binding `json:",omitempty"` // expect
}

const (
	opSetup  = "setup"  // listen; the reply has the addresses
	opBare   = "bare"   // read a run's bytes from the bare connection; the reply comes when they are there
	opExpect = "expect" // expect a handoff; the reply has its ticket
	opGrant  = "grant"  // begin it; the reply comes when its manifest is there
	opCommit = "commit" // commit it; the reply comes when it is over
)

type reply struct {
	Err      string         `json:",omitempty"`
	Endpoint *wire.Endpoint `json:",omitempty"`
	Bare     string         `json:",omitempty"` // address
	Ticket   []byte         `json:",omitempty"`
	CPU      *float64       `json:",omitempty"` // seconds since the order came; absent where it cannot be known
}

// Child is the destination's process: it obeys the orders that come on in until that ends, and replies on out.
func Child(in io.Reader, out io.Writer) error {
	d := &dest{}
	defer d.close()
	orders, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
		start := cpuSeconds()
		r, err := d.obey(o)
		if err != nil {
			r.Err = err.Error()
		}
		if cpu := cpuSeconds() - start; !math.IsNaN(cpu) {
			r.CPU = &cpu
		}
		if err := replies.Encode(r); err != nil {
			return fmt.Errorf("replies: %w", err)
		}
	}
}

type dest struct {
	o    order // the setup
	node *wire.Node
	bare *bareListener
	buf  []byte // ring

	rcv     *wire.Receiver
	arrived *once // manifest or failure
	over    *once // quiesced
}

// once is an event that may come with an error.
type once struct {
	done chan struct{}
	set  sync.Once
	err  error
}

func newOnce() *once { return &once{done: make(chan struct{})} }

func (o *once) fire(err error) { o.set.Do(func() { o.err = err; close(o.done) }) }

func (o *once) wait() error {
	<-o.done
	return o.err
}

func (d *dest) close() {
	if d.node != nil {
		d.node.Close()
	}
	if d.bare != nil {
		d.bare.quit()
	}
}

func (d *dest) obey(o order) (reply, error) {
	if o.Op != opSetup && d.node == nil {
		return reply{}, errors.New("no setup")
	}
	switch o.Op {
	case opSetup:
		return d.setup(o)
	case opBare:
		if d.bare == nil {
			return reply{}, errors.New("no bare connection")
		}
		return reply{}, d.bare.receive(d.o.PageBytes*int64(d.o.Pages), d.buf)
	case opExpect:
		return d.expect(o)
	case opGrant, opCommit:
		if d.rcv == nil {
			return reply{}, errors.New("no handoff")
		}
		if o.Op == opGrant {
			d.rcv.Grant()
			return reply{}, d.arrived.wait()
		}
		if err := d.rcv.Commit(wire.OutcomeActive); err != nil {
			return reply{}, err
		}
		return reply{}, d.over.wait()
	}
	return reply{}, fmt.Errorf("unknown order %q", o.Op)
}

func (d *dest) setup(o order) (reply, error) {
	id, err := mesh.Load(o.Dir, nil)
	if err != nil {
		return reply{}, err
	}
	if d.node, err = listen(id, o.Lane, o.PageBytes); err != nil {
		return reply{}, err
	}
	end := d.node.Endpoint()
	if o.Lane == wire.LaneLocal {
		return reply{Endpoint: &end}, nil
	}
	if d.bare, err = listenBare(o.Lane, id); err != nil {
		return reply{}, err
	}
	d.o, d.buf = o, make([]byte, ring*o.PageBytes)
	return reply{Endpoint: &end, Bare: d.bare.addr}, nil
}

func listen(id *mesh.Identity, lane wire.LaneMode, page int64) (*wire.Node, error) {
	return wire.Listen(wire.Config{Identity: id, Incarnation: 1, Addr: "127.0.0.1:0", Lane: lane, PageBytes: page, LargestUnit: page})
}

func (d *dest) expect(o order) (reply, error) {
	if o.Binding == nil {
		return reply{}, errors.New("no binding")
	}
	arrived, over := newOnce(), newOnce()
	rcv, err := d.node.Expect(*o.Binding, wire.ReceiverEvents{
		Unit:     (*wire.Unit).Release,
		Manifest: func([]byte) { arrived.fire(nil) },
		Failed:   func(err error) { arrived.fire(err); over.fire(err) },
		Quiesced: func() { over.fire(nil) },
	})
	if err != nil {
		return reply{}, err
	}
	d.rcv, d.arrived, d.over = rcv, arrived, over
	return reply{Ticket: rcv.Ticket()}, nil
}
