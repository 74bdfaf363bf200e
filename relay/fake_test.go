package relay

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A world is what outlives a relay: the server with its slot, the broker, the store of checkpoints. Everything in it is
// guarded by mu, and time is the bubble's. Each process that uses it has a proc of its own.
type world struct {
	mu     sync.Mutex
	rng    *rand.Rand
	wrong  []string // what must never happen and did
	tale   []string // what happened, for the report
	began  time.Time
	status time.Duration // StatusEvery
	runID  string        // the first that a router was given

	// The server.
	id       cdc.Identity
	log      []*txn
	pos      cdc.Position
	changed  chan struct{} // closed and replaced whenever there is something new
	session  *fakeSession  // the one that holds the slot
	down     bool
	checkErr error
	openErr  error
	startErr error
	rowsErr  error
	hang     bool // Open and Start wait for their context
	slowOpen time.Duration
	slowLoad time.Duration // of the store
	blocked  bool          // the session sends nothing, and takes nothing
	gapsOK   bool          // a start behind the slot or ahead of delivery is what the test wants
	opens    int
	creates  int
	strays   map[int]bool        // transactions that the source leaves out when it sends them again: it lies
	flaky    float64             // how likely a call of a session is its last one
	made     cdc.Position        // where the slot was made
	tabled   bool                // its rows are in the tables of simTables
	accepted *checkpoint.Refusal // the gap that a person has accepted, until the slot behind it is made

	unwritten cdc.Position // where that slot was made
	byID      map[string]*row
	byKey     map[string][]*row // rows that give records, in the order of their commits
	top       map[string]*row   // of these, the last one that has arrived

	// The broker.
	landed          map[string][]int // per key: the index of each record, in order of arrival
	perKey          map[string]int   // records made for each key so far
	count           map[string]int   // arrivals per event id
	arrivals        int
	times           map[string]time.Time
	arrived         int // transactions of log that have arrived wholly, with all before
	stalled         bool
	readings        int    // of the tables, that hold a snapshot now
	silent          bool   // the cause of the stall is not known yet
	hold            string // the event that is not delivered for now
	missing         string // the topic that takes nothing for now
	maxDelay        time.Duration
	poison          map[string]bool
	cursed          map[string]bool // poison that stays
	skipped         map[string]bool // a person has asked to pass over them
	unrouted        map[string]bool // rows that cannot be routed for now
	unanswered      bool            // the schema registry does not answer for now
	lettersTooLarge bool            // the dead letter topic refuses each
	noLetters       bool            // the dead letter topic takes nothing for now
	bury            bool            // the policy is dead_letter
	bad             map[string]bool // events that were bad at some time, under this policy
	dead            map[string]int  // dead letters per event id
	tokens          map[string]string

	parks   bool            // the policy is park_key
	park    *parkWorld      // the topic of parked events
	tx      *txBroker       // nil for at_least_once
	shared  map[byte]string // the topics of keys that share one
	renamed *cdc.Relation   // the table of later events, nil for tableRel

	// The store.
	records   map[string][]byte
	storeDown bool
	storeLie  bool // applies and then says that it did not
	storeHang bool // waits for the context
	storeLost bool // has lost records: a Load without one of its own is a lostRecords
	storeLate bool // says that it did not, and applies later
	writers   map[string]*proc
	storeMax  time.Duration
	saves     int

	runs     []*run
	confirms int
	maxGap   time.Duration // between two confirms of one session
	clean    bool          // nothing happens that may duplicate
}

type txn struct {
	begin, end cdc.Position
	time       time.Time
	rows       []*row
}

type row struct {
	id, key string
	index   int // within its key
	routed  bool

	// Of the simulation of tables (simtables_test.go).
	tx      *txn
	table   string
	n       int          // its place in the order of all tables' rows
	changed cdc.Position // the end of the UPDATE that wrote its present version; 0: none
	deleted cdc.Position // the end of the DELETE; 0: the table has it
	excused bool         // it may be missing: nothing has it any more, or a person accepted that
	reread  bool         // a reading of what is in the tables now gave it, as the stream may
}

var tableRel = &cdc.Relation{ID: 1, Schema: "public", Name: "outbox", Columns: []cdc.Column{{Name: "id"}, {Name: "key"}, {Name: "n"}}}

func newWorld(seed uint64) *world {
	return &world{
		rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), status: 10 * time.Second,
		id:  cdc.Identity{SystemID: "7", Timeline: 1, Database: "shop", Slot: "walpost", SlotFound: cdc.SlotState{Exists: true, Confirmed: 100, WALStatus: "reserved"}},
		pos: 100, changed: make(chan struct{}), landed: map[string][]int{}, perKey: map[string]int{}, count: map[string]int{}, times: map[string]time.Time{},
		poison: map[string]bool{}, cursed: map[string]bool{}, skipped: map[string]bool{}, unrouted: map[string]bool{},
		bad: map[string]bool{}, dead: map[string]int{}, tokens: map[string]string{},
		records: map[string][]byte{}, maxDelay: 50 * time.Millisecond, storeMax: 5 * time.Millisecond,
		strays: map[int]bool{}, byID: map[string]*row{}, byKey: map[string][]*row{}, top: map[string]*row{}, writers: map[string]*proc{}, made: 100,
	}
}

func (w *world) fail(format string, a ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf("%s: ", time.Since(w.began))+fmt.Sprintf(format, a...))
}

func (w *world) tell(format string, a ...any) {
	w.tale = append(w.tale, fmt.Sprintf("%s: ", time.Since(w.began))+fmt.Sprintf(format, a...))
}

func (w *world) clear() {
	clear(w.count)
	w.arrived = 0
}

func (w *world) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// commit adds a transaction with one row for each of keys. A key that begins with "-" is of a row that gives no record.
func (w *world) commit(keys ...string) *txn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commitLocked(keys)
}

func (w *world) commitLocked(keys []string) *txn {
	t := &txn{begin: w.pos + 8 + cdc.Position(8*len(keys)), time: time.Now()}
	t.end = t.begin + 8
	w.pos = t.end
	for i, k := range keys {
		r := &row{id: fmt.Sprintf("%s-%d", t.begin, i), key: k, routed: !strings.HasPrefix(k, "-"), tx: t, n: len(w.byID)}
		if w.byID[r.id] = r; r.routed {
			r.index = w.perKey[k]
			w.perKey[k]++
			w.byKey[k] = append(w.byKey[k], r)
		}
		t.rows = append(t.rows, r)
		w.times[r.id] = t.time
	}
	w.log = append(w.log, t)
	w.wake()
	return t
}

// other is traffic that the slot's publication does not have.
func (w *world) other() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pos += 64
	w.wake()
}

// delivered says up to where every record has arrived, and how many of the next transaction have.
func (w *world) delivered() (pos cdc.Position, next *txn, rows int) {
	pos = w.pos
	for ; w.arrived < len(w.log); w.arrived++ {
		t := w.log[w.arrived]
		n, whole := 0, true
		for _, r := range t.rows {
			if !r.routed {
				continue
			}
			if !w.done(r) {
				whole = false
				break
			}
			n++
		}
		if !whole {
			return t.begin, t, n
		}
	}
	return pos, nil, 0
}

// skip is what walpost skip does, for every event that a relay was halted by and that ok names. It returns how many those are.
func (w *world) skip(ok func(h *checkpoint.Halt) bool) (n int) {
	w.do(func() { n = w.skipLocked(ok) })
	return n
}

func (w *world) skipLocked(ok func(h *checkpoint.Halt) bool) (n int) {
	for _, h := range w.stored().Halts {
		if !ok(h) {
			continue
		}
		n++
		w.records[h.SkipKey()] = h.Encode()
		w.skipped[h.EventID] = true
	}
	return n
}

// mayMiss reports whether nobody waits for a row any more.
func (w *world) mayMiss(r *row) bool { return r.excused || !r.routed || w.skipped[r.id] }

// done reports whether an event is in its topic or in that of dead letters, or nobody waits for it.
func (w *world) done(r *row) bool {
	return w.count[r.id] > 0 || w.dead[r.id] > 0 || w.mayMiss(r) || w.isParked(r)
}

// mayLag reports whether later events of the key may arrive before the event.
func (w *world) mayLag(r *row) bool { return w.mayMiss(r) || w.bad[r.id] || w.given(r) }

// halts is how many events of halts, and requests to pass over one, the store has.
func (w *world) halts() int {
	stored := w.stored()
	return len(stored.Halts) + len(stored.Skips)
}

func (w *world) newest() *checkpoint.Record { return w.stored().Rec }

func (w *world) stored() checkpoint.Stored {
	stored, err := checkpoint.Read("shop", w.records)
	if err != nil {
		w.fail("%v", err)
	}
	return stored
}

// A proc is one process: when it is killed, nothing that it still does has an effect.
type proc struct {
	w           *world
	dead        bool
	away        bool   // cannot reach the server
	frozen      bool   // does nothing for now
	lateLetters bool   // its letters and marks do not arrive for now
	stuck       string // the first write under this key is waited for in vain
	inStuck     bool   // it is being waited for
	lies        string // the first write under this key succeeds, and says that it did not
	late        string // the first write under this key is given up, and arrives when the next start has looked once
	sink        *fakeSink
	log         *fakeLog // nil in a world that does not park

	taken    *checkpoint.Record // the newest record with which it took the slot
	sentLast map[string]int     // the same, of a world that parks
	last     map[string]int     // the index of the newest record that it sent, by key
}

var errNet = fault.Retry(errors.New("connection reset"))

// fakeRouter makes a record of a row whose key does not begin with "-".
// It holds the relay to its run id: one for the life of the checkpoint, and known before the first event.
type fakeRouter struct {
	w       *world
	runID   string
	ignored uint64 // keys that begin with "-"
}

func (f *fakeRouter) Remarks(each func(what string, severe bool, count uint64, last string)) {
	if f.ignored > 0 {
		each("ignored on purpose", true, f.ignored, "row")
	}
}

func (f *fakeRouter) SetRunID(id string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.runID == "" {
		f.w.runID = id
	}
	if f.runID = id; id != f.w.runID {
		f.w.fail("run id %q after %q", id, f.w.runID)
	}
}

func (f *fakeRouter) Route(ev *cdc.Event, rec *cdc.Record) (bool, error) {
	if f.runID == "" {
		f.w.do(func() { f.w.fail("an event without a run id") })
	}
	if look(f.w, &f.w.unanswered) {
		return false, fmt.Errorf("event: %w", &unanswered{f.w})
	}
	v := ev.Row.Values
	rec.EventID = string(v[0].Bytes)
	if v[1].Bytes[0] == '-' {
		f.ignored++
		return false, nil
	}
	unrouted := false
	f.w.do(func() { unrouted = f.w.unrouted[rec.EventID] })
	if v[1].Bytes[0] == '!' || unrouted {
		f.w.do(func() { f.w.bad[rec.EventID] = f.w.bury })
		*rec = cdc.Record{EventID: rec.EventID, Partition: -1, Committed: ev.Time}
		if f.w.parks && string(v[1].Bytes) != "!keyless" {
			rec.Key = []byte(string(v[1].Bytes))
			return false, keyedError{errors.New("column aggregate_type is null")}
		}
		return false, errors.New("column aggregate_type is null")
	}
	*rec = cdc.Record{
		Topic: cmp.Or(f.w.shared[v[1].Bytes[0]], string(v[1].Bytes)), Partition: -1, Key: []byte(string(v[1].Bytes)), Value: append([]byte(nil), v[2].Bytes...),
		Time: ev.Time, Committed: ev.Time, EventID: string(v[0].Bytes),
	}
	return true, nil
}

// unanswered is the error of a router that waits for a schema registry.
type unanswered struct{ w *world }

func (*unanswered) Error() string    { return "no id" }
func (u *unanswered) Ready() bool    { return !look(u.w, &u.w.unanswered) }
func (u *unanswered) Stalled() error { return errors.New("schema registry: connection refused") }

// indexText is an index as a text of eight bytes.
func indexText(i int) []byte { return fmt.Appendf(nil, "%08d", i) }

func indexIn(text []byte) int {
	i, err := strconv.Atoi(string(text))
	if err != nil {
		return -1
	}
	return i
}
