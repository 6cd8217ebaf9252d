package wire

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// Memory that is used and let go while all of it is being zeroed is zero at the end too.
func TestArenaUsedWhileZeroed(t *testing.T) {
	const size = 4 * scrubStep
	fd, mem, err := newShared(size)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	a := newArena(mem, size)
	defer a.drop()
	_, all := a.get(size)
	a.release(all, false)
	a.sweep()
	a.sweep()
	b, off := a.get(scrubStep + 1)
	copy(b, payload(1, len(b)))
	if a.sweep() {
		t.Error("memory in use was zeroed")
	}
	a.release(off, false)
	for a.sweep() {
	}
	if i := bytes.IndexFunc(mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of the idle memory is not zero", i)
	}
	a.drop()
	a.drop() // the two parts' references
}

// Where the system does not take memory back, it is zeroed all the same.
func TestDiscardRefused(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap(mem)
	copy(mem, payload(1, len(mem)))
	discard(mem) // only shared memory can be given back
	if i := bytes.IndexFunc(mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d is not zero", i)
	}
}

// Memory whose pages may be missing when they are read, which ends the reader's process, is refused.
func TestHugePagesRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Skip("no huge pages on this system:", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	size := st.Blksize // the size of a page
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	if m, err := mapShared(fd, uint64(size)); err == nil {
		m.drop()
		t.Error("mapped")
	}
}
