package openai

import (
	"fmt"
	"net/http"
	"strconv"
)

// Error types, as clients of the API know them.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
	TypeOverloaded     = "overloaded_error"
	TypeTimeout        = "timeout_error"
)

// Error codes. They are stable; messages are not.
const (
	CodeInvalidJSON       = "invalid_json"
	CodeInvalidValue      = "invalid_value"
	CodeInvalidType       = "invalid_type"
	CodeMissing           = "missing_required_parameter"
	CodeUnknownParameter  = "unknown_parameter"
	CodeUnsupported       = "unsupported_parameter"
	CodeUnsupportedValue  = "unsupported_value"
	CodeDuplicate         = "duplicate_parameter"
	CodeTooLarge          = "request_too_large"
	CodeMediaType         = "unsupported_media_type"
	CodeModelNotFound     = "model_not_found"
	CodeContextLength     = "context_length_exceeded"
	CodeInvalidAPIKey     = "invalid_api_key"
	CodeMethodNotAllowed  = "method_not_allowed"
	CodeUnknownURL        = "unknown_url"
	CodeRateLimit         = "rate_limit_exceeded"
	CodeOverloaded        = "overloaded"
	CodeDuplicateRequest  = "duplicate_request_id"
	CodeNoWorkers         = "no_workers"
	CodeNoCompatiblePair  = "no_compatible_workers"
	CodeWorkerFailed      = "worker_failed"
	CodeBusUnavailable    = "bus_unavailable"
	CodeDeadline          = "deadline_exceeded"
	CodeShuttingDown      = "shutting_down"
	CodeClientTooSlow     = "client_too_slow"
	CodeInternal          = "internal_error"
	CodeUnsupportedHeader = "unsupported_header"
)

// Error is one OpenAI-shaped error with its HTTP status. It is a value to be sent: Param names the
// field (a path such as messages[2].content) and Message tells the user what to do, neither repeats
// content.
type Error struct {
	Status     int    // HTTP status, 400..599
	Type       string // one of the Type constants
	Code       string // one of the Code constants
	Param      string // path of the field that was wrong, or empty
	Message    string // one sentence for the user
	RetryAfter int    // seconds for the Retry-After header; 0 sends none
}

// Error describes the error in one line.
func (e *Error) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("openai: %d %s: %s: %s", e.Status, e.Code, e.Param, e.Message)
	}
	return fmt.Sprintf("openai: %d %s: %s", e.Status, e.Code, e.Message)
}

// errorBody is the wire form: param and code are null when they are not known.
type errorBody struct {
	Error errorFields `json:"error"`
}

type errorFields struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// Body returns the JSON document of the error, the same in an HTTP answer and in a stream event.
func (e *Error) Body() []byte {
	f := errorFields{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		f.Param = &e.Param
	}
	if e.Code != "" {
		f.Code = &e.Code
	}
	return encode(errorBody{f})
}

// Write sends the error as a whole HTTP answer. It must be called before anything else was written.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.Status)
	w.Write(append(e.Body(), '\n')) // a client that went away needs no error
}

func invalid(code, param, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: code, Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

func wrongType(param, want string) *Error {
	return invalid(CodeInvalidType, param, "Invalid type for '%s': expected %s.", param, want)
}

func missing(param string) *Error {
	return invalid(CodeMissing, param, "Missing required parameter: '%s'.", param)
}

func unsupported(param, why string) *Error {
	return invalid(CodeUnsupported, param, "Unsupported parameter: '%s'. %s", param, why)
}

func unsupportedValue(param, want string) *Error {
	return invalid(CodeUnsupportedValue, param, "Unsupported value for '%s': this server supports only %s.", param, want)
}

func unknown(param string) *Error {
	return invalid(CodeUnknownParameter, param, "Unknown parameter: '%s'.", param)
}
