package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// version is the version of the encoding that Encode writes and Decode reads.
const version = 2

// A Record is what is remembered of a position: how far delivery has come, and of which source that
// is true. Each holder of the slot writes under an epoch above all epochs that it found, and under
// its own key (HolderKey). So a holder that lost the slot and wakes up later overwrites nothing.
// That holds even if it lost the slot before it wrote its first record and the next holder took the
// same epoch.
type Record struct {
	Version  int          `json:"version"`
	Name     string       `json:"name"`
	Epoch    uint64       `json:"epoch"` // from 1
	SystemID string       `json:"system_identifier"`
	Timeline uint32       `json:"timeline"`
	Slot     string       `json:"slot"`
	Database string       `json:"database"`
	Position cdc.Position `json:"lsn"` // of the source: everything before it is delivered and acknowledged
	// Delivered is the end of the newest transaction before Position that may have delivered an event: up to Position there was none,
	// only keepalives and transactions of others. It is 0 if that is not known, and for a source that polls.
	Delivered cdc.Position `json:"delivered,omitzero"`
	// Polled is the table of a source that polls, nil for a source that reads a slot. If it polls, WAL is
	// the LSN before which everything delivered was written, 0 if that does not matter.
	Polled *cdc.Polled `json:"polled,omitempty"`
	WAL    cdc.LSN     `json:"wal,omitzero"`
	// Border is for a relay that polls and has taken over from one that read a slot: the transactions that
	// this snapshot sees are delivered, too. It is "" once Position is beyond the snapshot.
	Border string `json:"border,omitempty"`
	Next   *Next  `json:"next,omitempty"`
	Copy   *Copy  `json:"copy,omitempty"`
	// Parking is the place in the topic of parked events from which on the relay needs its records. It is
	// nil for a relay that parks nothing.
	Parking *cdc.Anchor `json:"parking,omitempty"`
	// Published is what the source published at the newest look. It is nil for a source that polls,
	// and while the slot is still to be made.
	Published *Published `json:"published,omitempty"`
	// Accepted are the gaps that a person has accepted and not closed yet, oldest first.
	Accepted []Accepted `json:"accepted,omitempty"`
	// CommitTime is when the newest event before Position was committed, by the server's clock. It is
	// zero if that is not known.
	CommitTime time.Time `json:"commit_time,omitzero"`
	RunID      string    `json:"run_id"` // made with the first record and kept in all later ones
	Holder     string    `json:"holder"` // names the process that wrote it
	Time       time.Time `json:"time"`   // of the writing, for people
}

// Next says how much of the first transaction behind the record's Position is acknowledged: its first
// Rows records. Some of these may have been passed over because walpost skip asked.
type Next struct {
	Commit      cdc.Position `json:"commit_lsn"`              // of its commit record, as Begin carries it
	CommitEnd   cdc.Position `json:"commit_end_lsn,omitzero"` // 0 until its Commit is read
	Rows        int          `json:"rows"`
	LastEventID string       `json:"last_event_id"` // of the last of these records, for people
}

// First returns a first record at a position of the source that was found, which holder writes now.
func First(name, holder string, found cdc.Identity, at cdc.Position, now time.Time) *Record {
	r := &Record{
		Name: name, Epoch: 1, SystemID: found.SystemID, Timeline: found.Timeline, Database: found.Database, Slot: found.Slot, Polled: found.Polled,
		Position: at, Published: Seen(found), Holder: holder, Time: now.UTC(),
	}
	if found.Polled == nil && !at.IsNumber() {
		r.Delivered = at
	}
	if found.Polled != nil && at != cdc.Numbered(1) {
		// The relay begins behind rows that are there. A server that lacks the WAL of these rows can give
		// their transaction ids to other rows.
		r.WAL = found.Server
	}
	return r
}

// Begun returns what becomes of r, which was intended, once the slot or the beginning that was found exists.
func (r *Record) Begun(found cdc.Identity) *Record {
	next := *r
	next.Position, next.Timeline, next.Published = found.SlotFound.Confirmed, found.Timeline, Seen(found)
	next.Delivered = next.Position
	if found.Polled != nil {
		next.Delivered = 0
		c := *r.Copy
		c.Border = found.Border
		next.Copy, next.Border, next.WAL = &c, found.Border, found.Server
	}
	return &next
}

// Pass drops the border once r is beyond it: all transactions that were open then are delivered.
func (r *Record) Pass() {
	if b, err := cdc.ParseSnapshot(r.Border); err == nil && r.Position >= cdc.Numbered(b.XMax) {
		r.Border = ""
	}
}

// Deliver moves Delivered, for a record whose Position has been moved and whose Next has not. end is the end of the newest transaction
// before Position that is known to have delivered an event, 0 for none.
func (r *Record) Deliver(end cdc.Position) {
	switch {
	case r.Polled != nil || r.Delivered == 0:
	case r.Next != nil && r.Next.Rows > 0 && r.Position > r.Next.Commit:
		r.Delivered = r.Position // the process before may have delivered all of it
	default:
		r.Delivered = max(r.Delivered, end)
	}
}

// Follow takes over what stays the same when a process takes the slot and writes r: from base, which the source was judged
// by, and from held, the newest record. Each is nil for none. copies says that the process goes on with the copy of base.
func (r *Record) Follow(base, held *Record, copies bool) {
	if base != nil {
		// This holds on another timeline too: Judge has checked that it left the old one behind
		// that transaction.
		r.Next, r.WAL, r.Border, r.CommitTime, r.Accepted = base.Next, base.WAL, base.Border, base.CommitTime, base.Accepted
		r.Delivered = min(base.Delivered, r.Position)
		if r.Position < base.Position { // where the old timeline ended: nothing of Next is delivered
			r.Next = nil
		}
	}
	if copies {
		c := *base.Copy
		c.Slot, r.Copy = true, &c
	}
	if held != nil {
		r.Parking = held.Parking // also behind a gap: the topic is the same
		r.Epoch, r.RunID = held.Epoch+1, held.RunID
	}
	r.RunID = cmp.Or(r.RunID, newRunID(r.Time))
}

// newRunID makes a run id: a UUID of version 7 (RFC 9562). Debezium makes one at each start of its task.
// walpost makes one with the first checkpoint record only, because a new one would make a second
// delivery differ from the first.
func newRunID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:]) // crypto/rand documents that it never fails
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Key names the record for people: its name, a slash and its epoch in decimal. The name may contain slashes.
func (r *Record) Key() string { return r.Name + "/" + strconv.FormatUint(r.Epoch, 10) }

// HolderKey is the key that the record is stored under: Key, a dot and the holder, which must have no
// slash.
func (r *Record) HolderKey() string { return r.Key() + "." + r.Holder }

// Encode returns the value to store under HolderKey. It writes version whatever the field says. It panics
// for a record that Decode would refuse, because storing such a record would lose the position.
func (r *Record) Encode() []byte {
	w := *r
	w.Version = version
	w.Time = w.Time.UTC().Round(0)
	w.CommitTime = w.CommitTime.UTC().Round(0)
	if w.Delivered = min(w.Delivered, w.Position); w.Polled != nil || w.Position.IsNumber() {
		w.Delivered = 0
	}
	if w.Published != nil {
		p := *w.Published
		p.Time, w.Published = p.Time.UTC().Round(0), &p
	}
	if err := w.check(); err != nil {
		panic("checkpoint: encode " + r.Key() + ": " + err.Error())
	}
	value, err := json.Marshal(&w)
	if err != nil {
		panic("checkpoint: encode " + r.Key() + ": " + err.Error())
	}
	return value
}

// Decode reads what Encode wrote under key. Anything that it does not understand in full is an
// error that names the key and needs a person. A record that cannot be read must not be taken for
// one that does not exist.
func Decode(key string, value []byte) (*Record, error) {
	r, err := decode(key, value)
	if err != nil {
		return nil, fault.Person(fmt.Errorf("checkpoint record %q: %w", key, err),
			"Nothing was changed. If a newer walpost wrote the record, run that version. If the record is damaged, write a record with the last delivered position under the same key.")
	}
	return r, nil
}

func decode(key string, value []byte) (*Record, error) {
	// The version is read first, and alone, because nothing is known of other versions, not even
	// their fields.
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(value, &v); err != nil { // it fails too if something follows the record
		return nil, err
	}
	if v.Version == nil {
		return nil, errors.New("version is missing")
	}
	if *v.Version != version {
		return nil, fmt.Errorf("version %d is unknown: this walpost knows only version %d", *v.Version, version)
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields() // this version has none, and the next Encode would drop them
	r := new(Record)
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if key != r.HolderKey() {
		return nil, fmt.Errorf("the record says that its key is %q", r.HolderKey())
	}
	r.Time, r.CommitTime = r.Time.UTC(), r.CommitTime.UTC()
	if r.Published != nil {
		r.Published.Time = r.Published.Time.UTC()
	}
	return r, nil
}

// slotOrStrategy is the slot or the strategy.
func (r *Record) slotOrStrategy() string {
	if r.Polled != nil {
		return r.Polled.Strategy
	}
	return r.Slot
}

// check returns an error for a record that must not be stored.
func (r *Record) check() error {
	for _, f := range []struct{ name, value string }{
		{"name", r.Name}, {"system_identifier", r.SystemID}, {"slot", r.slotOrStrategy()}, {"database", r.Database},
	} {
		if f.value == "" {
			return errors.New(f.name + " is missing")
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("%s is not UTF-8: %q", f.name, f.value)
		}
	}
	switch {
	case r.Epoch == 0:
		return errors.New("epoch must be at least 1 (got 0)")
	case r.Timeline == 0:
		return errors.New("timeline must be at least 1 (got 0)")
	case r.Position == 0:
		return errors.New("lsn must not be 0")
	case !r.Intended() && r.Position.IsNumber() != (r.Polled != nil):
		return fmt.Errorf("position must be a number if polled is set, and otherwise an LSN (got %s)", r.Position)
	case r.Delivered != 0 && (r.Polled != nil || r.Delivered.IsNumber() || r.Delivered > r.Position):
		return fmt.Errorf("delivered must be an LSN that is at most lsn, and 0 with polled (got %s)", r.Delivered)
	case r.Time.UTC().Year() < 0 || r.Time.UTC().Year() > 9999:
		return fmt.Errorf("time must be in the years 0 to 9999, in UTC (got %d)", r.Time.UTC().Year())
	case r.Polled != nil && (r.Slot != "" || r.Copies(OriginSnapshot) || r.Published != nil):
		return errors.New("a record with polled must have neither slot nor snapshot nor published")
	case r.Polled == nil && (r.WAL != 0 || r.Border != ""):
		return errors.New("a record without polled must have neither wal nor border")
	case r.Polled != nil && !utf8.ValidString(r.Polled.Table):
		return fmt.Errorf("polled.table is not UTF-8: %q", r.Polled.Table)
	case r.Next != nil && r.Next.Commit == 0:
		return errors.New("next.commit_lsn must not be 0")
	case r.Next != nil && (r.Next.Commit.IsNumber() != r.Position.IsNumber() || r.Next.CommitEnd != 0 && r.Next.CommitEnd.IsNumber() != r.Position.IsNumber()):
		return errors.New("next.commit_lsn and next.commit_end_lsn must be of the kind of lsn")
	case r.Next != nil && r.Next.Rows < 0:
		return fmt.Errorf("next.rows must be at least 0 (got %d)", r.Next.Rows)
	case r.Copy != nil && r.Next != nil:
		return errors.New("next and copy exclude each other")
	}
	for i := range r.Accepted {
		if err := r.Accepted[i].check(); err != nil {
			return err
		}
	}
	if r.Published != nil {
		if err := r.Published.check(); err != nil {
			return err
		}
	}
	if r.Copy != nil {
		return r.Copy.check()
	}
	return nil
}

// newest picks the record of the highest epoch from what a store has under name + "/". It returns
// nil if there is none. Several records may have that epoch. Then it picks the one that has
// come furthest, because each of them is true. older are the keys of the other records. Their
// holders are gone, so the keys may be removed once a record of a higher epoch is durable.
//
// Keys of a longer name with the same beginning are left alone. A record of this name that cannot
// be read is an error, even if a newer one can be read, because a newer walpost may have written
// it.
func newest(name string, records map[string][]byte) (newest *Record, older []string, err error) {
	for key, value := range records {
		epoch, ok := strings.CutPrefix(key, name+"/")
		if !ok || strings.Contains(epoch, "/") {
			continue
		}
		r, err := Decode(key, value)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case newest == nil:
			newest = r
		case r.compare(newest) < 0:
			older = append(older, key)
		default:
			older = append(older, newest.HolderKey())
			newest = r
		}
	}
	slices.Sort(older)
	return newest, older, nil
}

// The epoch of a record that may not be durable. Each holder of the slot writes its records under its own epoch,
// which is one above the highest epoch that it found. A write can fail after the broker has stored the record,
// so an attempt that fails may have left a record of epoch N+1. The process then uses N+1 for all its further
// records (connector.attempted).
//
// If the record is durable, the next records must not be below it, because a start takes the highest epoch. If
// the record is not durable, nothing is lost: N+1 is just a number that no stored record has. If another process
// held the slot in between, or if the server's history is a different one, the process no longer records what it
// has in flight (checkpointer.frozen), and the next session starts from the record (link.contested).
//
// Another process can also take N+1. The first process may lose the slot while its record is on the way to the
// broker, and the second process reads the records before that one arrives. So the key of a record has the
// holder in it, as name/N+1.holder, and neither process overwrites the other's record. Both records are true,
// because each process writes only what is acknowledged to it. A start takes the record with the higher
// position. At the same position, it takes the record whose copy is further (Record.compare). If the store has a
// record of the same epoch by another holder, a process assumes that the other process also held the slot. This
// applies even if its own record is further. The record of a slot that does not exist yet has no holder in its
// key: two processes that write it at the same time write the same record.

// compare orders records of one name by how new they are: by epoch, then by how far each has come.
func (r *Record) compare(o *Record) int {
	rows := func(r *Record) (of uint64, next int) {
		of = math.MaxUint64 // without a copy, or behind it
		if r.Copy != nil {
			of = r.Copy.Rows
		}
		if r.Next != nil {
			next = r.Next.Rows
		}
		return of, next
	}
	copied, next := rows(r)
	otherCopied, otherNext := rows(o)
	return cmp.Or(cmp.Compare(r.Epoch, o.Epoch), cmp.Compare(r.Position, o.Position), cmp.Compare(copied, otherCopied), cmp.Compare(next, otherNext),
		cmp.Compare(r.HolderKey(), o.HolderKey()))
}
