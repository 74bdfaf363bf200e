package relay

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// The tables of a world are its log with what became of each row: in which table it is, its version, and whether it was deleted. A snapshot is
// a position: it has what was committed up to there. Rows are in the order of a column that grows with each row.

// simTables reads the tables as one process does, in the order of that process's configuration.
type simTables struct {
	w     *world
	p     *proc
	order []string
	// recover leaves out what the broker has.
	recover bool
}

func (f *simTables) of(p *proc) Tables {
	own := *f
	own.p = p
	return &own
}

func (f *simTables) Check(context.Context) error { return nil }

func (f *simTables) Open(ctx context.Context) (Session, error) {
	return fakeSource{f.p}.Open(ctx, true, true)
}

func (f *simTables) Rows(_ context.Context, sess Session, c checkpoint.Copy) (Rows, error) {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.p.dead || f.p.away || w.down || w.flake() {
		return nil, errNet
	}
	s := sess.(*fakeSession) //nolint:errcheck // Open's
	r := &simRows{f: f, sees: w.pos}
	streamed := w.pos // what is behind is left out: the stream will give it
	if s.snapshot {
		if !w.usable() || s.id.SlotFound.Confirmed != w.made {
			return nil, errNet // of a slot that is gone: so is its snapshot
		}
		r.sees, s.snapshot = w.made, false
	} else {
		r.present, streamed = true, max(w.id.SlotFound.Confirmed, s.told) // nobody reads the session yet
	}
	order := slices.Clone(f.order)
	slices.SortStableFunc(order, func(a, b string) int { // the table that was begun is the first
		return strings.Compare(strconv.FormatBool(a != c.At.Table), strconv.FormatBool(b != c.At.Table))
	})
	for _, table := range order {
		if slices.Contains(c.Finished, table) {
			continue
		}
		upTo, seen := -1, cdc.Position(0)
		if c.At.Table == table {
			n, err := strconv.Atoi(c.At.Key)
			sees, err2 := strconv.Atoi(c.At.Visible)
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			upTo, seen = n, cdc.Position(sees)
		}
		for _, t := range w.log {
			if t.end > r.sees {
				break
			}
			for _, row := range t.rows {
				version := t.end
				if row.changed <= r.sees {
					version = max(version, row.changed)
				}
				switch {
				case row.table != table || row.deleted != 0 && row.deleted <= r.sees:
				case t.end > streamed:
				case row.n <= upTo && version <= seen: // given before, as it is
				case f.recover && (w.count[row.id] > 0 || row.excused): // in Kafka, or given up with a gap before
				default:
					r.left = append(r.left, row)
				}
			}
		}
		r.left = append(r.left, &row{table: table}) // its end
	}
	return r, nil
}

// simRows is one reading.
type simRows struct {
	f       *simTables
	sees    cdc.Position
	present bool // not of the snapshot that was made with the slot
	left    []*row
	n       int
	vals    [3]cdc.Value
	ev      cdc.Event
}

func (r *simRows) Next(context.Context) (*cdc.Event, checkpoint.Mark, error) {
	w := r.f.w
	time.Sleep(time.Duration(r.n%7) * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.f.p.dead || r.f.p.away || w.down || w.flake() {
		return nil, checkpoint.Mark{}, errNet
	}
	if len(r.left) == 0 {
		return nil, checkpoint.Mark{}, nil
	}
	row := r.left[0]
	r.n++
	r.left = r.left[1:]
	if row.tx == nil {
		return nil, checkpoint.Mark{Table: row.table}, nil
	}
	if r.present && row.changed != 0 {
		row.reread = true
	}
	r.vals = [3]cdc.Value{{Bytes: []byte(row.id)}, {Bytes: []byte(row.key)}, {Bytes: indexText(row.index)}}
	r.ev = cdc.Event{Kind: cdc.Insert, Time: row.tx.time, Row: cdc.Row{Relation: row.relation(), Values: r.vals[:]}}
	return &r.ev, checkpoint.Mark{
		Table: row.table, Visible: strconv.Itoa(int(r.sees)), Order: "n", Key: strconv.Itoa(row.n), Nth: 1, ID: row.id,
	}, nil
}

func (r *simRows) Close() { clear(r.vals[:]) } // what is handed over must not be ours any more

var simRelations = map[string]*cdc.Relation{}

func init() {
	for _, table := range []string{"t0", "t1", "t2"} {
		rel := *tableRel
		rel.Name = table
		simRelations[table] = &rel
	}
}

func (r *row) relation() *cdc.Relation {
	if rel := simRelations[r.table]; rel != nil {
		return rel
	}
	return tableRel
}

// insert commits a transaction with a row for each of keys, whose last character is the number of its table. deleted says which of them the
// same transaction deletes again: they are in the WAL, and in no table.
func (w *world) insert(keys []string, deleted func(i int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.commitLocked(keys)
	for i, r := range t.rows {
		if r.table = "t" + strings.TrimLeft(r.key, "!abcdef-"); deleted(i) {
			r.deleted = t.end
		}
	}
	w.forgive()
}

// remove deletes a row, in a transaction that the publication does not have.
func (w *world) remove(r *row) {
	w.pos += 16
	r.deleted = w.pos
	w.forgive()
	w.wake()
}

// touch is an UPDATE of a row.
func (w *world) touch(r *row) {
	w.pos += 16
	r.changed = w.pos
	w.wake()
}

// loseSlot takes the slot away, and ends the session that holds it.
func (w *world) loseSlot(drop bool) {
	if drop {
		w.id.SlotFound = cdc.SlotState{}
	} else {
		w.id.SlotFound.Invalidation, w.id.SlotFound.WALStatus = "wal_removed", "lost"
	}
	w.forgive()
	w.cutLocked(errNet)
}
