package verify

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/tandem-llm/tandem/model"
	"github.com/tandem-llm/tandem/state"
)

// available is how many bytes of memory this machine would give now, and false where it does not say: the least
// of what Linux calls available and what is left of the control group's limit.
func available() (int64, bool) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	_, rest, ok := bytes.Cut(raw, []byte("MemAvailable:"))
	fields := bytes.Fields(rest)
	if !ok || len(fields) == 0 {
		return 0, false
	}
	kb, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0, false
	}
	bytes := kb << 10
	limit, okLimit := readNumber("/sys/fs/cgroup/memory.max")
	used, okUsed := readNumber("/sys/fs/cgroup/memory.current")
	if okLimit && okUsed {
		bytes = min(bytes, max(limit-used, 0))
	}
	return bytes, true
}

func readNumber(path string) (int64, bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64)
	return n, err == nil
}

// engines that a cell may need at once: source, destination, and control.
const engines = 3

// overhead is an allowance for what an engine computes in, and for buffers on the way, in bytes for each engine.
const overhead = 256 << 20

// need estimates the memory of the cells of one prompt length: the weights once (they are mapped and shared), for
// each engine its attention cells and a fixed state per slot, and one export for each page size.
func need(file *model.Model, inv state.Inventory, cells, tokens, exports int) int64 {
	perToken, fixed := int64(inv.TokenBytes()), int64(inv.FixedBytes())
	if w := inv.Find(state.WindowKV); w != nil {
		_, most := inv.SnapshotBytes(uint32(tokens))
		fixed = max(fixed, int64(most))
	}
	each := int64(cells)*perToken + (slots+1)*fixed + overhead
	return file.FileBytes + engines*each + int64(exports)*(int64(tokens)*perToken+fixed)
}

// gib prints bytes for a reason.
func gib(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
