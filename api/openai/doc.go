// Package openai is the OpenAI-compatible protocol dialect: it decodes the bodies of
// POST /v1/chat/completions and POST /v1/completions, and renders answers, stream events and
// errors in the shapes that OpenAI's official clients expect. It knows nothing of HTTP routing,
// models or workers: the gateway decodes with it, serves the request, and renders with it.
//
// Decoding is strict, because a field that is silently ignored is a wrong answer that nobody
// notices. A body is one JSON object in valid UTF-8, with no duplicate key at any level, nothing
// behind it, and bounded depth, size and counts. Every top-level field is listed in [Fields] with
// what becomes of it: used, harmless (validated, without effect), limited to the values that ask
// for what the server does anyway, or refused. A field that is not listed is refused too. Refusals
// are [*Error] values with the field's path in Param, ready to be sent. A null value means the same
// as leaving an optional field out.
//
// Start with [DecodeChat] and [DecodeCompletion]; both fill a [Generation], the part that the two
// endpoints share. Answers start from a [Head], whose methods return one JSON document each;
// [AppendEvent] frames a document as a server-sent event and [Done] ends a stream.
//
// Error messages name fields, limits and counts. They never repeat prompt text or token ids.
//
// All functions are pure and safe for concurrent use.
package openai
