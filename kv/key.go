package kv

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key names the content of one full block and of all blocks before it, within
// one Salt. The zero Key is none: a block without a key is never shared.
//
// It is the first half of a SHA-256, so that a block costs 16 bytes: to make two
// prompts meet, somebody who does not know the salt has to find out by asking.
type Key [16]byte

// Salt separates tenants. It must be secret: who knows it can recompute keys, and
// look for two prompts with the same ones.
type Salt [32]byte

// SaltFor derives the salt of a tenant from a secret of the host.
func SaltFor(secret []byte, tenant string) Salt {
	h := sha256.New()
	h.Write([]byte("tandem kv salt 1"))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(secret))))
	h.Write(secret)
	h.Write([]byte(tenant))
	return Salt(h.Sum(nil))
}

// Chain makes the keys of one sequence, block by block, as its tokens become
// known. It is for one goroutine. Make one with NewChain, and do not copy it
// while tokens of an unfinished block are in it.
type Chain struct {
	state [32]byte // digest of everything before the unfinished block
	size  int      // tokens of a block
	have  int      // tokens of the unfinished block
	text  []byte   // state, then the unfinished block, 4 bytes a token
}

// NewChain starts the chain of a sequence. blockTokens is the manager's.
func NewChain(salt Salt, blockTokens int) *Chain {
	c := &Chain{size: max(blockTokens, 1)}
	c.text = make([]byte, 0, len(c.state)+4*c.size)
	start := append([]byte("tandem kv chain 1"), salt[:]...)
	c.state = sha256.Sum256(binary.LittleEndian.AppendUint32(start, uint32(c.size)))
	return c
}

// Tokens adds tokens and appends the keys of the blocks that they complete.
func (c *Chain) Tokens(tokens []int32, keys []Key) []Key {
	for _, t := range tokens {
		if c.have == 0 {
			c.text = append(c.text[:0], c.state[:]...)
		}
		c.text = binary.LittleEndian.AppendUint32(c.text, uint32(t))
		if c.have++; c.have == c.size {
			c.have = 0
			c.state = sha256.Sum256(c.text)
			keys = append(keys, c.key())
		}
	}
	return keys
}

// IDs adds whole blocks whose content a trace names by ids instead of tokens, and
// appends their keys. Equal ids after equal ids give equal keys. Ids and tokens do
// not mix in one chain.
func (c *Chain) IDs(ids []uint64, keys []Key) []Key {
	for _, id := range ids {
		c.text = append(c.text[:0], c.state[:]...)
		c.state = sha256.Sum256(binary.LittleEndian.AppendUint64(c.text, id))
		keys = append(keys, c.key())
	}
	return keys
}

func (c *Chain) key() Key {
	k := Key(c.state[:16])
	if k == (Key{}) {
		k[0] = 1 // zero means none
	}
	return k
}
