package sample

import "math/bits"

// philox is Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11): a keyed
// bijection of a 128-bit counter, of which any element is computed by itself.
// That is what makes a sampler's random state one number. The first two output
// words are used, as one 64-bit number per (seed, index).
func philox(seed, index uint64) uint64 {
	out := philox4x32([4]uint32{uint32(index), uint32(index >> 32), 0, 0}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return uint64(out[1])<<32 | uint64(out[0])
}

func philox4x32(c [4]uint32, k [2]uint32) [4]uint32 {
	const rounds = 10
	for range rounds {
		hi0, lo0 := bits.Mul32(0xD2511F53, c[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0}
		k[0] += 0x9E3779B9 // the golden ratio
		k[1] += 0xBB67AE85 // sqrt(3) - 1
	}
	return c
}
