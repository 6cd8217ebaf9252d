package report

import (
	"strconv"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/engine/timed"
)

// appendJSON appends the request as one line of JSON. Fields that mean nothing
// for it are left out.
func (q *Request) appendJSON(b []byte, good bool) []byte {
	b = append(b, '{')
	b = appendInt(b, "index", q.Index)
	if q.Session != 0 {
		b = appendKey(b, "session")
		b = strconv.AppendUint(b, q.Session, 10)
		b = appendInt(b, "turn", int64(q.Turn))
	}
	if q.Tenant != "" {
		b = appendString(b, "tenant", q.Tenant)
	}
	b = appendString(b, "status", q.Status.String())
	if q.Reason != "" {
		b = appendString(b, "reason", q.Reason)
	}
	b = appendKey(b, "good")
	b = strconv.AppendBool(b, good)
	b = appendString(b, "policy", q.Policy.String())
	b = appendTime(b, "arrival_s", q.Arrival)
	b = appendTime(b, "end_s", q.End)
	if q.Output >= 1 {
		b = appendTime(b, "ttft_s", q.First-q.Arrival)
	}
	if q.Output >= 2 {
		b = appendTime(b, "ttst_s", q.TTST())
		b = appendTime(b, "tpot_s", q.TPOT())
	}
	b = appendTime(b, "e2e_s", q.End-q.Arrival)
	b = appendInt(b, "input", int64(q.Input))
	b = appendInt(b, "output", int64(q.Output))
	b = appendInt(b, "cached_source", int64(q.CachedSource))
	b = appendInt(b, "retries", int64(q.Retries))
	b = appendInt(b, "preempted", int64(q.Preempted))
	b = appendInt(b, "prefill_worker", int64(q.Prefill))
	b = appendInt(b, "decode_worker", int64(q.Decode))
	if q.HandedOff {
		h := &q.Handoff
		b = appendInt(b, "cached_destination", int64(q.CachedDestination))
		b = appendInt(b, "bytes", h.Bytes)
		b = appendInt(b, "skipped_tokens", int64(h.SkippedTokens))
		for i, t := range h.phases() {
			b = appendTime(b, phaseKeys[i], t)
		}
	}
	return append(b, '}', '\n')
}

var phaseKeys = [phases]string{"reserve_s", "queue_s", "prefill_s", "export_s", "wire_s", "import_s", "commit_s", "overlapped_s", "tail_s"}

func appendKey(b []byte, key string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

func appendInt(b []byte, key string, n int64) []byte {
	return strconv.AppendInt(appendKey(b, key), n, 10)
}

func appendTime(b []byte, key string, t timed.Time) []byte {
	return appendSeconds(appendKey(b, key), t)
}

// appendString appends a JSON string. Tenants come from traces and may hold
// anything.
func appendString(b []byte, key, s string) []byte {
	b = append(appendKey(b, key), '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c < ' ':
			const hex = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return append(b, '"')
}
