// Package fleet describes the fleet that a replay runs on: pools of workers, the
// links between them, the policy, and what goes wrong when.
//
// A description is YAML, decoded strictly: an unknown field, a value out of range
// or a name that nothing has is an error that says where. [Parse] reads one,
// [FromAny] takes one that a decoder has turned into maps and lists already, and
// [Set] changes one field of it by its path. docs/replay.md explains every field;
// its defaults are those of the comments here.
package fleet
