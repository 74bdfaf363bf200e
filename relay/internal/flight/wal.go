package flight

import (
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// A walMark says that the transaction that begins at begin is in the server's WAL before wal.
type walMark struct {
	begin cdc.Position
	wal   cdc.LSN
}

// HeldBy notes that the transaction that begins at begin is in the server's WAL before wal. A wal of
// 0 notes nothing. Transactions come in order; one that comes again changes nothing.
func (f *Flight) HeldBy(begin cdc.Position, wal cdc.LSN) {
	if n := len(f.held); wal != 0 && (n == 0 || f.held[n-1].begin < begin) {
		f.held = append(f.held, walMark{begin, wal})
	}
}

// NewestWAL is the position that all transactions are in the WAL before, 0 if none is known.
func (f *Flight) NewestWAL() cdc.LSN {
	if n := len(f.held); n > 0 {
		return f.held[n-1].wal
	}
	return 0
}

// WAL is the position in the WAL before which everything was written that a checkpoint at safe says
// is delivered: all before safe, and a part of the transaction of next.
func (f *Flight) WAL(safe cdc.Position, next *checkpoint.Next) (wal cdc.LSN) {
	for len(f.held) > 1 && f.held[1].begin < safe { // the newest one that is safe stays
		f.held = f.held[1:]
	}
	for _, m := range f.held {
		if m.begin < safe || next != nil && next.Rows > 0 && m.begin <= next.Commit {
			wal = m.wal
		}
	}
	return wal
}
