package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// samples are the values of one scrape by the name with its labels.
type samples map[string]float64

var sampleLine = regexp.MustCompile(`(?m)^(walpost_(?:slot|monitor|clock|breaker)[a-z_]*(?:\{[^}]*\})?) (\S+)$`)

func (r *relay) scrape() samples {
	_, body := r.get("/metrics")
	found := samples{}
	for _, m := range sampleLine.FindAllStringSubmatch(body, -1) {
		if v, err := strconv.ParseFloat(m[2], 64); err == nil {
			found[m[1]] = v
		}
	}
	return found
}

// of is the value of a metric that has one sample with these words in its labels; ok is false without one.
func (s samples) of(name string, words ...string) (v float64, ok bool) {
	for key, value := range s {
		if base, labels, _ := strings.Cut(key, "{"); base == name {
			all := true
			for _, w := range words {
				all = all && strings.Contains(labels, w)
			}
			if all {
				return value, true
			}
		}
	}
	return 0, false
}

func (s samples) looked() float64 {
	v, _ := s.of("walpost_monitor_last_success_timestamp_seconds")
	return v
}

func (s samples) status() string {
	for key, v := range s {
		if _, status, ok := strings.Cut(key, `status="`); ok && v == 1 && strings.HasPrefix(key, "walpost_slot_wal_status") {
			return status[:strings.Index(status, `"`)]
		}
	}
	return ""
}

// An hourglass writes WAL at a steady rate by its bytes. What the machine is late by is not made up for in a burst.
type hourglass struct {
	conn *pgx.Conn
	slot string
	rate float64 // bytes a second

	began time.Time
	paced time.Time // began, and what the machine was late by
	wrote int64
	left  []leftAt
}

type leftAt struct {
	at   time.Time
	left int64
}

// run writes until no more than stop bytes are left of the slot's limit.
func (g *hourglass) run(ctx context.Context, stop int64) error {
	if g.began.IsZero() {
		g.began = time.Now()
		g.paced = g.began
	}
	for {
		var lsn, left *int64
		if err := g.conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, safe_wal_size FROM pg_replication_slots WHERE slot_name = $1`,
			g.slot).Scan(&lsn, &left); err != nil || left == nil {
			return fmt.Errorf("read the slot: %v, %w", left, err)
		}
		if g.wrote == 0 {
			g.wrote = -*lsn
		}
		g.left = append(g.left, leftAt{time.Now(), *left})
		if *left <= stop {
			return nil
		}
		switch ahead := time.Duration(float64(g.wrote+*lsn)/g.rate*float64(time.Second)) - time.Since(g.paced); {
		case ahead > 0:
			time.Sleep(ahead)
		case ahead < -time.Second:
			g.paced = g.paced.Add(-ahead)
		}
		if _, err := g.conn.Exec(ctx, "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 400)"); err != nil {
			return err
		}
	}
}

// exhaust uses all of it up, and leaves the slot to the next checkpoint.
func (g *hourglass) exhaust(ctx context.Context) error {
	if err := g.run(ctx, 4*mib); err != nil {
		return err
	}
	if _, err := g.conn.Exec(ctx, "CHECKPOINT"); err != nil { // so that the server makes none by itself in the moment that is to be seen
		return err
	}
	return g.run(ctx, -1)
}

// steady says whether from some seconds before a moment to the end it was written as fast after that moment as before it. A machine
// that stood still meanwhile makes no forecast wrong.
func (g *hourglass) steady(at time.Time, end time.Time) bool {
	const before = 6 * time.Second
	rate := func(from, to time.Time) float64 { return float64(g.leftAt(from)-g.leftAt(to)) / to.Sub(from).Seconds() }
	was, will := rate(at.Add(-before), at), rate(at, end)
	return was > 0 && will/was < 1.3 && was/will < 1.3
}

func (g *hourglass) leftAt(at time.Time) int64 {
	left := g.left[0].left
	for _, l := range g.left {
		if l.at.After(at) {
			break
		}
		left = l.left
	}
	return left
}

// exhausted is when nothing was left, the zero time where that never was.
func (g *hourglass) exhausted() time.Time {
	for i, l := range g.left {
		if l.left <= 0 && i > 0 {
			before := g.left[i-1]
			return before.at.Add(time.Duration(float64(l.at.Sub(before.at)) * float64(before.left) / float64(before.left-l.left)))
		}
	}
	return time.Time{}
}

// doomedKeep is the max_slot_wal_keep_size of a doomed.
const doomedKeep = 112 * mib

// A doomed is a relay whose slot is going to be lost.
type doomed struct {
	*setting
	pg     *testenv.PG
	r      *relay
	w      *watch
	g      *hourglass
	series func() []samples
}

func newDoomed(t *testing.T, version string, kafka *testenv.KafkaCluster) *doomed {
	t.Helper()
	pg := testenv.Postgres(t, version, testenv.Private(), testenv.Param("max_slot_wal_keep_size", "112MB"), testenv.Param("max_wal_size", "64MB"),
		testenv.Param("checkpoint_completion_target", "0.1"), testenv.Param("checkpoint_timeout", "1h"), testenv.Param("wal_keep_size", "0"),
		testenv.Param("track_commit_timestamp", "on"))
	d := &doomed{setting: newSetting(t, pg, pg.Database(t), kafka), pg: pg}
	d.source, d.extra = ", order_column: n", "halt_linger: 2m\nmonitor: {interval: 1s}\n"
	pg.Exec(t, d.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
		"CREATE TABLE filler (a text) WITH (autovacuum_enabled = off)") // a vacuum of it writes WAL by the ten megabytes
	conn, err := pgx.Connect(t.Context(), d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test ends it
	d.g = &hourglass{conn: conn, slot: "walpost", rate: 4 * mib}
	d.r, d.w = d.startReady(), d.follow()
	return d
}

// sell writes at least so many rows of the shop.
func (d *doomed) sell(rows int64, seed uint64) {
	<-d.load(&shop.Shop{Writers: 2, Rows: rows, Seed: seed, Tag: "a"}).done
}

// A slot on its way to being lost, under a real load, while Kafka is down: the monitor goes on, sees every status, and the forecast
// is within a factor of two of the truth from half the budget on. Once Kafka is back, recover brings every row of the gap, each key's in
// order, and the stream goes on behind them.
func TestASlotIsForecastSeenToBeLostAndRecovered(t *testing.T) {
	t.Parallel()
	kafka := testenv.KafkaPrivate(t, 1, nil)
	versions := []string{"15", "17", "18"}
	all := map[string]*doomed{}
	for _, version := range versions {
		all[version] = newDoomed(t, version, kafka)
		all[version].sell(300, 1)
	}
	for _, d := range all {
		d.onceEach(d.w, time.Minute)
	}
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	// All at the same time, since it is waiting for the most part.
	errs := make(chan error, len(all))
	for _, d := range all {
		d.sell(300, 2) // from here on nothing can be confirmed
		d.series = d.r.record(t)
		go func() { errs <- d.g.exhaust(t.Context()) }()
	}
	for range all {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string][]samples{}
	each := func(name string, do func(t *testing.T, d *doomed)) {
		for _, version := range versions {
			d := all[version]
			t.Run(version+"/"+name, func(t *testing.T) {
				d.t, d.r.t = t, t
				do(t, d)
			})
			d.t, d.r.t = t, t
		}
	}
	each("lost", func(t *testing.T, d *doomed) { seen[d.dsn] = d.loses(t) })
	each("forecast", func(t *testing.T, d *doomed) { d.foreseen(t, seen[d.dsn]) })
	each("exits", func(t *testing.T, d *doomed) {
		if code := d.r.stop(); code != 3 {
			t.Errorf("exit code %d", code)
		}
		// walpost status says the same, without a relay.
		code, out := d.command("status")
		if code != 3 || !strings.Contains(out, "the slot is lost (") || !strings.Contains(out, "walpost recover") {
			t.Errorf("status: code %d\n%s", code, out)
		}
	})
	kafka.Start(t)
	each("recovered", func(t *testing.T, d *doomed) { d.recovers(t) })
}

// loses sees the slot go from unreserved to lost, and the relay halt for it. It returns what was scraped since Kafka went.
func (d *doomed) loses(t *testing.T) []samples {
	r := d.r
	eventually(t, 30*time.Second, "unreserved is exported", func() bool { return r.scrape().status() == "unreserved" })
	if v, ok := r.scrape().of("walpost_slot_exhaustion_seconds"); !ok || v != 0 {
		t.Errorf("unreserved, and exhausted in %v", v)
	}
	d.pg.Exec(t, d.dsn, "CHECKPOINT")
	eventually(t, 30*time.Second, "lost is exported", func() bool {
		s := r.scrape()
		_, why := s.of("walpost_slot_invalidated", `reason="`)
		exists, _ := s.of("walpost_slot_exists")
		_, retained := s.of("walpost_slot_retained_bytes")
		return s.status() == "lost" && why && exists == 1 && !retained
	})
	seen := append(d.series(), r.scrape()) // it may have ended between two looks
	// It halts, Kafka or not, and is seen for halt_linger.
	reason := ""
	eventually(t, 30*time.Second, "halted", func() bool {
		_, reason = r.get("/readyz")
		return strings.HasPrefix(reason, "halted: ")
	})
	if !strings.Contains(reason, "invalidated") || !strings.Contains(reason, "events after 0/") {
		t.Errorf("the reason does not name the gap: %s", reason)
	}
	d.sell(200, 3) // more of the gap
	if got := r.scrape().status(); got != "lost" {
		t.Errorf("while the halt lingers the slot is %q", got)
	}
	return seen
}

// foreseen judges what was scraped until the slot was lost: its states, the alerts, the forecast.
func (d *doomed) foreseen(t *testing.T, seen []samples) {
	var order []string
	for _, s := range seen {
		if now := s.status(); now != "" && (len(order) == 0 || order[len(order)-1] != now) {
			order = append(order, now)
		}
	}
	if got := strings.Join(order, " "); got != "reserved extended unreserved lost" {
		t.Errorf("the slot was seen to be %s", got)
	}
	fire(t, seen)
	exhausted := d.g.exhausted()
	end, judged, unsteady, worst := float64(exhausted.UnixMilli())/1000, 0, 0, 1.0
	for _, s := range seen {
		left, known := s.of("walpost_slot_safe_wal_bytes")
		truth := end - s.looked()
		if !known || left > doomedKeep/2 || truth < 4 { // about a few intervals of the monitor nobody can tell much
			continue
		}
		if !d.g.steady(time.UnixMilli(int64(s.looked()*1000)), exhausted) {
			unsteady++
			continue
		}
		got, _ := s.of("walpost_slot_exhaustion_seconds")
		judged++
		off := max(got/truth, truth/got)
		worst = max(worst, off)
		if off > 2 || math.IsInf(got, 0) {
			t.Errorf("with %.0f MiB left, %.1f s before the end, the forecast was %.1f s", left/mib, truth, got)
		}
	}
	t.Logf("%d looks, %d judged, %d in which the machine stood still, worst off by a factor of %.2f; the budget lasted %s", len(seen), judged, unsteady, worst, exhausted.Sub(d.g.began).Round(time.Second))
	if judged+unsteady < 5 {
		t.Errorf("only %d looks to judge", judged+unsteady)
	}
}

// recovers closes the gap while somebody writes, and goes on.
func (d *doomed) recovers(t *testing.T) {
	during := d.load(&shop.Shop{Writers: 1, Seed: 4, Tag: "b", Pause: 10 * time.Millisecond})
	code, out := d.command("recover", "--yes")
	var n int
	if _, err := fmt.Sscanf(out[max(0, strings.LastIndex(out, "recovered: ")):], "recovered: %d rows", &n); code != 0 || err != nil || n < 500 {
		t.Errorf("recover: code %d, %d rows, %v\n%s", code, n, err, out)
	}
	t.Logf("recover said:\n%s", said(out))
	r := d.startReady()
	during.reach(t, during.Committed()+100)
	during.stop()
	d.onceEach(d.w, time.Minute)
	eventually(t, 30*time.Second, "the slot is well", func() bool { return r.scrape().status() == "reserved" })
	r.stopsClean()
}

// record scrapes until the returned function is called, which gives the scrapes: one for each look of the monitor.
func (r *relay) record(t *testing.T) func() []samples {
	stop, done := make(chan struct{}), make(chan struct{})
	var seen []samples
	end := sync.OnceFunc(func() { close(stop); <-done })
	t.Cleanup(end)
	go func() {
		defer close(done)
		last := 0.0
		for {
			if s := r.scrape(); s.looked() > last {
				last = s.looked()
				seen = append(seen, s)
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() []samples { end(); return seen }
}

// The monitor says how the slot is while the stream is refused, while the server restarts that it is stale, and then goes on.
func TestTheMonitorGoesOnAndSaysWhenItIsStale(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	first := w.startReady()
	second := w.start() // the slot is taken: its stream is refused
	for _, r := range []*relay{first, second} {
		was := 0.0
		for range 3 {
			eventually(t, 30*time.Second, "another look", func() bool {
				s := r.scrape()
				active, _ := s.of("walpost_slot_active")
				if s.looked() > was && active == 1 {
					was = s.looked()
					return true
				}
				return false
			})
		}
	}
	if second.ready() {
		t.Error("the second one is ready")
	}
	if err := w.pg.Stop("fast", time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the values go", func() bool {
		_, ok := first.scrape().of("walpost_slot_active")
		return !ok
	})
	stale := first.scrape()
	for key := range stale {
		if strings.HasPrefix(key, "walpost_slot_") || strings.HasPrefix(key, "walpost_clock") {
			t.Errorf("stale and exported: %s", key)
		}
	}
	if age := float64(time.Now().UnixMilli())/1000 - stale.looked(); stale.looked() == 0 || age < 3 {
		t.Errorf("the values went %.1f s after the last look", age)
	}
	var told struct{ Slot slotSeen }
	_, body := first.get("/api/status")
	if err := json.Unmarshal([]byte(body), &told); err != nil || told.Slot.State != "unknown" || told.Slot.Known || told.Slot.Error == "" || len(told.Slot.Findings) == 0 || told.Slot.Ago < 3 {
		t.Errorf("stale, and the status says %+v, %v", told.Slot, err)
	}
	w.pg.Start(t)
	eventually(t, time.Minute, "the values come back", func() bool {
		s := first.scrape()
		exists, _ := s.of("walpost_slot_exists")
		return s.looked() > stale.looked() && exists == 1
	})
}

// slotSeen is what /api/status says of the slot.
type slotSeen struct {
	State    string
	Known    bool
	Findings []string
	Error    string
	Ago      float64 `json:"checked_seconds_ago"`
}

// What holds WAL back is often in another database of the cluster: it is named within an interval, with what ends it.
func TestALongTransactionElsewhereIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "18")
	w.exec("CREATE DATABASE crm")
	r := w.startReady()
	w.arrive(w.insert(1))
	conn, err := pgx.Connect(t.Context(), w.pg.DSN("crm")+"&application_name=nightly")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the test ends it
	for _, sql := range []string{"CREATE TABLE report (n int)", "BEGIN", "INSERT INTO report VALUES (1)"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	series := r.record(t)
	pid := fmt.Sprint(conn.PgConn().PID())
	named := func(s samples) bool {
		v, ok := s.of("walpost_slot_restart_blocker_info", `kind="transaction"`, `pid="`+pid+`"`, `blocker_database="crm"`, `state="idle in transaction"`)
		return ok && v == 1
	}
	// Five seconds make it long. The first look that ends after that may have begun before; every later one names it, so that it takes
	// one interval at most.
	const long = 5500 * time.Millisecond
	ended := func(s samples) time.Duration { return time.UnixMilli(int64(s.looked() * 1000)).Sub(began) }
	eventually(t, 30*time.Second, "the blocker is named", func() bool { s := r.scrape(); return named(s) && ended(s) > long+3*time.Second })
	looks := 0
	for _, s := range series() {
		if at := ended(s); at > long {
			if looks++; looks > 1 && !named(s) {
				t.Errorf("a look %s after it began does not name it", at)
			}
		}
	}
	if looks < 2 {
		t.Errorf("only %d looks after it was long", looks)
	}
	t.Logf("%d looks after it was long; named %s after it began", looks, time.Since(began).Round(100*time.Millisecond))
	var v struct {
		Slot struct {
			Blocker    string `json:"blocker"`
			BlockerEnd string `json:"blocker_end"`
		}
	}
	_, body := r.get("/api/status")
	if err := json.Unmarshal([]byte(body), &v); err != nil || !strings.Contains(v.Slot.Blocker, "(postgres, nightly) in crm, idle in transaction") {
		t.Errorf("%v: %+v", err, v)
	}
	if _, out := w.command("status"); !strings.Contains(out, "in crm, idle in transaction") || !strings.Contains(out, v.Slot.BlockerEnd) {
		t.Errorf("status:\n%s", out)
	}
	w.exec(v.Slot.BlockerEnd)
	eventually(t, 30*time.Second, "the blocker is gone", func() bool {
		_, ok := r.scrape().of("walpost_slot_restart_blocker_info")
		return !ok
	})
}
