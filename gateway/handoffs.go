package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/telemetry"
)

// defaultListed is how many records are listed when no limit is given.
const defaultListed = 100

// recent lists the newest records. Like metrics they hold no content and need no key.
func (g *Gateway) recent(w http.ResponseWriter, r *http.Request) {
	q := telemetry.Query{Limit: defaultListed}
	values := r.URL.Query()
	for name, set := range map[string]func(v uint64){
		"limit": func(v uint64) { q.Limit = int(min(v, telemetry.DefaultHandoffs)) },
		"after": func(v uint64) { q.After = v },
	} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil || name == "limit" && v == 0 {
			badRequest(openai.CodeInvalidValue, name, "'"+name+"' must be a positive whole number.").Write(w)
			return
		}
		set(v)
	}
	if q.ID = values.Get("id"); len(q.ID) > maxRequestID {
		badRequest(openai.CodeInvalidValue, "id", "'id' is the id of a handoff or of a request, as records have them.").Write(w)
		return
	}
	out := telemetry.HandoffList{Newest: g.handoffs.Newest()} // before they are read, so that none is missed
	out.Handoffs = g.handoffs.Find(q)
	doc, err := json.Marshal(out)
	if err != nil {
		errInternal().Write(w)
		return
	}
	writeJSON(w, http.StatusOK, doc)
}
