package llama

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/hybridgroup/yzma/pkg/loader"
	"github.com/jupiterrider/ffi"

	_ "github.com/tandem-llm/tandem/engine/llama/internal/preflight" // must come before ffi
)

// yzma's wrappers build their argument lists anew for every call, which costs
// about ten allocations each. The calls below are made for every step and every
// page, so they are bound once more. Everything else goes through yzma.

// statePartial is LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the window and recurrent
// sections alone.
const statePartial = 1

// functions are the entry points bound here, shared by all contexts.
type functions struct {
	decode, logits        ffi.Fun
	seqCp, seqRm          ffi.Fun
	stateGet, stateSet    ffi.Fun
	tokenize              ffi.Fun
	logSet, nothing       ffi.Fun
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
		{&f.logSet, "llama_log_set", void, []*ffi.Type{p, p}},
		{&f.nothing, "llama_max_parallel_sequences", u64, nil},
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
//
// libffi is not needed for functions that take and return integers and
// pointers: purego passes those as they are. Its binding allocates for every
// call, this does not.
type native struct {
	fn *functions

	ctx llama.Context
	mem llama.Memory

	// args is the argument list of the call being made.
	args [maxArgs]uintptr
	// data keeps the caller's memory on the heap and alive during a call.
	data  *byte
	batch llama.BatchData

	decodeArgs []unsafe.Pointer // for libffi
	ret        ffi.Arg
}

// maxArgs is enough for decode: six registers and a llama_batch on the stack.
const maxArgs = 6 + batchWords

const batchWords = int(unsafe.Sizeof(llama.BatchData{}) / unsafe.Sizeof(uintptr(0)))

func newNative(fn *functions, ctx llama.Context, mem llama.Memory) *native {
	n := &native{fn: fn, ctx: ctx, mem: mem}
	n.decodeArgs = []unsafe.Pointer{unsafe.Pointer(&n.ctx), unsafe.Pointer(&n.batch)}
	return n
}

// word is an int32 as C passes it.
func word(v int32) uintptr { return uintptr(uint32(v)) }

// copySeq puts the cells of src in [p0,p1) into dst as well; -1, -1 is all.
func (n *native) copySeq(src, dst int32, p0, p1 int) {
	a := append(n.args[:0], uintptr(n.mem), word(src), word(dst), word(int32(p0)), word(int32(p1)))
	purego.SyscallN(n.fn.seqCp.Addr, a...)
}

// removeSeq empties a sequence. Of one that is decoded only the whole is ever
// removed: a part of a recurrent one cannot be, and llama.cpp says it could.
func (n *native) removeSeq(seq int32) bool {
	a := append(n.args[:0], uintptr(n.mem), word(seq), word(-1), word(-1))
	r, _, _ := purego.SyscallN(n.fn.seqRm.Addr, a...)
	return byte(r) != 0
}

// removeRange takes [p0,p1) from a sequence that has no recurrent state.
func (n *native) removeRange(seq int32, p0, p1 int) bool {
	a := append(n.args[:0], uintptr(n.mem), word(seq), word(int32(p0)), word(int32(p1)))
	r, _, _ := purego.SyscallN(n.fn.seqRm.Addr, a...)
	return byte(r) != 0
}

// stateGet writes the state of seq to b and returns its length, 0 on failure.
func (n *native) stateGet(b []byte, seq int32, flags uint32) int {
	return n.state(n.fn.stateGet.Addr, b, seq, flags)
}

// stateSet reads the state of seq from b and returns how much was read, 0 on
// failure.
func (n *native) stateSet(b []byte, seq int32, flags uint32) int {
	return n.state(n.fn.stateSet.Addr, b, seq, flags)
}

func (n *native) state(fun uintptr, b []byte, seq int32, flags uint32) int {
	n.data = unsafe.SliceData(b)
	a := append(n.args[:0], uintptr(n.ctx), uintptr(unsafe.Pointer(n.data)), uintptr(len(b)), word(seq), uintptr(flags))
	r, _, _ := purego.SyscallN(fun, a...)
	n.args[1], n.data = 0, nil
	runtime.KeepAlive(b)
	return int(r)
}

// decodeOnStack is set where a structure passed by value lies on the stack after
// six arguments in registers: the System V convention of x86-64.
const decodeOnStack = runtime.GOARCH == "amd64" && runtime.GOOS != "windows"

// decode runs the batch and returns llama_decode's code.
func (n *native) decode() int32 {
	if decodeOnStack {
		n.args = [maxArgs]uintptr{uintptr(n.ctx)}
		copy(n.args[6:], (*[batchWords]uintptr)(unsafe.Pointer(&n.batch))[:])
		r, _, _ := purego.SyscallN(n.fn.decode.Addr, n.args[:]...)
		return int32(r)
	}
	// libffi copies structures that are passed by value and puts the address of
	// its copy, on a stack that is gone afterwards, into the argument list.
	n.decodeArgs[1] = unsafe.Pointer(&n.batch)
	ffi.Call(n.fn.decode.Cif, n.fn.decode.Addr, unsafe.Pointer(&n.ret), n.decodeArgs...)
	return int32(n.ret)
}

// logits returns the address of a row's logits, nil when it has none.
func (n *native) logits(row int32) *float32 {
	a := append(n.args[:0], uintptr(n.ctx), word(row))
	r, _, _ := purego.SyscallN(n.fn.logits.Addr, a...)
	return *(**float32)(unsafe.Pointer(&r)) // memory of C
}
