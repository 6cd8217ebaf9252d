// Package move measures the state of a model on its way: out of an engine and into
// one, from process to process, and while the prompt is still being computed.
//
// [Run] does the parts that are asked for, with models of package model/wide whose
// state has the size that real models have, or with a given file:
//
//	Pages     pages out of and into the engine against a copy of the same bytes
//	Snapshot  the same for 50 MiB of recurrent state
//	Transfer  a prefilled sequence of a gigabyte to another process, ready to decode
//	Stream    a prompt computed while its pages leave, against one that stays
//
// The other process is a child of package pair: the real data plane and the real
// validation, without the hosts around them.
package move
