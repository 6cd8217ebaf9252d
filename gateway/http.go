package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/route"
	"github.com/tandem-llm/tandem/telemetry"
)

// routes builds the HTTP handler.
func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", g.chat)
	mux.HandleFunc("POST /v1/completions", g.completion)
	mux.HandleFunc("GET /v1/models", g.models)
	mux.HandleFunc("GET /v1/models/{id...}", g.model)
	mux.HandleFunc("GET /healthz", g.healthz)
	mux.HandleFunc("GET /readyz", g.readyz)
	mux.Handle("GET /metrics", g.metrics.Handler())
	mux.HandleFunc("GET /tandem/handoffs", g.recent)
	mux.HandleFunc("/", g.unknown)
	return g.outermost(mux)
}

// outermost names the request, counts the answer, and turns a defect into an error of one request.
func (g *Gateway) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A connection serves many requests, and a deadline of the last one may stand.
		writeWithin(w, g.cfg.WriteTimeout)
		cw := &countingWriter{ResponseWriter: w}
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				// Only the kind of value: a library may panic with what it worked on.
				g.cfg.Log.Error("a handler panicked", "kind", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
				if cw.status == 0 {
					errInternal().Write(cw)
				}
			}
			g.metrics.Responded(cw.status)
		}()
		next.ServeHTTP(cw, r)
	})
}

// countingWriter remembers the status.
type countingWriter struct {
	http.ResponseWriter
	status int
}

func (w *countingWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// authenticate returns the tenant of a request, or sends 401.
func (g *Gateway) authenticate(w http.ResponseWriter, r *http.Request) (string, bool) {
	key := ""
	if scheme, rest, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(rest)
	}
	tenant, ok := g.cfg.Keys.tenant(key)
	if !ok {
		g.metrics.Rejected(telemetry.RejectedAuth)
		errUnauthorized().Write(w)
	}
	return tenant, ok
}

func (g *Gateway) chat(w http.ResponseWriter, r *http.Request) {
	g.generate(w, r, openai.Chat, func(body []byte) (*asked, *openai.Error) {
		req, oerr := openai.DecodeChat(body)
		if oerr == nil && req.Model != g.cfg.Model {
			oerr = errModel()
		}
		if oerr != nil {
			return nil, oerr
		}
		return &asked{req.Generation, 1, func(int) ([]int32, *openai.Error) { return g.prompts.chat(req.Messages) }}, nil
	})
}

func (g *Gateway) completion(w http.ResponseWriter, r *http.Request) {
	g.generate(w, r, openai.Completion, func(body []byte) (*asked, *openai.Error) {
		req, oerr := openai.DecodeCompletion(body)
		if oerr == nil && req.Model != g.cfg.Model {
			oerr = errModel()
		}
		if oerr != nil {
			return nil, oerr
		}
		return &asked{req.Generation, len(req.Prompts), func(i int) ([]int32, *openai.Error) { return g.prompts.text(req.Prompts[i]) }}, nil
	})
}

// asked is what a body asks for. Its prompts become tokens when the request is admitted: one that waits, or
// is refused, costs no more than reading it.
type asked struct {
	gen     openai.Generation
	prompts int
	tokens  func(prompt int) ([]int32, *openai.Error)
}

// generate serves a request for an answer, from its header to its last byte.
func (g *Gateway) generate(w http.ResponseWriter, r *http.Request, e openai.Endpoint,
	decode func([]byte) (*asked, *openai.Error),
) {
	arrival := g.now()
	tenant, ok := g.authenticate(w, r)
	if !ok {
		return
	}
	refuse := func(why telemetry.Rejection, oerr *openai.Error) {
		g.metrics.Rejected(why)
		writeWithin(w, g.cfg.WriteTimeout)
		oerr.Write(w)
	}
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = newID("req_")
	} else if !validRequestID(id) {
		refuse(telemetry.RejectedInvalid, badRequest(openai.CodeUnsupportedHeader, "X-Request-Id",
			"X-Request-Id must be 1 to 128 visible ASCII characters."))
		return
	}
	w.Header().Set("X-Request-Id", id)
	how, err := g.how(r)
	if err != nil {
		refuse(telemetry.RejectedInvalid, err)
		return
	}
	if g.isStopping() {
		refuse(telemetry.RejectedShutdown, errShuttingDown())
		return
	}
	release, ok := g.live.claim(tenant, id)
	if !ok {
		w.Header().Set("X-Should-Retry", "false") // official clients would repeat a 409
		refuse(telemetry.RejectedDuplicate, &openai.Error{
			Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: openai.CodeDuplicateRequest, Param: "X-Request-Id",
			Message: "A request with this X-Request-Id is being served. Use another id, or none.",
		})
		return
	}
	defer release()

	body, oerr := readBody(w, r, g.cfg.MaxBody, g.cfg.ReadTimeout)
	if oerr != nil {
		refuse(telemetry.RejectedInvalid, oerr)
		return
	}
	want, oerr := decode(body)
	if oerr != nil {
		refuse(telemetry.RejectedInvalid, oerr)
		return
	}
	c, oerr := g.newCall(e, tenant, how, want, arrival)
	if oerr != nil {
		refuse(telemetry.RejectedInvalid, oerr)
		return
	}
	c.parent = g.cfg.Traces.Parent(r.Header)
	// From here on the request may wait for long; each write sets a deadline of its own.
	http.NewResponseController(w).SetWriteDeadline(time.Time{})
	leave, oerr := g.admit(r.Context(), c)
	if oerr != nil {
		refuse(rejectionOf(oerr), oerr)
		return
	}
	defer leave()
	if oerr = g.read(r.Context(), c, want); oerr == nil {
		oerr = g.begin(c)
	}
	if oerr != nil {
		refuse(rejectionOf(oerr), oerr)
		return
	}
	defer c.gone() // whoever is left, after an error or a departure
	if c.gen.Stream {
		oerr = c.stream(w, r, g.cfg.WriteTimeout)
	} else {
		oerr = c.answer(w, r, g.cfg.WriteTimeout)
	}
	if oerr != nil && oerr.Status != statusClientGone {
		if oerr.Code == openai.CodeOverloaded { // the workers' queues: they shorten as answers end
			oerr.RetryAfter = retryAfter(g.gate.soon())
		}
		writeWithin(w, g.cfg.WriteTimeout)
		oerr.Write(w)
	}
}

func rejectionOf(e *openai.Error) telemetry.Rejection {
	switch e.Code {
	case openai.CodeRateLimit:
		return telemetry.RejectedTenant
	case openai.CodeOverloaded:
		return telemetry.RejectedQueue
	case openai.CodeShuttingDown:
		return telemetry.RejectedShutdown
	case openai.CodeNoWorkers, openai.CodeNoCompatiblePair:
		return telemetry.RejectedWorkers
	}
	return telemetry.RejectedInvalid
}

// how is how a request is to be served.
type how struct {
	mode      Mode
	order     handoff.Policy // of a handoff
	onFailure handoff.Retry
	timeout   time.Duration // from its arrival, as the client wants it; 0: no word
}

// how is what a request's headers say, and for the rest the gateway's configuration.
func (g *Gateway) how(r *http.Request) (how, *openai.Error) {
	h := how{mode: g.cfg.Mode, order: g.cfg.Order, onFailure: g.cfg.Retry}
	var err error
	if v := r.Header.Get("Tandem-Mode"); v != "" {
		if h.mode, err = ParseMode(strings.ToLower(v)); err != nil {
			return how{}, badRequest(openai.CodeUnsupportedHeader, "Tandem-Mode", "Tandem-Mode must be auto, disaggregated or colocated.")
		}
	}
	if v := r.Header.Get("Tandem-Order"); v != "" {
		if h.order, err = ParseOrder(strings.ToLower(v)); err != nil {
			return how{}, badRequest(openai.CodeUnsupportedHeader, "Tandem-Order", "Tandem-Order must be destination-first or source-first.")
		}
	}
	if v := r.Header.Get("Tandem-Retry"); v != "" {
		if h.onFailure, err = ParseRetry(strings.ToLower(v)); err != nil {
			return how{}, badRequest(openai.CodeUnsupportedHeader, "Tandem-Retry", "Tandem-Retry must be recompute, rebind or none.")
		}
	}
	if v := r.Header.Get("Tandem-Timeout"); v != "" {
		s, err := strconv.ParseFloat(v, 64)
		if err != nil || !(s > 0 && s <= mostTimeout.Seconds()) {
			return how{}, badRequest(openai.CodeUnsupportedHeader, "Tandem-Timeout", "Tandem-Timeout must be a positive number of seconds, at most a week.")
		}
		h.timeout = max(1, time.Duration(s*float64(time.Second)))
	}
	return h, nil
}

// mostTimeout bounds what clients may ask for, as workers bound it; RequestTimeout holds all the same.
const mostTimeout = 7 * 24 * time.Hour

func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.authenticate(w, r); ok {
		writeJSON(w, http.StatusOK, openai.Models(g.created(), g.cfg.Model))
	}
}

func (g *Gateway) model(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.authenticate(w, r); !ok {
		return
	}
	if r.PathValue("id") != g.cfg.Model {
		errModel().Write(w)
		return
	}
	writeJSON(w, http.StatusOK, openai.Model(g.cfg.Model, g.created()))
}

// created is the start of this gateway: models have no other date.
func (g *Gateway) created() int64 { return g.epoch.Unix() }

// healthz says that the process lives.
func (g *Gateway) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
}

// readiness is the answer of /readyz.
type readiness struct {
	Status  string `json:"status"` // "ready" or "not ready"
	Reason  string `json:"reason,omitempty"`
	Model   string `json:"model"`
	Mode    Mode   `json:"mode"`
	Prefill int    `json:"prefill_workers"`
	Decode  int    `json:"decode_workers"`
	Both    int    `json:"both_workers"`
}

// readyz says whether a request of the configured mode would be served now, and why not.
func (g *Gateway) readyz(w http.ResponseWriter, _ *http.Request) {
	out := readiness{Status: "ready", Model: g.cfg.Model, Mode: g.cfg.Mode}
	out.Prefill, out.Decode, out.Both = g.fleet.count()
	status := http.StatusOK
	if why := g.unready(); why != "" {
		out.Status, out.Reason, status = "not ready", why, http.StatusServiceUnavailable
	}
	doc, err := json.Marshal(out)
	if err != nil {
		errInternal().Write(w)
		return
	}
	writeJSON(w, status, doc)
}

// unready says why requests cannot be served now, or nothing when they can.
func (g *Gateway) unready() string {
	g.mu.Lock()
	stopping, down, running := g.stopping, g.busDown != 0, g.link != nil
	g.mu.Unlock()
	switch {
	case stopping:
		return "shutting down"
	case !running:
		return "starting"
	case down:
		return "the bus is disconnected"
	}
	if err := g.fleet.check(g.cfg.Mode, route.Request{}); err != nil {
		return placeError(Auto, err).Message
	}
	return ""
}

// unknown answers everything else in the API's shape.
func (g *Gateway) unknown(w http.ResponseWriter, r *http.Request) {
	known := map[string]string{
		"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET",
		"/healthz": "GET", "/readyz": "GET", "/metrics": "GET", "/tandem/handoffs": "GET",
	}
	if method, ok := known[r.URL.Path]; ok {
		w.Header().Set("Allow", method)
		(&openai.Error{
			Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: openai.CodeMethodNotAllowed,
			Message: "Only " + method + " requests are accepted at this URL.",
		}).Write(w)
		return
	}
	(&openai.Error{
		Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: openai.CodeUnknownURL,
		Message: "Unknown URL. See docs/api.md for the endpoints of this server.",
	}).Write(w)
}

func writeJSON(w http.ResponseWriter, status int, doc []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(append(doc, '\n')) // a client that went away needs no error
}

// statusClientGone is the status that is counted for answers nobody waited for.
const statusClientGone = 499
