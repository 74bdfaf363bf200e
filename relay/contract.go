package relay

import (
	"context"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Source opens sessions on one database and one slot. Its methods may be called from any goroutine, Open only while no
// other session is open. Errors say by behaviour (package fault) whether a retry can help or a person is needed.
type Source interface {
	// Open connects, checks every precondition and finds the slot, but does not take it. Where the slot is missing and
	// create is set, the publication is made first (when missing too) and then the slot. With replaceLost a slot that
	// the server has invalidated is dropped and made again. Without them a missing or lost slot is no error: the
	// session's Identity says so and the caller judges.
	Open(ctx context.Context, create, replaceLost bool) (Session, error)

	// Check asks, on a connection of its own, whether what the stream rests on is still there: the slot, the publication
	// with the table in it, and says what was found. An error that needs a person means that events may be missing; found
	// is valid beside it.
	Check(ctx context.Context) (found cdc.Identity, err error)
}

// A Session is one connection to a source. It is used by one goroutine at a time, and never again after an error.
type Session interface {
	// Identity is what Open found; after Start, what was found once more while this session holds the slot.
	Identity() cdc.Identity

	// Start takes the slot and streams from at, which was not before the slot's confirmed position when Identity was found. A
	// slot that another process holds is waited for until ctx ends, and named (pid) through the log; that process may move
	// the slot meanwhile, which the caller finds out by Identity and ends the session before it reads.
	Start(ctx context.Context, at cdc.Position) error

	// Next returns the next event, or an Idle with Pos 0 when nothing arrived for wait. The event is valid until the next
	// call. It never sends anything by itself except answers to the server's keepalives, and not more often than the
	// source's own rules allow.
	Next(ctx context.Context, wait time.Duration) (*cdc.Event, error)

	// Confirm sends a status: received is how far events were read, safe how far they are acknowledged and checkpointed.
	// It is called at least once every StatusEvery, new progress or not; it is also the sign of life. It reports a
	// session that has died meanwhile, also when Next is not being called.
	Confirm(ctx context.Context, safe cdc.Position) error

	// StatusEvery is how often Confirm must be called at least. Valid after Start.
	StatusEvery() time.Duration

	// Close ends the stream in an orderly way where ctx gives the time, and frees the slot.
	Close(ctx context.Context) error
}

// A Router makes records of rows. It is pure: the same event gives the same record, byte for byte.
type Router interface {
	// Route fills rec from ev (Insert, Update, Delete or Message) and says whether the event gives a record at all.
	// rec owns its bytes afterwards. An error means that the event can not be routed; it names what is wrong with it, and
	// rec.EventID names the event where it could be found.
	Route(ev *cdc.Event, rec *cdc.Record) (bool, error)
}

// A RunIDTaker is a Router that writes the relay's run id into its records: a UUID made with the first checkpoint record and kept in it, so
// that what is delivered again says the same. SetRunID is called before the first Route, and once more for each further
// session, never beside Route.
type RunIDTaker interface{ SetRunID(id string) }

// A Remarker is a Router that passes over things because its configuration says so. Remarks tells each kind: what it was, whether it is to be
// logged as an error, how often since the start, and the newest. The relay counts and logs them now and then, never beside Route.
type Remarker interface {
	Remarks(each func(what string, severe bool, count uint64, last string))
}

// A Sink delivers records. Send, Acks and Close are called by one goroutine; Wake and Stalled by any.
type Sink interface {
	// Send takes over rec (its bytes, not the struct, which the caller reuses). It never waits for the broker. Records of one topic and one key are
	// delivered in the order of Send; while one of them is not delivered, none behind it is.
	Send(rec *cdc.Record, ticket cdc.Ticket)

	// Acks appends what has ended since the last call to buf: each ticket exactly once, in any order.
	Acks(buf []cdc.Ack) []cdc.Ack

	// Wake receives something when there is something for Acks. It has a capacity of one and never blocks the sink.
	Wake() <-chan struct{}

	// Stalled says what delivery is waiting for: nil while it goes on, else the reason for readiness and the log, such as
	// a missing topic, a missing right, brokers that can not be reached.
	Stalled() error

	// Pending calls each once for every topic that has records which are sent and not delivered, in any order. why is what they
	// wait for, nil where it is not known. closed says that they are not delivered any more, because they are behind a record
	// that was refused.
	Pending(each func(topic string, records int, why error, closed bool))

	// Close gives up what is not delivered, without an Ack, and frees everything. A record on the wire may still arrive.
	Close(ctx context.Context) error
}

// A Store keeps checkpoint records: small values under keys of the form name/epoch.holder. Its methods may take long and are
// called by one goroutine at a time. A Store that can not be read gives an error, never "nothing there". Nor does a Store that has lost
// records and has none of name under a number: that error needs a person, and has a GapToken (see LostRecords).
type Store interface {
	// Load returns every record whose key starts with name + "/", as of some moment after the call began.
	Load(ctx context.Context, name string) (map[string][]byte, error)
	// Save makes a record durable before it returns. A nil value removes the key.
	Save(ctx context.Context, key string, value []byte) error
}

// LostRecords is the error of a Store that cannot tell whether it had a checkpoint.
type LostRecords interface {
	error
	// GapToken names this one loss. As Config.AcceptGap it says that a person has decided to go on without a checkpoint.
	GapToken() string
}
