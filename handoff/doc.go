// Package handoff decides the life of a handoff: the moves by which one
// sequence's state leaves the prefill worker that computed it (the source) and
// becomes active on the decode worker that continues it (the destination), under
// the gateway's request.
package handoff
