package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is where a report was made. What the system does not tell is left out.
type Machine struct {
	CPU         string   `json:"cpu,omitempty"`
	Cores       int      `json:"cores"`
	MemoryBytes int64    `json:"memory_bytes,omitempty"`
	OS          string   `json:"os"`
	Arch        string   `json:"arch"`
	Kernel      string   `json:"kernel,omitempty"`
	Go          string   `json:"go"`
	LoadBefore  *float64 `json:"load_before,omitempty"` // mean runnable tasks of the last minute
	LoadAfter   *float64 `json:"load_after,omitempty"`
}

func readMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(), LoadBefore: readLoad()}
	if runtime.GOOS != "linux" {
		return m
	}
	m.CPU = firstField("/proc/cpuinfo", "model name")
	if kib, ok := strings.CutSuffix(firstField("/proc/meminfo", "MemTotal"), " kB"); ok {
		if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
			m.MemoryBytes = n << 10
		}
	}
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(raw))
	}
	return m
}

// firstField returns the value of the first "name: value" line of a file.
func firstField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func readLoad() *float64 {
	if runtime.GOOS != "linux" {
		return nil
	}
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(raw), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return nil
	}
	return &v
}

func (m Machine) write(p *printer) {
	cpu := m.CPU
	if cpu == "" {
		cpu = m.Arch
	}
	memory := ""
	if m.MemoryBytes > 0 {
		memory = ", " + number(float64(m.MemoryBytes)/(1<<30)) + " GiB"
	}
	kernel := m.OS
	if m.Kernel != "" {
		kernel += " " + m.Kernel
	}
	p.line("machine: %s, %d cores%s, %s, %s", cpu, m.Cores, memory, kernel, m.Go)
	if m.LoadBefore != nil && m.LoadAfter != nil {
		p.line("load: %s before, %s after", number(*m.LoadBefore), number(*m.LoadAfter))
	}
}
