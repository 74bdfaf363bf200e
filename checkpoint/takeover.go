package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Waiting says what a relay waits for before it takes over the rows from relays with another number of
// shards. It goes on by itself.
type Waiting struct{ Err error }

func (w *Waiting) Error() string { return w.Err.Error() }

// Unwrap returns what w says.
func (w *Waiting) Unwrap() error { return w.Err }

// Retryable is true.
func (*Waiting) Retryable() bool { return true }

// WithoutWaiting returns err as one that cannot be retried if it is a *Waiting, for a command that a
// person waits for.
func WithoutWaiting(err error) error {
	if errors.As(err, new(*Waiting)) {
		return fmt.Errorf("nothing was changed: %s", err.Error())
	}
	return err
}

// A Former is what the store has of a relay of the same rows with another number of shards.
type Former struct {
	Name   string
	Shard  cdc.Shard
	Record *Record
}

// Reads reports whether the relay read a slot of found's server for a table of found's, as far as its record says.
func (f *Former) Reads(found *cdc.Identity) bool {
	was := f.Record.Published
	return !f.Record.elsewhere(found) && (was == nil || was.shares(&found.Published))
}

// current reports whether the record is of the slot that the relay has now. A slot never passes the record of its
// relay. So a slot that is further was made again, after the change that the record is from was undone. The record
// of a slot that is about to be made is current.
func (f *Former) current(found *cdc.Identity) bool {
	slot := found.Shards.Find(f.Shard)
	return slot != nil && !f.Record.elsewhere(found) && (slot.Confirmed <= f.Record.LSN || f.Record.Intended())
}

// Formers picks the records of the relays with other numbers of shards from what a store has. name is
// that of the relay of found. The names differ in the suffix of the shard. A record of another
// database, or of a slot with another name, says nothing about these rows, and is left out. A record of
// another server, or of a relay that polled, stays: what that relay had not delivered may be in the table.
func Formers(name string, found *cdc.Identity, values map[string][]byte) (former []Former, err error) {
	own := found.Shards.Own
	return siblings(name, found, values, func(s cdc.Shard) bool { return s.Of != own.Of })
}

// Peers is Formers for the other shards of the relay's own number.
func Peers(name string, found *cdc.Identity, values map[string][]byte) (peers []Former, err error) {
	own := found.Shards.Own
	return siblings(name, found, values, func(s cdc.Shard) bool { return s.Of == own.Of && s != own })
}

func siblings(name string, found *cdc.Identity, values map[string][]byte, wanted func(cdc.Shard) bool) (former []Former, err error) {
	base := strings.TrimSuffix(name, found.Shards.Own.Suffix())
	byName := map[string]cdc.Shard{}
	for key := range values {
		of, _, _ := strings.Cut(key, "/")
		suffix, ok := strings.CutPrefix(of, base)
		if shard, is := cdc.ShardOfSuffix(suffix); ok && is && wanted(shard) {
			byName[of] = shard
		}
	}
	for _, of := range slices.Sorted(maps.Keys(byName)) {
		rec, _, err := Newest(of, values)
		if err != nil {
			return nil, err
		}
		shard := byName[of]
		if rec != nil && rec.Database == found.Database && sameRows(rec, shard, found) {
			former = append(former, Former{of, shard, rec})
		}
	}
	return former, nil
}

// sameRows reports whether the source of rec has a name of found's rows, or is the whole table. The shards
// of a relay that polls are known by their names alone.
func sameRows(rec *Record, shard cdc.Shard, found *cdc.Identity) bool {
	switch {
	case rec.Poll != "":
		return shard.Of == 0
	case found.Poll != "":
		return cdc.ShardOfSlot(rec.Slot) == shard
	}
	return rec.Slot == found.Shards.Base+shard.Suffix()
}

// of returns the record of a shard, or nil.
func of(former []Former, shard cdc.Shard) *Record {
	for i := range former {
		if former[i].Shard == shard {
			return former[i].Record
		}
	}
	return nil
}

// delivered is the position of found's history before which the relay of rec has delivered everything.
// It is 0 for no record, for a relay that still has rows of the table to publish, and for a record whose
// positions are not those of found's server.
func delivered(rec *Record, found *cdc.Identity) cdc.Position {
	switch {
	case rec == nil || rec.Copy != nil || rec.elsewhere(found) || found.Timeline < rec.Timeline:
		return 0
	case found.Timeline > rec.Timeline:
		end, _ := fork(found, rec.Timeline)
		return min(rec.LSN, end)
	}
	return rec.LSN
}

// elsewhere reports whether the positions of r and of found cannot be compared.
func (r *Record) elsewhere(found *cdc.Identity) bool {
	return r.SystemID != found.SystemID || r.Poll != ""
}

// allDelivered is the position before which the relays with of's number of shards have delivered
// everything, and the commit time of the newest event before it. behind is the first shard that has
// come no further.
func allDelivered(of cdc.Shard, found *cdc.Identity, record func(cdc.Shard) *Record) (upTo cdc.Position, since time.Time, behind cdc.Shard) {
	for i, shard := range of.All() {
		rec := record(shard)
		if to := delivered(rec, found); i == 0 || to < upTo {
			upTo, since, behind = to, time.Time{}, shard
			if to > 0 {
				since = rec.CommitTime
			}
		}
	}
	return upTo, since, behind
}

// Superseded reports whether rec is of a relay that was replaced by relays of another number of
// shards: its slot was dropped or made again, and the other relays have delivered everything before
// rec. Then rec has no effect, and the relay starts as one without a record.
func Superseded(rec *Record, found cdc.Identity, former []Former) bool {
	if rec == nil || rec.Copy != nil {
		return false
	}
	if reason := judge(rec, &found); reason != SlotMissing && reason != SlotAhead {
		return false
	}
	others := found.Shards.Others()
	for _, other := range others {
		if other.Confirmed < rec.LSN || found.Shards.Missing(other.Shard) != "" || delivered(of(former, other.Shard), &found) < other.Confirmed {
			return false
		}
	}
	return len(others) > 0
}

// TakenOver returns an error that can be retried if a relay with another number of shards has taken over
// from the relay of rec, and the slot of that other relay exists. The generations of the records tell
// who came later, because clocks differ, and a relay that took over can be behind the relays before it. An
// older walpost wrote no generations. Of two records without one, the newer one counts, if it is further.
func TakenOver(rec *Record, found cdc.Identity, former []Former) error {
	for i := range former {
		f := &former[i]
		unordered := f.Record.Generation == 0 && rec.Generation == 0
		if f.Record.Generation <= rec.Generation && !unordered || !f.current(&found) {
			continue
		}
		upTo, _, behind := allDelivered(f.Shard, &found, func(s cdc.Shard) *Record { return of(former, s) })
		missing := found.Shards.Missing(f.Shard) != ""
		earlier := func(s cdc.Shard) bool { return !of(former, s).Time.After(rec.Time) }
		if unordered && (missing || upTo <= rec.LSN || slices.ContainsFunc(f.Shard.All(), earlier)) {
			continue
		}
		if missing || upTo < rec.LSN {
			return waiting("relay %s took over from slot %s, and the relay of slot %s has not delivered everything before %s yet. Let the relays that took over run. "+
				"To undo the change instead, stop the relays that took over, and drop their slots", f.Name, found.Slot, found.Shards.Base+behind.Suffix(), rec.LSN)
		}
		return waiting("slot %s is left over: %s took over and delivered everything up to %s, and this relay would deliver everything from %s onwards again. "+
			"To take over from them, drop the slot: SELECT pg_drop_replication_slot('%[1]s');", found.Slot, relaysOf(f.Shard), upTo, rec.LSN)
	}
	return nil
}

// Begin sets the generation of rec, which is the first record of a relay, and where the relays of its
// number of shards began. former and peers are the records of the others: see Formers and Peers.
func (r *Record) Begin(found *cdc.Identity, former []Former) {
	r.Generation, r.Began = generation(found, former), 0
	if found.Shards.Own.Of == 0 {
		return
	}
	r.Began = max(found.Server, found.SlotFound.Confirmed)
	for _, slot := range found.Shards.Slots { // one of them can be newer than found.Server
		if slot.Of == found.Shards.Own.Of {
			r.Began = max(r.Began, slot.Confirmed)
		}
	}
}

// generation is that of a relay that begins beside former: one more than theirs.
func generation(found *cdc.Identity, former []Former) (g uint64) {
	for i := range former {
		g = max(g, former[i].Record.Generation+1)
	}
	if len(found.Shards.Others()) > 0 {
		g = max(g, 1)
	}
	return g
}

// Together judges a first start by the other shards of the same number. All of them begin together: a
// relay waits until all their slots exist, because nobody else delivers the rows of a missing one. If
// they have begun, and the slot of the relay is newer than that, the error is a *Refusal.
func Together(found cdc.Identity, former, peers []Former) error {
	g, first := generation(&found, former), (*Record)(nil)
	for i := range peers {
		p := peers[i].Record
		if p.Began > 0 && p.Generation == g && peers[i].current(&found) && (first == nil || p.Began < first.Began) {
			first = p
		}
	}
	switch missing := found.Shards.Missing(found.Shards.Own); {
	case first == nil && missing != "" && found.Shards.Own.Of > 0:
		return waiting("slot %s waits for the other shards: slot %s does not exist yet. Start its relay", found.Slot, missing)
	case first == nil || found.SlotFound.Confirmed <= first.Began:
		return nil
	}
	late := &Refusal{Reason: BeganLate, From: first.Began, To: found.SlotFound.Confirmed, FormerRecord: first, Found: found}
	late.Token = late.token()
	return late
}

func relaysOf(s cdc.Shard) string {
	if s.Of == 0 {
		return "the relay of all rows"
	}
	return fmt.Sprintf("the relays of %d shards", s.Of)
}

// HandedOver judges a first start by the records of the relays with other numbers of shards. A slot
// alone does not tell what its relay has delivered: the slot may never have been read, it may have been
// advanced, or a recover may have made it again.
//
// If such a slot exists, the error can be retried until its relay has a record that reaches the slot.
// If none exists, the records must reach the relay's own slot. Otherwise the error is a *Refusal.
func HandedOver(found cdc.Identity, former []Former) error {
	others := found.Shards.Others()
	for _, other := range others {
		rec := of(former, other.Shard)
		switch {
		case rec == nil:
			return waits(&found, "no checkpoint of the relay of slot %s is stored, so that relay may have delivered nothing. Run walpost run %s, which delivers the events of the slot. "+
				"If the slot is left over from a trial, drop it: SELECT pg_drop_replication_slot('%[2]s'); Rows that were written after the slot was created are then published only with source.snapshot: initial",
				other.Slot, ShardFlag(other.Shard))
		case rec.elsewhere(&found):
			return waits(&found, "slot %s exists, but checkpoint %s was written for %s. Start the relay of that slot: it names the events that may be missing", other.Slot, rec.Key(), rec.source())
		case rec.Copies(OriginRecover):
			return waits(&found, "the recovery of relay %s is not finished. Run walpost recover %s", rec.Name, ShardFlag(other.Shard))
		case rec.Copy != nil:
			return waits(&found, "relay %s has not published all rows of its snapshot. Start that relay if it is not running, and let it finish", rec.Name)
		case delivered(rec, &found) < other.Confirmed:
			return waits(&found, "slot %s is at %s, beyond checkpoint %s at %s. Start the relay of that slot: it names the events that may be missing", other.Slot, other.Confirmed, rec.Key(), rec.LSN)
		}
	}
	if len(others) > 0 || len(former) == 0 || !found.SlotFound.Exists {
		return nil
	}
	var best Refusal // of the relays that came furthest
	for i := range former {
		upTo, since, behind := allDelivered(former[i].Shard, &found, func(s cdc.Shard) *Record { return of(former, s) })
		if i == 0 || upTo > best.From {
			best.From, best.Since, best.Former, best.FormerRecord = upTo, since, found.Shards.Base+behind.Suffix(), of(former, behind)
		}
	}
	if best.From >= found.SlotFound.Confirmed {
		return nil
	}
	best.Reason, best.Found, best.To = NotHandedOver, found, found.SlotFound.Confirmed
	best.Token = best.token()
	return &best
}

// source names what the relay of r read, if that was no slot of the server that was found.
func (r *Record) source() string {
	if r.Poll != "" {
		return sourceName(r.Poll, r.XIDColumn, r.Slot)
	}
	return "another server, with the system identifier " + r.SystemID
}

// ShardFlag says how a command names a shard.
func ShardFlag(s cdc.Shard) string {
	if s.Of == 0 {
		return "without --shard"
	}
	return "--shard " + s.String()
}

// waits is an error of a relay that cannot take over yet.
func waits(found *cdc.Identity, format string, args ...any) error {
	return waiting("slot %s waits to take over: "+format, append([]any{found.Slot}, args...)...)
}

func waiting(format string, args ...any) error { return &Waiting{fmt.Errorf(format, args...)} }

// takeOver says where a first start begins. If relays with another number of shards deliver the same
// rows, they have to deliver everything before our slot, and then to stop. All slots of our number
// of shards have to exist before that, because nobody else delivers the rows of a missing one.
//
// Everything before the lowest position that the others have confirmed is delivered. What they
// delivered beyond it comes again, in the same order.
func takeOver(found *cdc.Identity) (start cdc.Position, err error) {
	shards, start := &found.Shards, found.SlotFound.Confirmed
	others := shards.Others()
	if len(others) == 0 {
		return start, nil
	}
	if missing := shards.Missing(shards.Own); missing != "" {
		return 0, waits(found, "slot %s does not exist yet. Start its relay", missing)
	}
	from := others[0].Confirmed
	for _, other := range others {
		if missing := shards.Missing(other.Shard); missing != "" {
			return 0, waits(found, "slot %s exists, but slot %s does not. If the relays with the other number of shards have delivered everything, drop slot %[2]s", other.Slot, missing)
		}
		switch {
		case other.Confirmed >= start:
		case other.ActivePID != 0:
			return 0, waits(found, "the relay of slot %s has confirmed %s, but must confirm %s first", other.Slot, other.Confirmed, start)
		default:
			return 0, waits(found, "the relay of slot %s stopped at %s. Start that relay again, and let it run until it has confirmed %s", other.Slot, other.Confirmed, start)
		}
		from = min(from, other.Confirmed)
	}
	// A slot of ours that is not read and is further did not begin, or its relay is down. If it did
	// not begin, the others have more to deliver.
	for _, own := range shards.Slots {
		if own.Of == shards.Own.Of && own.ActivePID == 0 && own.Confirmed > from {
			return 0, waits(found, "nobody reads slot %s, which is at %s, and the slots of the other number of shards are at %s. Start the relay of the slot that nobody reads", own.Slot, own.Confirmed, from)
		}
	}
	return from, alone(found, "slot %s waits to take over: ", found.Slot)
}

// alone returns an error while a relay with another number of shards runs.
func alone(found *cdc.Identity, format string, args ...any) error {
	for _, other := range found.Shards.Others() {
		if other.ActivePID != 0 {
			return waiting(format+"slot %s is in use by server process %d, and its relay delivers the same keys. Stop that relay",
				append(args, other.Slot, other.ActivePID)...)
		}
	}
	return nil
}
