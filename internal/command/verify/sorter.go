package verify

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/walpost/walpost/internal/fault"
)

// A sorter sorts more byte strings than fit into memory: it sorts them in pieces, writes each piece
// to a file, and merges the pieces. It orders them as bytes.Compare does.
//
// The file has no name from the moment after it was made, so the operating system frees it however
// the process ends.
type sorter struct {
	dir    string // of the file
	memory int    // bytes of one piece, at most 4 GiB

	piece []byte // two bytes of length, then the string, one after the other
	index []indexed
	file  *os.File // nil while there is nothing in it
	ends  []int64  // where each piece in the file ends
	count int64
}

// indexed is one string of a piece. The first bytes decide most comparisons.
type indexed struct {
	first uint64
	at    uint32
}

const maxString = 1<<16 - 1

func newSorter(dir string, memory int) *sorter { return &sorter{dir: dir, memory: memory} }

// add adds a string of at most maxString bytes, and copies it.
func (s *sorter) add(b []byte) error {
	if len(b) > maxString {
		return fmt.Errorf("sort: an entry has %d bytes", len(b))
	}
	if s.piece == nil {
		s.piece = make([]byte, 0, s.memory)
	}
	if len(s.piece)+2+len(b) > s.memory {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.index = append(s.index, indexed{firstOf(b), uint32(len(s.piece))})
	s.piece = binary.BigEndian.AppendUint16(s.piece, uint16(len(b)))
	s.piece = append(s.piece, b...)
	s.count++
	return nil
}

func firstOf(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var first [8]byte
	copy(first[:], b)
	return binary.BigEndian.Uint64(first[:])
}

func (s *sorter) at(i indexed) []byte {
	n := uint32(binary.BigEndian.Uint16(s.piece[i.at:]))
	return s.piece[i.at+2 : i.at+2+n]
}

// flush sorts the piece in memory and writes it to the file.
func (s *sorter) flush() (err error) {
	if s.file == nil {
		if s.file, err = os.CreateTemp(s.dir, "walpost-verify-"); err != nil {
			return fmt.Errorf("sort: %w", err)
		}
		if err := os.Remove(s.file.Name()); err != nil {
			return fmt.Errorf("sort: %w", err)
		}
	}
	slices.SortFunc(s.index, func(a, b indexed) int {
		if a.first != b.first {
			if a.first < b.first {
				return -1
			}
			return 1
		}
		return bytes.Compare(s.at(a), s.at(b))
	})
	w := bufio.NewWriterSize(s.file, 256<<10)
	for _, i := range s.index {
		n := int(binary.BigEndian.Uint16(s.piece[i.at:]))
		_, _ = w.Write(s.piece[i.at : int(i.at)+2+n]) // Flush returns the error
	}
	if err := w.Flush(); errors.Is(err, syscall.ENOSPC) {
		return fault.WithHint(fmt.Errorf("sort: %w", err), "Choose a folder on a larger disk with --temp-dir, or compare fewer rows at once (--since, --first-id).")
	} else if err != nil {
		return fmt.Errorf("sort: %w", err)
	}
	end := int64(len(s.piece))
	if len(s.ends) > 0 {
		end += s.ends[len(s.ends)-1]
	}
	s.ends, s.piece, s.index = append(s.ends, end), s.piece[:0], s.index[:0]
	return nil
}

// each calls do with every string, in order. A string is valid during the call. Nothing can be added
// afterwards.
func (s *sorter) each(ctx context.Context, do func(b []byte) error) error {
	if len(s.index) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.piece, s.index = nil, nil
	if s.file == nil {
		return nil
	}
	m := make(merge, 0, len(s.ends))
	start, buffer := int64(0), min(max(16<<20/len(s.ends), 4<<10), 256<<10)
	for _, end := range s.ends {
		r := &run{from: bufio.NewReaderSize(io.NewSectionReader(s.file, start, end-start), buffer)}
		if more, err := r.next(); err != nil {
			return err
		} else if more {
			m = append(m, r)
		}
		start = end
	}
	heap.Init(&m)
	for n := 0; len(m) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := do(m[0].now); err != nil {
			return err
		}
		more, err := m[0].next()
		switch {
		case err != nil:
			return err
		case more:
			heap.Fix(&m, 0)
		default:
			heap.Pop(&m)
		}
	}
	return nil
}

// close frees the file.
func (s *sorter) close() {
	if s.file != nil {
		_ = s.file.Close() // nobody needs what is in it
		s.file = nil
	}
}

// A run reads one piece of the file.
type run struct {
	from  *bufio.Reader
	now   []byte
	first uint64
}

func (r *run) next() (more bool, err error) {
	var size [2]byte
	if _, err := io.ReadFull(r.from, size[:]); err == io.EOF {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("sort: %w", err)
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	r.now = slices.Grow(r.now[:0], n)[:n]
	if _, err := io.ReadFull(r.from, r.now); err != nil {
		return false, fmt.Errorf("sort: %w", err)
	}
	r.first = firstOf(r.now)
	return true, nil
}

// merge is a heap of runs.
type merge []*run

func (m merge) Len() int      { return len(m) }
func (m merge) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m merge) Less(i, j int) bool {
	if m[i].first != m[j].first {
		return m[i].first < m[j].first
	}
	return bytes.Compare(m[i].now, m[j].now) < 0
}
func (m *merge) Push(x any) { *m = append(*m, x.(*run)) }
func (m *merge) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}
