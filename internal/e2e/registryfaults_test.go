package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// A frailRegistry is a proxy before a schema registry that keeps its schemas.
type frailRegistry struct {
	t       *testing.T
	address string
	server  *http.Server // nil while it is down
	proxy   *httputil.ReverseProxy
	refuses atomic.Int64 // the status that it answers with instead; 0 for none
	slow    atomic.Int64 // how long each answer takes
	loses   atomic.Bool  // it does what is asked for, and the answer is lost
}

func newFrailRegistry(t *testing.T, behind string) *frailRegistry {
	t.Helper()
	target, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	f := &frailRegistry{t: t, address: "127.0.0.1:0", proxy: httputil.NewSingleHostReverseProxy(target)}
	f.proxy.ModifyResponse = func(*http.Response) error {
		if f.loses.Load() {
			return errors.New("lost")
		}
		return nil
	}
	f.proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	f.start()
	t.Cleanup(f.kill)
	return f
}

func (f *frailRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(time.Duration(f.slow.Load())):
	case <-r.Context().Done():
		return
	}
	if status := int(f.refuses.Load()); status != 0 {
		http.Error(w, fmt.Sprintf(`{"error_code": %d, "message": "a test"}`, status), status)
		return
	}
	f.proxy.ServeHTTP(w, r)
}

func (f *frailRegistry) start() {
	f.t.Helper()
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.address = l.Addr().String()
	f.server = &http.Server{Handler: f}
	go f.server.Serve(l) //nolint:errcheck // it ends with kill
}

func (f *frailRegistry) kill() {
	if f.server != nil {
		_ = f.server.Close() // whoever is connected sees it
		f.server = nil
	}
}

// heal ends every fault.
func (f *frailRegistry) heal() {
	f.t.Helper()
	f.refuses.Store(0)
	f.slow.Store(0)
	f.loses.Store(false)
	if f.server == nil {
		f.start()
	}
}

// The schema registry, Kafka, the server and walpost are killed, restarted, slow or refuse at random, while payloads with fields that no
// payload had before ask for new schemas. Nothing is lost, reordered or changed, and each record can be read with the schema of its id.
// WALPOST_REGISTRY_FAULTS is how long it takes, and WALPOST_FAULT_SEEDS is its seed.
func TestRandomFaultsOfTheSchemaRegistry(t *testing.T) {
	t.Parallel()
	long, err := time.ParseDuration(cmp.Or(os.Getenv("WALPOST_REGISTRY_FAULTS"), "10s"))
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := faultSeeds(t, "1")
	s := newStorm(t, seed, []string{"exactly_once", "at_least_once"}[seed%2])
	fake := srfake.New()
	t.Cleanup(fake.Close)
	frail := newFrailRegistry(t, fake.URL())
	s.mend = frail.heal
	// A lost slot makes recover repeat rows with other bytes. TestRandomFaults has that.
	s.pg.Exec(t, s.dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()")
	s.router = ", table.expand.json.payload: true"
	s.extra = fmt.Sprintf("records: {value.converter: avro}\nschema_registry: {urls: [\"http://%s\"]}\n", frail.address)
	read := s.reads(fake.URL())
	s.begin()
	s.hosts = append(s.hosts, s.launch())
	s.write("wild", 0, 200*time.Millisecond)

	shapes := 0
	faults := []fault{
		{"kill", s.kill},
		{"kill", s.kill},
		{"stop", s.restart},
		{"walsender terminated", s.terminate},
		{"server restarted fast", func() { s.restartServer("fast") }},
		{"server restarted at once", func() { s.restartServer("immediate") }},
		{"broker restarted", s.restartBroker},
		{"broker paused", s.pauseBroker},
	}
	ofRegistry := []fault{
		{"killed", frail.kill},
		{"slow", func() { frail.slow.Store(int64(s.rnd.Int64N(int64(3 * time.Second)))) }},
		{"hangs", func() { frail.slow.Store(int64(time.Minute)) }},
		{"loses answers", func() { frail.loses.Store(true) }},
	}
	for _, status := range []int{401, 404, 422, 503} {
		ofRegistry = append(ofRegistry, fault{fmt.Sprint("refuses with ", status), func() { frail.refuses.Store(int64(status)) }})
	}
	rounds := map[string]int{}
	for end := time.Now().Add(long); shapes < 5 || time.Now().Before(end); {
		r, f := ofRegistry[s.rnd.IntN(len(ofRegistry))], faults[s.rnd.IntN(len(faults))]
		s.tell("registry: %s; then %s", r.name, f.name)
		rounds["registry "+r.name]++
		rounds[f.name]++
		r.do()
		shapes++
		for _, schema := range s.schemas {
			s.pg.Exec(t, s.in(schema), fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'shape-%s', 'Changed', '{"n": %d, "f%d": "x"}')`, schema, shapes, shapes))
		}
		s.wait(time.Second)
		s.tend()
		f.do()
		s.wait(2 * time.Second)
		s.tend()
		frail.heal()
		if was := s.arrivals.count(); s.rnd.IntN(2) == 0 {
			s.comes(func() bool { return s.arrivals.count() > was }, "events arrive")
		}
	}
	s.stopWriting()
	rep := s.settled()
	if s.exactly && rep.Duplicates > 0 {
		t.Errorf("%d duplicates", rep.Duplicates)
	}
	for _, h := range s.hosts {
		if !h.ended() {
			h.stopsClean()
		}
	}
	read.sameAsTruth(s)
	s.tell("%d processes, %d shapes, %v", s.launched, shapes, rounds)
}

// sameAsTruth wants each record to have its row's payload, and no schema to be in a subject twice.
func (a *avroReader) sameAsTruth(s *storm) {
	a.t.Helper()
	ids := map[uint32]bool{}
	for _, schema := range s.schemas {
		conn, err := pgx.Connect(a.t.Context(), s.in(schema))
		if err != nil {
			a.t.Fatal(err)
		}
		a.awaits(conn, "SELECT id::text FROM truth")
		a.mu.Lock()
		rows, err := conn.Query(a.t.Context(), "SELECT id::text, payload::text FROM truth")
		var id, text string
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
				var want map[string]any
				if err := json.Unmarshal([]byte(text), &want); err != nil {
					return err
				}
				d := a.events[id]
				if ids[d.schema] = true; !reflect.DeepEqual(d.fields, want) {
					a.t.Errorf("event %s: %v, want %v", id, d.fields, want)
				}
				return nil
			})
		}
		a.mu.Unlock()
		if err != nil {
			a.t.Fatal(err)
		}
		_ = conn.Close(context.Background()) // it was read
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.other > 0 { // the topics have the time of the broker, so the ledger cannot tell
		a.t.Errorf("%d records have another value than the former one of their event", a.other)
	}
	known := map[string]uint32{} // by subject and text
	for _, topic := range s.topics {
		all, err := a.api.Schemas(a.t.Context(), topic+"-value")
		if err != nil {
			a.t.Fatal(err)
		}
		for _, v := range all {
			if before, twice := known[topic+v.Schema.Schema]; twice {
				a.t.Errorf("the schemas %d and %d of %s are the same", before, v.ID, topic)
			}
			known[topic+v.Schema.Schema] = uint32(v.ID)
			delete(ids, uint32(v.ID))
		}
	}
	if len(ids) > 0 {
		a.t.Errorf("records have the ids %v, which are in no subject", ids)
	}
	s.tell("%d schemas", len(known))
}
