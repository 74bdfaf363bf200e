package verify

import (
	"maps"
	"math/bits"
	"slices"
)

// offsets is a set of offsets of one partition. It takes a bit for each offset of the stretches of
// the log that have one.
type offsets struct {
	chunks  map[int64]*[chunkWords]uint64
	numbers []int64 // of the chunks, in order; nil after a new chunk
	free    []*[chunkWords]uint64
}

const (
	chunkWords = 1024
	chunkBits  = chunkWords * 64
)

func (s *offsets) add(o int64) {
	n := o / chunkBits
	if s.chunks == nil {
		s.chunks = map[int64]*[chunkWords]uint64{}
	}
	if s.chunks[n] == nil {
		if len(s.free) == 0 {
			s.free = append(s.free, new([chunkWords]uint64))
		}
		s.chunks[n], s.free, s.numbers = s.free[len(s.free)-1], s.free[:len(s.free)-1], nil
	}
	s.chunks[n][o%chunkBits/64] |= 1 << (o % 64)
}

// reset empties the set, and keeps its memory.
func (s *offsets) reset() {
	for _, c := range s.chunks {
		*c = [chunkWords]uint64{}
		s.free = append(s.free, c)
	}
	clear(s.chunks)
	s.numbers = nil
}

// has reports whether every offset of other from low to high is in the set.
func (s *offsets) has(other *offsets, low, high int64) bool {
	for o := other.after(low - 1); o >= 0 && o <= high; o = other.after(o) {
		if s.after(o-1) != o {
			return false
		}
	}
	return true
}

// chunk returns the place of the first chunk in numbers that is n or above.
func (s *offsets) chunk(n int64) int {
	if s.numbers == nil {
		s.numbers = slices.Sorted(maps.Keys(s.chunks))
	}
	i, _ := slices.BinarySearch(s.numbers, n)
	return i
}

// after returns the smallest offset of the set above o, or -1.
func (s *offsets) after(o int64) int64 {
	o++
	for i := s.chunk(o / chunkBits); i < len(s.numbers); i++ {
		c := s.chunks[s.numbers[i]]
		for o = max(o, s.numbers[i]*chunkBits); o < (s.numbers[i]+1)*chunkBits; o = (o/64 + 1) * 64 {
			if rest := c[o%chunkBits/64] >> (o % 64); rest != 0 {
				return o + int64(bits.TrailingZeros64(rest))
			}
		}
	}
	return -1
}

// before returns the largest offset of the set below o, or -1.
func (s *offsets) before(o int64) int64 {
	o--
	for i := s.chunk(o/chunkBits+1) - 1; i >= 0; i-- {
		c := s.chunks[s.numbers[i]]
		for o = min(o, (s.numbers[i]+1)*chunkBits-1); o >= s.numbers[i]*chunkBits; o = o/64*64 - 1 {
			if rest := c[o%chunkBits/64] << (63 - o%64); rest != 0 {
				return o - int64(bits.LeadingZeros64(rest))
			}
		}
	}
	return -1
}
