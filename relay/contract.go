package relay

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay/internal/records"
)

// A Source opens sessions on one database and one slot. Its methods may be called from any
// goroutine, but Open only while no other session is open. Errors say by behaviour (package fault)
// whether a retry can help or a person is needed.
type Source interface {
	// Open connects, checks every precondition and finds the slot, but does not take it. If the
	// slot is missing and create is set, Open makes the publication, unless it exists, and then the
	// slot. With replaceLost, Open drops a slot that the server has invalidated and makes it again.
	// Otherwise a missing or lost slot is no error: the session's Identity says so, and the caller
	// judges.
	Open(ctx context.Context, create, replaceLost bool) (Session, error)

	// Check uses a connection of its own. It asks whether everything that the stream rests on still
	// exists: the slot, and the publication with the table in it. An error that needs a person
	// means that events may be missing. found is valid beside such an error.
	Check(ctx context.Context) (found cdc.Identity, err error)
}

// A Session is one connection to a source. One goroutine at a time uses it, and nobody uses it
// after an error.
type Session interface {
	// Identity is what Open found. After Start it is what was found once more while this session
	// holds the slot.
	Identity() cdc.Identity

	// Start takes the slot and streams from at, which is not before the confirmed position that
	// Identity had. Start waits until ctx ends for a slot that another process holds, and logs that
	// process's pid. The other process may move the slot meanwhile. The caller finds that out by
	// Identity, and then ends the session before it reads.
	Start(ctx context.Context, at cdc.Position) error

	// Next returns the next event, or an Idle with Pos 0 if nothing arrived for wait. The event is
	// valid until the next call. Next sends nothing except answers to the server's keepalives, and
	// not more often than the rules of the source allow.
	Next(ctx context.Context, wait time.Duration) (*cdc.Event, error)

	// Confirm sends a status: everything before safe is acknowledged and checkpointed. The caller
	// calls it at least once every StatusEvery, because it is also the sign of life. It reports a
	// session that has died meanwhile, even if Next is not being called.
	Confirm(ctx context.Context, safe cdc.Position) error

	// StatusEvery is the longest time between two Confirms. It is valid after Start.
	StatusEvery() time.Duration

	// Close frees the slot. It ends the stream in an orderly way if ctx gives it the time.
	Close(ctx context.Context) error
}

// A Seeker is a Session of a source that cuts transactions out of the table itself, so that another
// session would cut other ones. The loop tells it where to go on, before the first Next of each
// session: by one of both methods.
type Seeker interface {
	// Seek has the session begin at the position at. If open is not 0, the first transaction is the
	// one whose Begin has the position open, and the session gives that one even if it has no row
	// any more. What the snapshot border sees is delivered, too; "" for nothing.
	Seek(at, open cdc.Position, border string)
	// Continue has the session go on behind the newest event that a session of this Source gave,
	// also inside a transaction.
	Continue()
}

// A Keeper keeps the outcome of each row that its source gave, instead of a position. The Pos of such
// an event is the row's number, and the methods name the row by it. The goroutine that uses the session
// calls all methods.
type Keeper interface {
	// Delivered says that the brokers have acknowledged the record of the row or its dead letter, or
	// that the row produces no record.
	Delivered(row uint32)
	// Refused says that this row alone cannot be delivered, and why. It reports whether the source
	// gives the row again later. Then the source gives no younger row of the key before that.
	Refused(row uint32, why string) (again bool)
	// Returned says that the record of the row was not sent, because an older record of its key was
	// refused.
	Returned(row uint32)
	// Overdue returns an error if another process may soon deliver rows that are in flight. Then
	// nothing may be sent any more.
	Overdue() error
}

// A Router makes records of rows. It is pure: the same event gives the same record, byte for byte.
type Router interface {
	// Route fills rec from ev, which is an Insert, Update, Delete or Message. It reports whether
	// the event gives a record. rec owns its bytes afterwards. An error means that the event cannot
	// be routed, and names the cause. rec.EventID then names the event, if the id could be found.
	Route(ev *cdc.Event, rec *cdc.Record) (bool, error)

	// SetRunID says what the records give as the relay's run id: a UUID that is made with the first
	// checkpoint record and kept in it, so that a second delivery says the same as the first. It is
	// called before the first Route and once for each further session, never beside Route.
	SetRunID(id string)

	// Remarks calls each for every kind of thing that the router passed over because its
	// configuration says so: what it is, whether the log should show it as an error, how often it
	// came since the start, and the newest case. It is called now and then, never beside Route.
	Remarks(each func(what string, severe bool, count uint64, last string))
}

// A Sink delivers records. One goroutine calls Send, PassOver, TakeBack, Acks, Pending and Close. Any goroutine may
// call Wake and Stalled.
type Sink interface {
	// Send takes over the bytes of rec, but not the struct, which the caller reuses. It never waits
	// for the broker. Records of one partition are delivered in the order of Send. While one of them
	// is not delivered, no later one is. The key decides the partition, unless the record names one.
	Send(rec *cdc.Record, ticket cdc.Ticket)

	// Acks appends to buf what has ended since the last call: each ticket exactly once, in any
	// order.
	Acks(buf []cdc.Ack) []cdc.Ack

	// PassOver lets a partition go on behind a refused record, whose Ack is a, in the order of Send.
	// Before, no record that was sent to the partition later is delivered. A record that waits for the
	// topic, and of which taken is true, is not delivered: it ends with an Ack that has the record, and
	// whose error is cdc.ErrTakenBack. A nil taken takes nothing. taken must
	// not call the sink, nor keep key.
	PassOver(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool)

	// TakeBack ends records that were sent to a topic, with cdc.ErrTakenBack as PassOver does: those of
	// which taken is true and that only wait so far.
	TakeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool)

	// Wake receives a value when there is something for Acks. The channel has a capacity of one and
	// never blocks the sink.
	Wake() <-chan struct{}

	// Stalled says what delivery waits for, for readiness and the log: a missing topic, a missing
	// right, brokers that cannot be reached. It is nil while delivery goes on.
	Stalled() error

	// Pending calls each for every topic with records that are sent and not delivered, in any order.
	// why is what the records wait for, nil if that is not known. closed says that they will not be
	// delivered any more, because they are behind a record that was refused. Each partition of this
	// kind has a call of its own. each must not call the sink.
	Pending(each func(topic string, records int, why error, closed bool))

	// Close frees everything. What is not delivered gets no Ack. A record on the wire may still
	// arrive.
	Close(ctx context.Context) error
}

// A ParkingLog is partition 0 of the topic of parked events, with the only process that may
// write the relay's letters and results into it. One goroutine calls Open, Append, Appends, Unwritten
// and Close; any may call the other methods.
type ParkingLog interface {
	// Open makes this process the only writer: what an earlier one has not committed is given up, and
	// its later appends fail. Nothing that this process has appended before is committed any more, but
	// a part of it may be: see Unwritten. A topic that is missing is made if create is set; otherwise nothing is
	// opened, and that is no error. Errors say by behaviour whether a retry can help.
	Open(ctx context.Context, create bool) (cdc.LogState, error)

	// Append takes over rec. It never waits for the brokers. Records are committed in the order of
	// Append, and none without those before it.
	Append(rec *cdc.Record, ticket cdc.Ticket)

	// Appends appends to buf what has ended since the last call, in order.
	Appends(buf []cdc.Appended) []cdc.Appended

	// Wake receives a value when there is something for Appends, and when Broken changes. The channel
	// has a capacity of one and never blocks the log.
	Wake() <-chan struct{}

	// Broken is why nothing more is committed until Open: another process has become the writer, or
	// nobody knows whether a transaction is committed. It is nil while all is well.
	Broken() error

	// Unwritten takes out what was appended before the newest Open and has not ended, in order. A part
	// of it can be committed: the caller finds that out by Read, and appends the rest again.
	Unwritten() []cdc.Pending

	// Stalled is what appending waits for, nil while it goes on.
	Stalled() error

	// Read calls each for every committed record, in order, from the offset from on to the end that
	// the topic has when the call begins, or until each returns false. From 0 it reads what there is. It
	// returns what it found of the topic; Next is the offset behind the last record that each got, also
	// beside an error. A record is valid during the call of each. If the topic has lost records behind
	// from, because somebody made it again or removed them, the error needs a person. Other errors are
	// waited out.
	Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (cdc.LogState, error)

	// Trim deletes the records before an offset, but none from the first one on of which own is false.
	Trim(ctx context.Context, before int64, own func(*kgo.Record) bool) error
}

// A Store keeps checkpoint records. LostRecords is its error if it cannot tell whether it had one. A Look
// is Store.Load without an effect.
type (
	Store       = records.Store
	Look        = records.Look
	LostRecords = records.LostRecords
)
