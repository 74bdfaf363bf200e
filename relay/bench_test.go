package relay

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

// benchSource sends n transactions of rows rows each as fast as it is asked.
type benchSource struct {
	n, rows int
	pos     cdc.Position
	row     int
	ev      cdc.Event
	vals    [1]cdc.Value
	stop    func()
	safe    cdc.Position
}

func (s *benchSource) Open(context.Context, bool, bool) (Session, error) { return s, nil }
func (s *benchSource) Check(context.Context) (cdc.Identity, error)       { return cdc.Identity{}, nil }
func (s *benchSource) Start(context.Context, cdc.Position) error         { return nil }
func (s *benchSource) Close(context.Context) error                       { return nil }
func (s *benchSource) StatusEvery() time.Duration                        { return time.Second }
func (s *benchSource) Identity() cdc.Identity {
	return cdc.Identity{SystemID: "7", Timeline: 1, Database: "shop", Slot: "walpost", Server: 1 << 60, SlotFound: cdc.SlotState{Exists: true, Confirmed: 10}}
}

func (s *benchSource) Confirm(_ context.Context, safe cdc.Position) error {
	s.safe = safe
	return nil
}

func (s *benchSource) Next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	switch {
	case s.n == 0:
		s.stop()
		s.ev = cdc.Event{Kind: cdc.Idle}
	case s.row == -1:
		s.pos += 16
		s.ev.Kind, s.ev.Pos = cdc.Begin, s.pos
		s.row++
	case s.row < s.rows:
		s.ev.Kind = cdc.Insert
		s.ev.Row = cdc.Row{Relation: tableRel, Values: s.vals[:]}
		s.row++
	default:
		s.ev.Kind, s.ev.Pos = cdc.Commit, s.pos+8
		s.row = -1
		s.n--
	}
	return &s.ev, nil
}

type benchRouter struct{ key, value []byte }

func (benchRouter) SetRunID(string)                            {}
func (benchRouter) Remarks(func(string, bool, uint64, string)) {}

func (r benchRouter) Route(_ *cdc.Event, rec *cdc.Record) (bool, error) {
	*rec = cdc.Record{Topic: "t", Key: r.key, Value: r.value, EventID: "id"}
	return true, nil
}

// benchSink acknowledges everything at the next look.
type benchSink struct {
	acks []cdc.Ack
	wake chan struct{}
}

func (s *benchSink) Send(r *cdc.Record, t cdc.Ticket) {
	s.acks = append(s.acks, cdc.Ack{Ticket: t, EventID: r.EventID, Topic: r.Topic})
}
func (s *benchSink) Wake() <-chan struct{}                             { return s.wake }
func (s *benchSink) PassOver(*cdc.Ack, func([]byte, *cdc.Ticket) bool) {}
func (s *benchSink) TakeBack(string, func([]byte, *cdc.Ticket) bool)   {}
func (s *benchSink) Stalled() error                                    { return nil }
func (s *benchSink) Pending(func(string, int, error, bool))            {}
func (s *benchSink) Close(context.Context) error                       { return nil }
func (s *benchSink) Acks(buf []cdc.Ack) []cdc.Ack {
	buf = append(buf, s.acks...)
	clear(s.acks)
	s.acks = s.acks[:0]
	return buf
}

type benchStore struct{}

func (benchStore) Load(context.Context, string) (map[string][]byte, error) { return nil, nil }
func (benchStore) Save(context.Context, string, []byte) error              { return nil }

// loopOver relays n transactions of rows rows each.
func loopOver(tb testing.TB, n, rows int) {
	ctx, cancel := context.WithCancel(context.Background())
	src := &benchSource{n: n, rows: rows, row: -1, pos: 16, stop: cancel, vals: [1]cdc.Value{{Bytes: []byte("x")}}}
	cfg := DefaultConfig()
	cfg.Name, cfg.Logger = "shop", slog.New(slog.DiscardHandler)
	r := New(cfg, src, benchRouter{[]byte("key"), make([]byte, 300)}, &benchSink{wake: make(chan struct{}, 1)}, benchStore{})
	if err := r.Run(ctx); err != nil {
		tb.Fatal(err)
	}
	if st := r.Status(); st.Events != uint64(n*rows) || st.Transactions != uint64(n) || src.safe != st.Received {
		tb.Fatalf("%+v, confirmed %s", st, src.safe)
	}
}

// BenchmarkLoop is what the loop itself costs per event (one row), with neighbours that cost next to nothing.
func BenchmarkLoop(b *testing.B) {
	for name, rows := range map[string]int{"1 row": 1, "100 rows": 100} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			loopOver(b, max(b.N/rows, 1), rows)
		})
	}
}

func TestLoopAllocatesNothingPerEvent(t *testing.T) {
	few := testing.AllocsPerRun(1, func() { loopOver(t, 2000, 1) })
	many := testing.AllocsPerRun(1, func() { loopOver(t, 102_000, 1) })
	if per := (many - few) / 100_000; per > 0.01 {
		t.Errorf("%.3f allocations per event", per)
	}
}
