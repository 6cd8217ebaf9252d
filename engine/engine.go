package engine

import "github.com/tandem-llm/tandem/state"

// Token is a token id of the model's vocabulary, in [0, Vocab.Size()).
type Token = int32

// Row is one position of one sequence in a batch.
type Row struct {
	// Token is consumed at Pos.
	Token Token
	// Pos is the position of the row: the first row of a sequence in a batch
	// continues it at Tokens(Seq), each further row of that sequence is at the
	// next position.
	Pos int32
	// Seq is the slot, in [0, Info.Slots).
	Seq int32
	// Output asks for the logits of this row.
	Output bool
}

// Info describes an engine. It does not change while the engine is open.
type Info struct {
	// Identity is what two engines must share to hand state over exactly.
	Identity state.Identity
	// Inventory lists the state components a sequence of this model has.
	Inventory state.Inventory

	// Architecture is the model's own name for itself, such as "llama".
	Architecture string
	// Model is a short human readable description.
	Model string
	// Layers is the number of trunk layers.
	Layers int
	// Embedding is the width of the residual stream.
	Embedding int

	// Slots is the number of sequences a caller may use.
	Slots int
	// Cells is the number of attention cells all sequences share; one token of
	// one sequence takes one. For families without attention it bounds
	// positions only.
	Cells int
	// ContextTokens is the largest number of positions one sequence may hold:
	// the smaller of Cells and what the model was trained for.
	ContextTokens int
	// BatchTokens is the largest number of rows in one Decode.
	BatchTokens int
	// Threads is the number of threads that compute.
	Threads int

	// Backend names the devices and CPU variant that compute, such as
	// "CPU haswell". Engines with equal Identity and different Backend or
	// Threads agree on tokens, not on bits.
	Backend string
	// Build names the engine build, such as "llama.cpp v0.5.0".
	Build string
	// KVType is the element type of attention state: "f16", "bf16" or "q8_0".
	KVType string
	// ColocatedOnly says why the state of this model cannot leave or enter;
	// empty when it can. Export and import answer ErrUnsupported then.
	ColocatedOnly string
}

// Engine computes tokens for a fixed number of sequences and moves their state.
//
// Every method is called by the owner goroutine only. Every error of this
// package's list leaves the engine usable except ErrFatal and ErrClosed; an
// error states what it changed, and changes nothing where it does not say.
type Engine interface {
	// Info describes the engine.
	Info() Info

	// Vocab is the model's vocabulary. It stays valid until Close.
	Vocab() Vocab

	// Decode computes one batch of 1 to Info.BatchTokens rows.
	//
	// ErrBatch and ErrSequence: the rows break the rules of Row; nothing
	// changed. ErrNoCells: there is no room; nothing changed.
	// ErrLost: the computation was abandoned; every sequence in the batch has
	// been dropped, the others are untouched. ErrFatal: the engine is broken,
	// only Close may follow.
	//
	// rows is not kept. Decode does not allocate in steady state.
	Decode(rows []Row) error

	// Logits returns the Vocab.Size() logits of row i of the last successful
	// Decode, which must have had Output set (ErrNoOutput otherwise). The slice
	// aliases engine memory: it is read only and valid until the next Decode,
	// import, export or Close. A caller that needs it longer copies it.
	Logits(i int) ([]float32, error)

	// Drop frees all state of a sequence, also one that is importing (its
	// Import is dead then). Dropping an empty sequence does nothing.
	Drop(seq int32) error

	// Tokens is the number of positions a sequence holds: 0 when it is empty,
	// importing or out of range.
	Tokens(seq int32) int

	// Paged reports whether attention state leaves in pages. Families without
	// attention have a snapshot only; ExportPage and Import.Page answer
	// ErrUnsupported there.
	Paged() bool

	// PageBytes is the exact number of bytes of a page of that many tokens, 0
	// when there are no pages.
	PageBytes(tokens int) int

	// ExportPage writes the attention state of the positions [first, end) of a
	// sequence to dst, which holds at least PageBytes(end-first) bytes
	// (ErrBuffer otherwise), and returns that number. Positions that were
	// exported once stay the same for as long as the sequence is held.
	ExportPage(seq int32, first, end int, dst []byte) (int, error)

	// SnapshotBytes is the exact number of bytes ExportSnapshot would write
	// now: 0 for families whose pages are all their state.
	SnapshotBytes(seq int32) (int, error)

	// ExportSnapshot writes the state that pages do not hold (window, conv and
	// recurrent state after position Tokens(seq)-1) to dst and returns its
	// length and the components in it: back to back, covering it whole, with
	// Unit 0 for the caller to set.
	ExportSnapshot(seq int32, dst []byte) (int, []state.ComponentRef, error)

	// ScanPage refuses a payload exactly as Import.Page would refuse its bytes.
	// Unlike everything else it may be called on any goroutine at any time before
	// Close, also while the owner computes.
	ScanPage(first, end int, payload []byte) error

	// ScanSnapshot is to Import.Snapshot what ScanPage is to Import.Page, for a
	// sequence of tokens positions.
	ScanSnapshot(tokens int, payload []byte) error

	// BeginImport starts the import of a sequence of tokens positions into an
	// empty slot. The slot cannot be decoded until Commit.
	BeginImport(seq int32, tokens int) (Import, error)

	// Retire makes a held sequence storage for its prefix: it keeps its attention
	// state and loses everything else, cannot be decoded or exported any more, and
	// Tokens is 0. Families without attention keep nothing: it is Drop. Drop frees a
	// retired slot, as any other. Retiring a retired slot does nothing.
	Retire(seq int32) error

	// Trim takes the positions [first, end) from a retired slot; end -1 means to the
	// end. Sequences that share them keep them. A slot that holds nothing any more
	// is empty.
	Trim(seq int32, first, end int) error

	// Keep has the retired slot to hold the positions [first, end) of another slot
	// too, none of which it holds yet. No bytes move.
	Keep(to, from int32, first, end int) error

	// Canonical re-exports the whole state of a sequence in a form that does
	// not depend on where the engine keeps it: two sequences, of one engine or
	// of two with equal Identity, have equal bytes exactly when they hold equal
	// state. It allocates its result and is meant for tests and verification.
	Canonical(seq int32) ([]byte, error)

	// Close frees everything. The engine answers ErrClosed afterwards.
	Close() error
}

// Import is an uncommitted sequence that state is arriving for. Payloads are
// validated completely before they take effect; they are only read, and not
// kept after the call.
//
// After any error the import is dead: its slot has been emptied (but see Share),
// further calls answer ErrImportDead and Discard does nothing.
type Import interface {
	// Scanned promises that every payload of this import has passed ScanPage or
	// ScanSnapshot of this engine and was not changed since: Page and Snapshot then
	// check what keeps the process and its neighbours' memory safe, and do not
	// read the numbers again.
	Scanned()

	// Page takes the positions [first, end), as ExportPage wrote them. Pages may
	// come in any order, each once and without overlap; ascending order gives
	// the most regular memory layout. ErrPayload (with a *PayloadError) refuses
	// the bytes, ErrCoverage the range, ErrNoCells means there is no room.
	Page(first, end int, payload []byte) error

	// Share takes the positions [first, end) from another slot of this engine, in
	// place of a page: one that is held or retired, or that an import shares into.
	// No bytes move, and no cell is used. ErrSequence: that slot does not hold
	// them. The state that pages do not hold must come from a Snapshot of the last
	// position.
	//
	// An import that shared something and fails or is discarded leaves a retired
	// slot with what it shared, instead of an empty one; Drop empties that.
	Share(from int32, first, end int) error

	// Snapshot takes the state pages do not hold, as ExportSnapshot wrote it,
	// once and after the last page (ErrOutOfOrder otherwise).
	Snapshot(payload []byte) error

	// Commit checks that everything has arrived (ErrCoverage otherwise) and
	// makes the sequence decodable at position tokens.
	Commit() error

	// Discard drops an import that was not committed and empties its slot.
	// It does nothing after Commit or after an error.
	Discard() error
}

// Vocab is a model's vocabulary. All methods are safe for concurrent use.
type Vocab interface {
	// Tokenize turns text into tokens. addSpecial adds what the model wants
	// around a text (usually BOS); parseSpecial reads the text of control
	// tokens as those tokens, as rendered chat templates need and text from
	// users must not get.
	Tokenize(text string, addSpecial, parseSpecial bool) ([]Token, error)

	// Piece is the bytes a token stands for in an answer: possibly a part of a
	// UTF-8 sequence, empty for control tokens, nil for ids out of range. The
	// slice is shared and read only.
	Piece(Token) []byte

	// Text is the token's own name, such as "<s>", for chat templates; empty
	// for ids out of range.
	Text(Token) string

	// IsEOG reports whether the token ends a generation.
	IsEOG(Token) bool

	// IsControl reports whether the token is a control token.
	IsControl(Token) bool

	// Size is the number of tokens.
	Size() int

	// BOS is the beginning-of-sequence token, -1 when there is none.
	BOS() Token

	// EOS is the end-of-sequence token, -1 when there is none.
	EOS() Token

	// AddBOS reports whether Tokenize with addSpecial prepends BOS.
	AddBOS() bool

	// ChatTemplate is the model's own template, empty when it has none.
	ChatTemplate() string
}
