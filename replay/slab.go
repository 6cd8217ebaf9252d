package replay

const (
	slabBits = 8
	slabSize = 1 << slabBits
)

// slab keeps values under small numbers that are used again. Pointers stay valid
// until the value is freed.
type slab[T any] struct {
	chunks [][]T
	spare  []int32
	live   int
}

// add returns the number of a value, which is as it was when it was freed.
func (s *slab[T]) add() (int32, *T) {
	s.live++
	n := len(s.spare)
	if n == 0 {
		base := int32(len(s.chunks) << slabBits)
		s.chunks = append(s.chunks, make([]T, slabSize))
		for i := int32(slabSize) - 1; i >= 0; i-- {
			s.spare = append(s.spare, base+i)
		}
		n = slabSize
	}
	i := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return i, s.at(i)
}

func (s *slab[T]) at(i int32) *T { return &s.chunks[i>>slabBits][i&(slabSize-1)] }

func (s *slab[T]) free(i int32) {
	s.live--
	s.spare = append(s.spare, i)
}
