// Package verify compares the outbox tables with the topics. It finds rows whose record is missing,
// was changed, came again, or came in the wrong order, and names what it cannot judge.
//
// # Where the two sides come from
//
// The expected records are what the Router makes of the rows now, read at one snapshot through
// internal/table, with the row filter of the publication. The snapshot ends when the rows are read.
// A row that was committed shortly before the snapshot may still be on its way. So verify then waits
// until the slot has confirmed the position of the snapshot: by then every record of a row is
// acknowledged, or the event is a dead letter. Only after that verify asks for the ends of the
// partitions, and reads every topic that a row goes to up to these ends.
//
// A row and a record belong together if they have the same event id in the header "id", in the same
// topic. The router writes this header into every record, and no option removes it. Several rows can
// have one id. Then key, value and headers tell which record is whose. A record without a row is
// counted and is no difference, because rows are cleaned up. A row without an event id (NULL) cannot
// be judged.
//
// # Memory
//
// Two sorts do the work, each of them on disk (see sorter). The first one brings rows and records with
// the same id together. The second one brings the records of one key together, in their order. An
// entry has digests, a place, and the id and the key for people: about 150 bytes. In memory are one
// piece of a sort, and one bit for each offset of the topics. An embedded store would write each
// entry several times (its log, its levels), for reads in any order that nothing here needs.
//
// # Order
//
// The true order of two events of one key is the order of their commit records in the WAL. The table
// does not have it. Neither an identity nor a transaction id tells it, because transactions overlap:
// the row with the lower id may commit last. verify calls two records out of order only if one of
// these facts says so:
//
//   - The same transaction wrote both rows, and source.order_column says which one came first. It is
//     the same transaction if xmin is equal and no row was updated since its insert.
//   - The commit times of the two transactions are more than a second apart, and source.order_column
//     does not contradict. Postgres takes the commit time before it writes the commit record, so two
//     commits that are closer together can have their times and their records in opposite orders.
//
// The commit time of a row is the timestamp of its record, unless a column gives the timestamp, the
// brokers do, or a command published the record from the table. Then it is the time that the server
// keeps (track_commit_timestamp), if the row was not updated. Every other pair that looks reversed is
// counted as "cannot tell".
//
// A person may have sent an event once more or late (walpost replay, walpost dead retry). The header
// walpost.origin tells such a record. It has no place in the order: it is neither judged, nor is
// another record judged by it.
//
// # Duplicates
//
// A relay that was killed sends again what it had sent since its checkpoint. In each partition that
// gives a stretch of records that repeats the newest records before it, byte for byte and in the same
// order, up to the newest one. A second crash can cut such a stretch, and the next stretch follows at
// once. These duplicates are counted. If retention has removed the beginning of what a stretch
// repeats, the stretch can look wrong: then verify cannot tell. Every other duplicate is a difference,
// unless the header walpost.origin says that a command sent the record.
//
// # Polling
//
// A relay that polls the table has no slot. Its checkpoint says up to which transaction everything is
// delivered, and each row says its transaction. So verify waits until the checkpoint is above the
// transactions of all rows that it has read. If the relay does not come so far, verify still judges the
// rows below the checkpoint.
//
// The order of a key is that of source.order_column. If the column says that a record is in its place,
// commit times do not contradict. A record has its commit time only if the server keeps the times.
//
// After a crash the relay cuts its ranges anew, and only the order of each key stays. So the rules for
// duplicates hold for the records of each key. If writers of one key do not take turns, the records
// that are repeated can be in another order than at first. Then verify cannot tell.
package verify

import (
	"cmp"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/router"
)

// Config is what verify compares.
type Config struct {
	From                    table.Source
	Router                  *router.Router
	Kafka                   *kafka.Config
	Slot                    string
	OrderColumn, TimeColumn string
	// Polled is for a relay that polls the table. Then Slot means nothing. nil is for one that reads a slot.
	Polled *Polled
	// Bound is that of source.snapshot; the zero Bound is for none. A first start leaves out the rows below it.
	Bound pg.Bound
	// Unfinished is called when the relay has passed the snapshot. It says why rows may have no record
	// all the same, or "". nil says nothing.
	Unfinished func(ctx context.Context) (string, error)
	// Elsewhere is called when the relay has passed the snapshot, and again when the topics are read,
	// because a command may deliver such an event meanwhile. It returns a function that says where an
	// event is if it is not in its topic. The zero Place says nothing. nil is for no event.
	Elsewhere func(ctx context.Context) (func(table, eventID string) Place, error)
}

// A Place is where an event is if it is not in its topic.
type Place struct {
	Name string // such as "dead letter"
	Open bool   // the event is still to be delivered, so it must not be in its topic yet
	// Parked says that the event is one of this relay's parked events. Others may be those of another relay.
	Parked bool
}

// Options say what is compared, and how much is told.
type Options struct {
	// Since and Until select the rows that were written from Since on, and before Until. Zero is no
	// bound. A row of unknown age is selected.
	Since, Until time.Time
	// FirstID and LastID select the rows by their event id, as the server compares its column.
	FirstID, LastID *string
	// Wait is how long verify waits for a relay that makes no progress.
	Wait time.Duration
	// TempDir is the folder of the temporary files; "" is the system's.
	TempDir string
	// Limit bounds the findings of each kind. All are counted.
	Limit int
	// Say tells the user something in one line. Progress says how far a step is; both may be nil.
	Say      func(text string)
	Progress func(step string, done, total int64)

	memory int // of a sort; 0 is the default
}

// DefaultWait is the default of Options.Wait. An idle slot is confirmed every ten seconds.
const DefaultWait = time.Minute

const (
	// sortMemory is for each of the two sorts that exist at the same time.
	sortMemory = 32 << 20
	// margin is how much later a row must be than what retention has removed, and how much earlier
	// than Since the topics are read: clocks may be set.
	margin = 10 * time.Minute
	// patience is how long a partition may give nothing.
	patience = 30 * time.Second
)

// A verifier is one run. It belongs to one goroutine.
type verifier struct {
	Config
	Options
	report Report

	hash   *hasher
	client *kgo.Client
	tables []*checkedTable
	topics []*topic
	byName map[string]*topic
	from   time.Time // where reading the topics begins; zero reads all
	open   string    // where a transaction stays open that hides records; "" for nowhere

	byID, byKey, again *sorter
	before, after      func(table, eventID string) Place // of Elsewhere, around the reading of the topics
	buf                []byte

	reached Reached // of Polled: at first before the tables are read, then when wait ended
	newest  uint64  // of the rows that reached does not have, the newest transaction; 0 for none
	ofKey   offsets // for Polled: the records of one key that are not duplicates
	repeats offsets // for Polled: the records of one key that a stretch repeats
}

// A checkedTable is a table whose rows are compared.
type checkedTable struct {
	*table.Table
	name          string
	columns       router.Columns
	rank, written int           // indexes of source.order_column and source.time_column; -1 for none
	ahead         time.Duration // by how much a row can look younger than it is: it tells no zone, and a session may be east of UTC
	xid           int           // index of Polled.XIDColumn; -1 without Polled
	updated       bool
}

// Run compares. It changes nothing in Postgres and Kafka. The error says that it could not compare.
func Run(ctx context.Context, cfg Config, opts Options) (*Report, error) {
	v := &verifier{Config: cfg, Options: opts, hash: newHasher(), byName: map[string]*topic{}}
	v.report.Counts, v.report.Elsewhere, v.report.Findings = map[Kind]int64{}, map[string]int64{}, []Finding{}
	if v.memory == 0 {
		v.memory = sortMemory
	}
	if v.Say == nil {
		v.Say = func(string) {}
	}
	if v.Progress == nil {
		v.Progress = func(string, int64, int64) {}
	}
	v.byID, v.byKey, v.again = newSorter(v.TempDir, v.memory), newSorter(v.TempDir, v.memory), newSorter(v.TempDir, v.memory/4)
	for _, s := range []*sorter{v.byID, v.byKey, v.again} {
		defer s.close()
	}
	var dials kafka.Dials
	var err error
	if v.client, err = v.Kafka.NewClient(&dials); err != nil {
		return nil, err
	}
	defer v.client.Close()
	if v.Polled != nil {
		if v.reached, err = v.Polled.Reached(ctx); err != nil {
			return nil, err
		}
	}
	at, err := v.readTables(ctx)
	if err != nil {
		return nil, err
	}
	if v.report.NotConfirmed, err = v.wait(ctx, at); err != nil {
		return nil, err
	}
	if v.Unfinished != nil && v.report.NotConfirmed == "" {
		if v.report.NotConfirmed, err = v.Unfinished(ctx); err != nil {
			return nil, err
		}
		if v.report.NotConfirmed != "" {
			v.reached = Reached{Unknown: v.report.NotConfirmed}
		}
	}
	if v.Elsewhere == nil {
		v.Elsewhere = func(context.Context) (func(table, eventID string) Place, error) {
			return func(string, string) Place { return Place{} }, nil
		}
	}
	if v.before, err = v.Elsewhere(ctx); err != nil {
		return nil, err
	}
	if err := v.readTopics(ctx); err != nil {
		return nil, dials.Explain(err)
	}
	if v.after, err = v.Elsewhere(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{v.match, v.judgeKeys, v.judgeAgain} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	v.report.NotConfirmed = cmp.Or(v.report.NotConfirmed, v.open)
	return &v.report, nil
}
