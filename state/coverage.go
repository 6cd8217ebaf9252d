package state

import "sort"

// coverage is the set of tokens received of one component, as disjoint ranges that do not touch, in
// ascending order.
type coverage []Range

// add inserts r, which is not empty, and reports false (changing nothing) if it overlaps.
func (c *coverage) add(r Range) bool {
	s := *c
	i := sort.Search(len(s), func(i int) bool { return s[i].End >= r.First })
	// s[i] is the first range that ends at or after r starts: it touches or overlaps r, or lies behind.
	left := i < len(s) && s[i].End == r.First
	j := i
	if left {
		j++
	}
	if j < len(s) && s[j].First < r.End {
		return false
	}
	right := j < len(s) && s[j].First == r.End
	switch {
	case left && right:
		s[i].End = s[j].End
		s = append(s[:j], s[j+1:]...)
	case left:
		s[i].End = r.End
	case right:
		s[j].First = r.First
	default:
		s = append(s, Range{})
		copy(s[i+1:], s[i:])
		s[i] = r
	}
	*c = s
	return true
}

// overlaps reports whether add would refuse r.
func (c coverage) overlaps(r Range) bool {
	i := sort.Search(len(c), func(i int) bool { return c[i].End > r.First })
	return i < len(c) && c[i].First < r.End
}

// missing returns the first gap in want, or an empty range if want is covered.
func (c coverage) missing(want Range) Range {
	at := want.First
	for _, r := range c {
		if at >= want.End {
			break
		}
		if r.End <= at {
			continue
		}
		if r.First > at {
			return Range{at, min(r.First, want.End)}
		}
		at = r.End
	}
	if at >= want.End {
		return Range{}
	}
	return Range{at, want.End}
}
