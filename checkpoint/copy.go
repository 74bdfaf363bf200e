package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// The origins are what is published from the table. They are values of the header walpost.origin.
const (
	OriginSnapshot = "snapshot" // the rows that were there before the slot
	OriginRecover  = "recover"  // the rows that a lost slot may have left out
)

// A Copy says that rows of the tables have to be published before the stream is read from the
// record's LSN on, and how far that has come. The Copy stays in the record until all the rows are
// acknowledged. A start that finds a Copy goes on with it.
type Copy struct {
	Origin string `json:"origin"` // OriginSnapshot or OriginRecover
	// Slot is false while the slot may still have to be made. Until then the record's LSN is no
	// position of the slot.
	Slot bool `json:"slot"`
	// From and Since are for OriginRecover. Events behind the position From may be missing. No
	// event that was committed before Since is missing, so rows are looked at from Since on. Zero
	// is unknown.
	From  cdc.Position `json:"from,omitzero"`
	Since time.Time    `json:"since,omitzero"`
	// AnyAge says that a recover also publishes the rest of an unfinished snapshot, so that rows of
	// any age may be missing.
	AnyAge bool `json:"any_age,omitempty"`

	// After is the bound of source.snapshot: the rows of the transactions below this id are left out. 0
	// leaves out none.
	After uint64 `json:"after,omitempty"`

	// Border is for a source that polls: the rows of the transactions that this snapshot sees are
	// published, and the source gives the others.
	Border string `json:"border,omitempty"`

	// Former is the record of the former source, if the relay is changing from it to another kind of
	// source. Everything before its position is delivered. As long as the copy is not finished, the
	// relay can go back to it.
	Former *Record `json:"former,omitempty"`

	Finished []string `json:"finished,omitempty"` // tables whose rows are all acknowledged
	At       Mark     `json:"at,omitzero"`        // the last acknowledged row of the table that is being read
	Rows     uint64   `json:"rows"`               // acknowledged so far, by all starts
}

// A Mark is the place of a row in the reading of one table.
type Mark struct {
	Table   string `json:"table"`
	Visible string `json:"visible"` // what the reading saw, as pg_current_snapshot prints it
	Order   string `json:"order"`   // what the reading was ordered by; a Mark means nothing in another order
	Key     string `json:"key"`     // of the row, by that order
	Nth     int    `json:"nth"`     // of the rows with that key, from 1
	ID      string `json:"id"`      // its event id
}

func (c *Copy) check() error {
	switch {
	case c.Origin != OriginSnapshot && c.Origin != OriginRecover:
		return fmt.Errorf("copy.origin must be %s or %s (got %q)", OriginSnapshot, OriginRecover, c.Origin)
	case c.At.Nth < 0 || c.At.Nth == 0 && c.At != Mark{}:
		return fmt.Errorf("copy.at.nth must be at least 1 (got %d)", c.At.Nth)
	case !utf8.ValidString(c.At.Table + c.At.Order + c.At.Key + c.At.ID):
		return errors.New("copy.at is not UTF-8")
	}
	if c.Former != nil {
		return c.Former.check()
	}
	return nil
}

// RecoverOf returns the copy of a recover of what is missing behind from, and the unfinished copy of r
// that it replaces, nil for none. r may be nil.
func (r *Record) RecoverOf(from cdc.Position) (next Copy, was *Copy) {
	next = Copy{Origin: OriginRecover, From: from}
	if r == nil || r.Copy == nil {
		return next, nil
	}
	was = r.Copy
	next.AnyAge, next.After, next.Former = was.Origin == OriginSnapshot || was.AnyAge, was.After, was.Former
	return next, was
}

// Polled is the record of a source that polled before the copy, nil if there is none.
func (c *Copy) Polled() *Record {
	if c.Former == nil || c.Former.Polled == nil {
		return nil
	}
	return c.Former
}

// sameKind reports whether the record was written for the kind of source that was found.
func (r *Record) sameKind(found *cdc.Identity) bool {
	return r.Polled.Counts(found.Polled)
}

// GoBack returns the record to go on with if found is the source that the relay read before an
// unfinished change. It is nil otherwise. What the change has published comes once more then.
func (r *Record) GoBack(found cdc.Identity) *Record {
	if !r.Copies(OriginRecover) || r.Copy.Former == nil || r.sameKind(&found) || !r.Copy.Former.sameKind(&found) {
		return nil
	}
	was := *r.Copy.Former
	was.Epoch, was.Holder, was.Time, was.Accepted = r.Epoch+1, r.Holder, time.Now().UTC(), r.Accepted
	return &was
}

// ChangeFits returns the refusal of an unfinished change of the source that trusts the record of the
// former source, if that record is not true of the server. Once the new slot or the new beginning exists, r says that.
func (r *Record) ChangeFits(found cdc.Identity) error {
	if !r.Intended() || r.Copy.Former == nil || !r.sameKind(&found) {
		return nil
	}
	var gap *Refusal
	_, err := Judge(r.Copy.Former, found)
	if errors.As(err, &gap) && gap.Reason == OtherSource {
		return nil
	}
	return err
}

// An Unfinished is the error of a run that finds an unfinished recover.
type Unfinished struct {
	fault.ForPerson
	Copy Copy
	// From and To name the former source and the new one if the recover changes the source.
	From, To string
	// Token gives up the rows that are not published. It is "" if the recover changes the source.
	Token string
}

func (u *Unfinished) Error() string {
	if u.From != "" {
		return fmt.Sprintf("the change from %s to %s is not finished: %d rows are published", u.From, u.To, u.Copy.Rows)
	}
	return fmt.Sprintf("a recovery of the gap after %s is not finished: %d rows have been published", u.Copy.From, u.Copy.Rows)
}

// Unfinished is the error of a run that finds this record, which has an unfinished recover.
func (r *Record) Unfinished() *Unfinished {
	u := &Unfinished{Copy: *r.Copy}
	switch was := r.Copy.Former; {
	case was != nil:
		u.From, u.To = sourceName(was.Polled, was.Slot), sourceName(r.Polled, r.Slot)
	case r.Position.IsNumber() == (r.Polled != nil): // else there is nowhere to go on
		u.Token = fmt.Sprintf("recover-%s-%d", strings.ReplaceAll(r.Copy.From.String(), "/", "-"), r.Epoch)
	}
	return u
}

// GiveUp returns the record to go on with if a person gives up the unfinished recover of r. What it has not published is a gap that was accepted.
func (r *Record) GiveUp() *Record {
	next, u := *r, r.Unfinished()
	next.Copy, next.Epoch, next.Time = nil, r.Epoch+1, time.Now().UTC()
	next.Accepted = append(slices.Clip(r.Accepted), Accepted{Token: u.Token, Gap: u.Error(), Time: next.Time})
	return &next
}

// Copies reports whether this record asks for a copy of that origin. A nil record does not.
func (r *Record) Copies(origin string) bool {
	return r != nil && r.Copy != nil && r.Copy.Origin == origin
}

// Intended reports whether the record speaks of a slot that was about to be made. A nil record does not.
func (r *Record) Intended() bool { return r != nil && r.Copy != nil && !r.Copy.Slot }

// Resumes reports whether another reading of the tables can go on behind At, or At is the beginning of
// a table. Rows in no known order have no such place.
func (c *Copy) Resumes() bool { return c.At.Table == "" || c.At.Order != "" }

// Pass passes the marks of a reading, as far as they are acknowledged: rows, and the ends of tables,
// whose Nth is 0.
func (c *Copy) Pass(marks []Mark) {
	for _, m := range marks {
		if m.Nth == 0 {
			c.finish(m.Table)
		} else {
			c.advance(m)
		}
	}
}

// advance counts a row as acknowledged, with all rows before it.
func (c *Copy) advance(m Mark) {
	c.At = m
	c.Rows++
}

// finish notes that all rows of a table are acknowledged. Only the reader of the table knows that
// the table has no further row. A new order of the tables in the configuration, or a new table in
// it, must not end a table.
func (c *Copy) finish(table string) {
	c.Finished = append(slices.Clip(c.Finished), table)
	if c.At.Table == table {
		c.At = Mark{}
	}
}

// CopyBehind is the copy of r that goes on behind an accepted gap, on the source that was found.
// What was written to a finished table since the former slot was made may be in no stream, so such
// a table is read again. The table that is being read is read again too, unless its rows can be
// compared with what the former reading saw.
func (r *Record) CopyBehind(found cdc.Identity) *Copy {
	c := *r.Copy
	c.Finished = nil
	if r.SystemID != found.SystemID || r.Database != found.Database || r.Timeline != found.Timeline {
		c.At, c.After = Mark{}, 0
	}
	return &c
}

// sourceName names what is read.
func sourceName(polled *cdc.Polled, slot string) string {
	if polled != nil {
		return polled.String()
	}
	return fmt.Sprintf("slot %q", slot)
}
