package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ReadMetrics reads all samples of a Prometheus text document, by name and labels as
// they stand there.
func ReadMetrics(r io.Reader) (map[string]float64, error) {
	all := map[string]float64{}
	s := bufio.NewScanner(r)
	for s.Scan() {
		sample, value, ok := strings.Cut(s.Text(), "} ")
		if ok {
			sample += "}"
		} else if sample, value, ok = strings.Cut(s.Text(), " "); !ok {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(sample, "#") {
			all[sample] = v
		}
	}
	return all, s.Err()
}

// Held returns the samples that show that a process still holds something for
// requests, the missing ones included. They are all zero at rest.
func Held(gateway bool, metrics map[string]float64) []string {
	var out []string
	for _, sample := range heldSamples(gateway) {
		if v, ok := metrics[sample]; !ok {
			out = append(out, sample+" is not there")
		} else if v != 0 {
			out = append(out, fmt.Sprintf("%s is %v", sample, v))
		}
	}
	return out
}

func heldSamples(gateway bool) []string {
	if gateway {
		return []string{"tandem_requests_active", "tandem_requests_queued"}
	}
	var all []string
	for _, what := range []string{"sequences", "streams", "tickets", "buffers", "handoffs"} {
		all = append(all, fmt.Sprintf("tandem_worker_held{what=%q}", what))
	}
	for _, use := range []string{"active", "pinned", "reserved"} {
		all = append(all, fmt.Sprintf("tandem_worker_cells{state=%q}", use), fmt.Sprintf("tandem_worker_slots{state=%q}", use))
	}
	return all
}

// Footprint is what a process at rest consists of.
type Footprint struct {
	Process    string `json:"process"`
	Life       int    `json:"life"` // from 1
	Goroutines []int  `json:"goroutines"`
	Files      []int  `json:"files"`
	RSSMiB     []int  `json:"rss_mib"`
}

// Growth between the first and the last rest of a life that is none: connections to
// peers come and go with some goroutines and files, heaps and the state of sequences
// fill memory once. What leaks with each of some hundred requests exceeds it.
const (
	goroutineSlack = 48
	fileSlack      = 32
	rssSlackMiB    = 96
)

// grown says by what a process has grown beyond the slack, or nothing.
func (f *Footprint) grown() string {
	of := func(what string, list []int, slack int) string {
		if n := len(list); n > 1 && list[n-1] > list[0]+slack && list[n-1] > list[n/2] {
			return fmt.Sprintf("%s (life %d): %s went from %d to %d", f.Process, f.Life, what, list[0], list[n-1])
		}
		return ""
	}
	for _, s := range []string{
		of("goroutines", f.Goroutines, goroutineSlack), of("open files", f.Files, fileSlack), of("MiB of memory", f.RSSMiB, rssSlackMiB),
	} {
		if s != "" {
			return s
		}
	}
	return ""
}

// footprints are those of all lives that were seen at rest.
type footprints struct {
	list []*Footprint
}

func (f *footprints) add(process string, life int, m map[string]float64) {
	var at *Footprint
	for _, p := range f.list {
		if p.Process == process && p.Life == life {
			at = p
		}
	}
	if at == nil {
		at = &Footprint{Process: process, Life: life}
		f.list = append(f.list, at)
	}
	at.Goroutines = append(at.Goroutines, int(m["go_goroutines"]))
	at.Files = append(at.Files, int(m["process_open_fds"]))
	at.RSSMiB = append(at.RSSMiB, int(m["process_resident_memory_bytes"]/(1<<20)))
}

// scrape reads the metrics of a process that is up.
func (r *run) scrape(ctx context.Context, process string) (row, map[string]float64, error) {
	at, _ := r.table.look(process)
	if at.metrics == "" {
		return at, nil, errDown
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.metrics+"/metrics", nil)
	if err != nil {
		return at, nil, err
	}
	res, err := r.client.http.Do(req)
	if err != nil {
		return at, nil, err
	}
	defer res.Body.Close()
	m, err := ReadMetrics(res.Body)
	return at, m, err
}

// notAtRest says what is still held anywhere, and what each process consists of.
func (r *run) notAtRest(ctx context.Context) (held []string, seen func(*footprints)) {
	type look struct {
		process string
		life    int
		metrics map[string]float64
	}
	var looks []look
	for _, process := range r.processes() {
		at, m, err := r.scrape(ctx, process)
		if err != nil {
			held = append(held, fmt.Sprintf("%s does not answer: %v", process, err))
			continue
		}
		for _, h := range Held(process == Gateway, m) {
			held = append(held, process+": "+h)
		}
		looks = append(looks, look{process, at.lives, m})
	}
	for _, s := range r.tracer.ledger.open(0) {
		held = append(held, Gateway+": "+s)
	}
	return held, func(f *footprints) {
		for _, l := range looks {
			f.add(l.process, l.life, l.metrics)
		}
	}
}

// rest waits until all processes are up and nothing is held anywhere, and returns what
// still was when the time for it was over.
func (r *run) rest(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Rest)
	defer cancel()
	for _, w := range r.cfg.Workers {
		if _, err := r.table.awaitUp(ctx, w.Name); err != nil {
			return []string{w.Name + " does not come up again"}
		}
	}
	if err := r.fleet.Ready(ctx); err != nil {
		return []string{"the gateway does not know all workers: " + err.Error()}
	}
	began, told := time.Now(), 0
	for {
		held, seen := r.notAtRest(ctx)
		if len(held) == 0 {
			seen(&r.footprints)
			return nil
		}
		if waited := int(time.Since(began).Seconds()) / 10; waited > told {
			told = waited
			r.cfg.Say(fmt.Sprintf("waiting for the fleet to come to rest: %s (%d in all)", held[0], len(held)))
		}
		select {
		case <-ctx.Done():
			held, _ := r.notAtRest(context.WithoutCancel(ctx))
			return held
		case <-time.After(100 * time.Millisecond):
		}
	}
}
