package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/api/openai"
	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/route"
)

// This file is the one table from what went wrong to what the client is told. Errors say what to
// do next and hold no content.

const (
	retrySoon = 1 // seconds, where nothing was measured
	// retryMost bounds what clients are asked to wait: load changes faster than that.
	retryMost = 60
)

// retryAfter turns what was measured into the seconds that a client should wait.
func retryAfter(d time.Duration) int {
	return min(max(int((d+time.Second-1)/time.Second), retrySoon), retryMost)
}

func unavailable(code, message string) *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Type: openai.TypeServer, Code: code, Message: message, RetryAfter: retrySoon,
	}
}

func internal(code, message string) *openai.Error {
	return &openai.Error{Status: http.StatusInternalServerError, Type: openai.TypeServer, Code: code, Message: message}
}

func badRequest(code, param, message string) *openai.Error {
	return &openai.Error{
		Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: code, Param: param, Message: message,
	}
}

func errWorkerFailed() *openai.Error {
	return unavailable(openai.CodeWorkerFailed, "The workers serving this request failed. Try again.")
}

func errBusDown() *openai.Error {
	return unavailable(openai.CodeBusUnavailable, "The gateway lost its connection to the workers. Try again.")
}

func errShuttingDown() *openai.Error {
	return unavailable(openai.CodeShuttingDown, "The server is shutting down. Try again elsewhere or later.")
}

func errDeadline() *openai.Error {
	return &openai.Error{
		Status: http.StatusGatewayTimeout, Type: openai.TypeTimeout, Code: openai.CodeDeadline,
		Message: "The request did not complete in time. Ask for fewer tokens, give it more time, or try again later.",
	}
}

func errSlowClient() *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestTimeout, Type: openai.TypeTimeout, Code: openai.CodeClientTooSlow,
		Message: "The client read the answer too slowly; the request was cancelled.",
	}
}

// errClientGone is never read by anybody; its status is for metrics.
func errClientGone() *openai.Error {
	return &openai.Error{
		Status: statusClientGone, Type: openai.TypeInvalidRequest, Message: "The client closed the connection.",
	}
}

func errInternal() *openai.Error {
	return internal(openai.CodeInternal, "The server met an internal error. Try again.")
}

func errUnauthorized() *openai.Error {
	return &openai.Error{
		Status: http.StatusUnauthorized, Type: openai.TypeAuthentication, Code: openai.CodeInvalidAPIKey,
		Message: "Missing or incorrect API key. Send it as Authorization: Bearer KEY.",
	}
}

func errModel() *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: openai.CodeModelNotFound, Param: "model",
		Message: "The model does not exist here. GET /v1/models lists the models that do.",
	}
}

func errQueue(err error) *openai.Error {
	after := retrySoon
	var refused *refusedError
	if errors.As(err, &refused) {
		after = retryAfter(refused.after)
	}
	switch {
	case errors.Is(err, errTenantFull):
		return &openai.Error{
			Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: openai.CodeRateLimit,
			Message: "Too many requests of this API key's tenant are in flight. Wait for some to end.", RetryAfter: after,
		}
	case errors.Is(err, errClosed):
		return errShuttingDown()
	case errors.Is(err, errQueueFull):
		return &openai.Error{
			Status: http.StatusServiceUnavailable, Type: openai.TypeOverloaded, Code: openai.CodeOverloaded,
			Message: "The server is overloaded: its queue is full. Try again later.", RetryAfter: after,
		}
	}
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Type: openai.TypeOverloaded, Code: openai.CodeOverloaded,
		Message: "The server is overloaded: the request waited too long for its turn. Try again later.", RetryAfter: after,
	}
}

// errContext has the words that clients of the API look for.
func errContext(context, prompt, completion int, param string) *openai.Error {
	asked := fmt.Sprintf("you requested %d tokens (%d in the %s", prompt+completion, prompt, param)
	if completion > 0 {
		asked += fmt.Sprintf(", %d in the completion", completion)
	}
	return badRequest(openai.CodeContextLength, param, fmt.Sprintf(
		"This server's maximum context length is %d tokens. However, %s). Please reduce the length of the %s or completion.",
		context, asked, param))
}

// placeError says why no worker could be chosen, with every worker's reason.
func placeError(mode Mode, err error) *openai.Error {
	var r *route.RefusedError
	if !errors.As(err, &r) {
		return errInternal()
	}
	if r.Only(route.TooLong) {
		return badRequest(openai.CodeContextLength, "", "No worker can hold so many tokens. Please reduce the length of the prompt or completion.")
	}
	e := unavailable(openai.CodeNoWorkers, "No "+r.Side.String()+" worker can take the request")
	if r.Has(route.Incompatible) {
		e.Code = openai.CodeNoCompatiblePair
		e.Message = "No two workers can hand a request over to each other"
	}
	var why []string
	for _, w := range r.Refusals {
		s := w.Worker + " " + string(w.Reason)
		if w.Detail != "" {
			s += " (" + w.Detail + ")"
		}
		why = append(why, s)
	}
	if len(why) == 0 {
		why = []string{"none is registered"}
	}
	e.Message += ": " + strings.Join(why, "; ") + "."
	if mode == Disaggregated {
		e.Message += " This request asked for disaggregated serving; Tandem-Mode: auto allows colocated serving too."
	}
	return e
}

// workerError is what the client is told of a worker's refusal or failure. The worker's own text is
// for its log.
func workerError(code buspb.Code) *openai.Error {
	switch code {
	case buspb.Code_CODE_BAD_REQUEST:
		return badRequest(openai.CodeInvalidValue, "", "The workers refused the request's parameters.")
	case buspb.Code_CODE_TOO_LONG:
		return badRequest(openai.CodeContextLength, "", "No worker can hold so many tokens. Please reduce the length of the prompt or completion.")
	case buspb.Code_CODE_OVERLOADED:
		return &openai.Error{
			Status: http.StatusServiceUnavailable, Type: openai.TypeOverloaded, Code: openai.CodeOverloaded,
			Message: "The workers are overloaded. Try again later.", RetryAfter: 2 * retrySoon,
		}
	case buspb.Code_CODE_ENGINE, buspb.Code_CODE_INTERNAL:
		return internal(openai.CodeWorkerFailed, "The engine failed on this request. Try again.")
	case buspb.Code_CODE_INCOMPATIBLE:
		return unavailable(openai.CodeNoCompatiblePair, "The chosen workers cannot hand a request over to each other.")
	}
	return errWorkerFailed()
}
