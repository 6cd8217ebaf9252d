// Package splitmix turns numbers into others that look random: SplitMix64 of
// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
// It is exact, the same everywhere, and no secret.
package splitmix

// Step is what the state of a generator grows by for each number: the n-th one
// is Mix(seed + n·Step).
const Step = 0x9e3779b97f4a7c15

// Mix spreads each bit of z over all bits of its result. It is a bijection, and
// maps 0 to 0.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
