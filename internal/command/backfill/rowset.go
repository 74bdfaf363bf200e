package backfill

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"sort"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

const (
	rowKeySize = 16
	// runRows is how many rows are kept in memory, in 16 MiB. More rows go to a temporary file, in sorted runs of runRows.
	runRows = 1 << 20
	// blockRows is how many rows of a run are read at once, in 4 KiB.
	blockRows = 256
)

// A rowKey stands for a row by two hashes, because two rows may have one hash in common.
type rowKey [2]uint64

func (k rowKey) compare(o rowKey) int {
	return cmp.Or(cmp.Compare(k[0], o[0]), cmp.Compare(k[1], o[1]))
}

// A rowSet recognises the rows that were added. Its memory is bounded. It is used by one goroutine at a time.
type rowSet struct {
	seeds  [2]maphash.Seed
	max    int // keys in memory
	keys   []rowKey
	sorted bool
	file   *os.File   // the runs; nil for none. It has no name, so that a crash leaves no file behind.
	runs   [][]rowKey // the first key of each block, for each run
	rows   int
}

func newRowSet() *rowSet {
	return &rowSet{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, max: runRows}
}

// keyOf makes the key of a row from its table and the columns of the replica identity, which is usually the primary key. An update
// of other columns does not change the key. In a table without a replica identity all columns make the key, so a changed row is
// another row.
func (s *rowSet) keyOf(row *cdc.Row) rowKey {
	rel := row.Relation
	whole := !hasKey(rel)
	var key rowKey
	for i := range key {
		var h maphash.Hash
		h.SetSeed(s.seeds[i])
		hashText(&h, []byte(rel.Schema))
		hashText(&h, []byte(rel.Name))
		for j := range min(len(rel.Columns), len(row.Values)) {
			if c := &rel.Columns[j]; whole || c.Key {
				hashText(&h, []byte(c.Name))
				hashText(&h, row.Values[j].Bytes)
			}
		}
		key[i] = h.Sum64()
	}
	return key
}

// hasKey says whether some columns identify a row. Without them, and where all columns do (REPLICA IDENTITY FULL), two rows may be equal.
func hasKey(rel *cdc.Relation) bool {
	key := func(c cdc.Column) bool { return c.Key }
	return slices.ContainsFunc(rel.Columns, key) && slices.ContainsFunc(rel.Columns, func(c cdc.Column) bool { return !key(c) })
}

// add takes a row in. No add may follow a has.
func (s *rowSet) add(row *cdc.Row) error {
	if len(s.keys) == s.max {
		if err := s.spill(); err != nil {
			return fault.WithHint(fmt.Errorf("keep %d rows of the stream on disk: %w", s.rows, err),
				"Set TMPDIR to a directory that has 16 free bytes for each row that was written since the slot was created.")
		}
	}
	s.keys = append(s.keys, s.keyOf(row))
	s.rows++
	return nil
}

func (s *rowSet) sort() {
	slices.SortFunc(s.keys, rowKey.compare)
	s.keys = slices.Compact(s.keys)
}

// spill writes the keys in memory as another run.
func (s *rowSet) spill() error {
	if s.file == nil {
		file, err := os.CreateTemp("", "walpost-rows-")
		if err != nil {
			return err
		}
		s.file = file
		if err := os.Remove(file.Name()); err != nil {
			return err
		}
	}
	s.sort()
	buf := make([]byte, 0, s.max*rowKeySize)
	var first []rowKey
	for i := range s.max { // every run has the same size: the last key fills a run that has fewer
		k := s.keys[min(i, len(s.keys)-1)]
		if i%blockRows == 0 {
			first = append(first, k)
		}
		buf = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(buf, k[0]), k[1])
	}
	if _, err := s.file.Write(buf); err != nil {
		return err
	}
	s.runs, s.keys = append(s.runs, first), s.keys[:0]
	return nil
}

// has reports whether a row was added.
func (s *rowSet) has(row *cdc.Row) (bool, error) {
	if !s.sorted {
		s.sort()
		s.sorted = true
	}
	key := s.keyOf(row)
	if _, ok := slices.BinarySearchFunc(s.keys, key, rowKey.compare); ok {
		return true, nil
	}
	for i, first := range s.runs {
		block := sort.Search(len(first), func(b int) bool { return first[b].compare(key) > 0 }) - 1
		if block < 0 {
			continue
		}
		var buf [blockRows * rowKeySize]byte
		n, err := s.file.ReadAt(buf[:], int64(i*s.max+block*blockRows)*rowKeySize)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read the rows of the stream that are kept on disk: %w", err)
		}
		n = min(n/rowKeySize, s.max-block*blockRows)
		at := func(j int) rowKey {
			b := buf[j*rowKeySize:]
			return rowKey{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
		}
		if j := sort.Search(n, func(j int) bool { return at(j).compare(key) >= 0 }); j < n && at(j) == key {
			return true, nil
		}
	}
	return false, nil
}

// Close frees the file.
func (s *rowSet) Close() {
	if s != nil && s.file != nil {
		_ = s.file.Close() // nobody reads it any more
	}
}
