package llama

import (
	"runtime"
	"unsafe"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/hybridgroup/yzma/pkg/loader"
	"github.com/jupiterrider/ffi"
)

// yzma's wrappers build their argument lists anew for every call, which costs
// about ten allocations each. The calls below are made for every step and every
// page, so they are bound once more, with argument lists that live as long as
// the context. Everything else goes through yzma.

// statePartial is LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the window and recurrent
// sections alone.
const statePartial = 1

// functions are the entry points bound here, shared by all contexts.
type functions struct {
	decode, logits        ffi.Fun
	seqCp, seqRm          ffi.Fun
	stateGet, stateSet    ffi.Fun
	tokenize              ffi.Fun
	llamaVersion, ggmlVer ffi.Fun
	setAbort              ffi.Fun
}

// batchType mirrors struct llama_batch, which is passed by value.
var batchType = ffi.NewType(&ffi.TypeSint32,
	&ffi.TypePointer, &ffi.TypePointer, &ffi.TypePointer,
	&ffi.TypePointer, &ffi.TypePointer, &ffi.TypePointer)

// bind resolves every function; the first missing symbol is the error.
func (f *functions) bind(lib loader.Lib) error {
	p, i32, u32, u64, u8, void := &ffi.TypePointer, &ffi.TypeSint32, &ffi.TypeUint32, &ffi.TypeUint64, &ffi.TypeUint8, &ffi.TypeVoid
	for _, b := range []struct {
		fun  *ffi.Fun
		name string
		ret  *ffi.Type
		args []*ffi.Type
	}{
		{&f.decode, "llama_decode", i32, []*ffi.Type{p, &batchType}},
		{&f.logits, "llama_get_logits_ith", p, []*ffi.Type{p, i32}},
		{&f.seqCp, "llama_memory_seq_cp", void, []*ffi.Type{p, i32, i32, i32, i32}},
		{&f.seqRm, "llama_memory_seq_rm", u8, []*ffi.Type{p, i32, i32, i32}},
		{&f.stateGet, "llama_state_seq_get_data_ext", u64, []*ffi.Type{p, p, u64, i32, u32}},
		{&f.stateSet, "llama_state_seq_set_data_ext", u64, []*ffi.Type{p, p, u64, i32, u32}},
		{&f.tokenize, "llama_tokenize", i32, []*ffi.Type{p, p, i32, p, i32, u8, u8}},
	} {
		var err error
		if *b.fun, err = lib.Prep(b.name, b.ret, b.args...); err != nil {
			return err
		}
	}
	return nil
}

// native calls one context. It is on the heap, so the addresses of its fields,
// which C reads arguments from, do not move. It belongs to the owner goroutine.
type native struct {
	fn *functions

	ctx llama.Context
	mem llama.Memory

	src, dst, p0, p1 int32
	data             *byte
	size             uint64
	flags            uint32
	row              int32
	batch            llama.BatchData
	ret              ffi.Arg // results are at least this wide
	retPtr           *float32

	cpArgs, rmArgs, stateArgs, decodeArgs, logitsArgs []unsafe.Pointer
}

func newNative(fn *functions, ctx llama.Context, mem llama.Memory) *native {
	n := &native{fn: fn, ctx: ctx, mem: mem}
	ptr := func(list ...unsafe.Pointer) []unsafe.Pointer { return list }
	n.cpArgs = ptr(unsafe.Pointer(&n.mem), unsafe.Pointer(&n.src), unsafe.Pointer(&n.dst), unsafe.Pointer(&n.p0), unsafe.Pointer(&n.p1))
	n.rmArgs = ptr(unsafe.Pointer(&n.mem), unsafe.Pointer(&n.dst), unsafe.Pointer(&n.p0), unsafe.Pointer(&n.p1))
	n.stateArgs = ptr(unsafe.Pointer(&n.ctx), unsafe.Pointer(&n.data), unsafe.Pointer(&n.size), unsafe.Pointer(&n.dst), unsafe.Pointer(&n.flags))
	n.decodeArgs = ptr(unsafe.Pointer(&n.ctx), unsafe.Pointer(&n.batch))
	n.logitsArgs = ptr(unsafe.Pointer(&n.ctx), unsafe.Pointer(&n.row))
	return n
}

// copySeq puts the cells of src in [p0,p1) into dst as well; -1, -1 is all.
func (n *native) copySeq(src, dst int32, p0, p1 int) {
	n.src, n.dst, n.p0, n.p1 = src, dst, int32(p0), int32(p1)
	ffi.Call(n.fn.seqCp.Cif, n.fn.seqCp.Addr, nil, n.cpArgs...)
}

// removeSeq empties a sequence. Only whole sequences are ever removed: a part
// of a recurrent one cannot be, and llama.cpp says it could.
func (n *native) removeSeq(seq int32) bool {
	n.dst, n.p0, n.p1 = seq, -1, -1
	ffi.Call(n.fn.seqRm.Cif, n.fn.seqRm.Addr, unsafe.Pointer(&n.ret), n.rmArgs...)
	return n.ret.Bool()
}

// stateGet writes the state of seq to b and returns its length, 0 on failure.
func (n *native) stateGet(b []byte, seq int32, flags uint32) int {
	return n.state(&n.fn.stateGet, b, seq, flags)
}

// stateSet reads the state of seq from b and returns how much was read, 0 on
// failure.
func (n *native) stateSet(b []byte, seq int32, flags uint32) int {
	return n.state(&n.fn.stateSet, b, seq, flags)
}

func (n *native) state(fun *ffi.Fun, b []byte, seq int32, flags uint32) int {
	n.data, n.size, n.dst, n.flags = unsafe.SliceData(b), uint64(len(b)), seq, flags
	ffi.Call(fun.Cif, fun.Addr, unsafe.Pointer(&n.ret), n.stateArgs...)
	n.data = nil // do not keep the caller's memory alive
	runtime.KeepAlive(b)
	return int(n.ret)
}

// decode runs the batch and returns llama_decode's code.
func (n *native) decode() int32 {
	// libffi copies structures that are passed by value and puts the address of
	// its copy, on a stack that is gone afterwards, into the argument list.
	n.decodeArgs[1] = unsafe.Pointer(&n.batch)
	ffi.Call(n.fn.decode.Cif, n.fn.decode.Addr, unsafe.Pointer(&n.ret), n.decodeArgs...)
	return int32(n.ret)
}

// logits returns the address of a row's logits, nil when it has none.
func (n *native) logits(row int32) *float32 {
	n.row, n.retPtr = row, nil
	ffi.Call(n.fn.logits.Cif, n.fn.logits.Addr, unsafe.Pointer(&n.retPtr), n.logitsArgs...)
	return n.retPtr
}
