package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// halting makes a halt last until the test has seen it, and the monitor look often.
const halting = "halt_linger: 10m\nmonitor: {interval: 1s}\n"

// A world is a setting whose Postgres may be stopped, copied and replaced by another one.
type world struct {
	*setting
	pg   *testenv.PG
	slot string

	ledger *ledger.Ledger // of what arrives
}

// newWorld has a server of its own with the database "shop", a reader of the topics, and halts that last until they are seen.
func newWorld(t *testing.T, version string, opts ...testenv.PGOption) *world {
	t.Helper()
	kafka := testenv.Kafka(t)
	pg := testenv.Postgres(t, version, append(opts, testenv.Private())...)
	pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop")
	return worldIn(t, kafka, pg, pg.DSN("shop"), "walpost")
}

func worldIn(t *testing.T, kafka *testenv.KafkaCluster, pg *testenv.PG, dsn, slot string) *world {
	t.Helper()
	w := &world{setting: newSetting(t, pg, dsn, kafka), pg: pg, slot: slot, ledger: ledger.New()}
	w.extra = halting
	w.also(w.topics...)
	return w
}

// also counts what arrives in topics.
func (w *world) also(topics ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	brokers := w.brokers // tests change w's
	go func() {
		defer close(done)
		err := shop.Follow(ctx, brokers, topics, func(r *kgo.Record) { w.ledger.Observe(shop.Entry(r)) })
		if err != nil {
			w.t.Errorf("consumer: %v", err)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// insert commits n rows in one transaction and returns their ids.
func (w *world) insert(n int) []string {
	w.t.Helper()
	return w.insertInto("outbox", n)
}

func (w *world) insertInto(table string, n int) []string {
	w.t.Helper()
	return strings.Fields(w.pg.Value(w.t, w.dsn, fmt.Sprintf(`WITH r AS (INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'k' || g, 'made', '{"n": 1}' FROM generate_series(1, %d) g RETURNING id) SELECT string_agg(id::text, ' ') FROM r`, table, n)))
}

// arrive waits until all of the events are in Kafka.
func (w *world) arrive(ids []string) {
	w.t.Helper()
	eventually(w.t, 60*time.Second, fmt.Sprintf("%d events arrive", len(ids)), func() bool { return w.arrived(ids) == len(ids) })
}

func (w *world) arrived(ids []string) int { return w.ledger.Seen(ids...) }

// again is how many records came that had come before.
func (w *world) again() int {
	_, duplicates := w.ledger.Arrived()
	return duplicates
}

// confirms waits until the slot is confirmed up to lsn at least, which is behind a checkpoint.
func (w *world) confirms(lsn string) {
	w.t.Helper()
	eventually(w.t, 60*time.Second, "confirmed up to "+lsn, func() bool {
		return w.pg.Value(w.t, w.dsn, "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", lsn, w.slot) == "true"
	})
}

// now is where the server is.
func (w *world) now() string {
	w.t.Helper()
	return w.pg.Value(w.t, w.dsn, "SELECT pg_current_wal_lsn()::text")
}

// slotState is all that a start may not change of the slot and what belongs to it where it refuses to go on.
func (w *world) slotState() string {
	w.t.Helper()
	return w.pg.Value(w.t, w.dsn, `SELECT coalesce((SELECT format('%s %s confirmed %s', slot_name, plugin, confirmed_flush_lsn)
		FROM pg_replication_slots WHERE slot_name = $1), 'no slot') || (SELECT format(', publications %s', string_agg(pubname || oid, ' ')) FROM pg_publication)`, w.slot)
}

// confirmed is the slot's position; after a clean stop that is the checkpoint.
func (w *world) confirmed() string {
	w.t.Helper()
	return w.pg.Value(w.t, w.dsn, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", w.slot)
}

var tokenInHint = regexp.MustCompile(`--accept-gap=([0-9a-f]+)`)

// halted waits until r halts, ends it, and returns the reason that /readyz gave and what was logged. Nothing may have
// happened to the slot since before was read ("" for a slot that is in use).
func (w *world) halted(r *relay, before string, want ...string) (reason, log string) {
	w.t.Helper()
	eventually(w.t, 60*time.Second, "halted", func() bool {
		code, body := r.get("/readyz")
		if code == http.StatusServiceUnavailable && strings.HasPrefix(body, "halted: ") {
			reason = body
		}
		return reason != "" || r.ended()
	})
	if reason == "" {
		w.t.Fatalf("it ended with code %d before /readyz said why", r.cmd.ProcessState.ExitCode())
	}
	if code, body := r.get("/livez"); code != http.StatusOK {
		w.t.Errorf("/livez while halted: %d %s", code, body)
	}
	if code := r.stop(); code != 3 {
		w.t.Errorf("exit code %d, want 3", code)
	}
	log = r.log.String()
	if n := strings.Count(log, "halted: this needs an operator"); n != 1 {
		w.t.Errorf("the halt is logged %d times", n)
	}
	for _, text := range want {
		if !strings.Contains(reason, text) {
			w.t.Errorf("the reason does not say %q: %s", text, reason)
		}
	}
	if after := w.slotState(); before != "" && after != before {
		w.t.Errorf("what was there changed from %q to %q", before, after)
	}
	return reason, log
}

// refused starts walpost, which must refuse to go on, and returns the token of the gap.
func (w *world) refused(want []string, args ...string) (token string) {
	w.t.Helper()
	before := w.slotState()
	_, log := w.halted(w.start(args...), before, want...)
	if m := tokenInHint.FindStringSubmatch(log); m != nil {
		return m[1]
	}
	w.t.Fatalf("no token in\n%s", log)
	return ""
}

// stopCleanly stops r and returns the position of the checkpoint.
func (w *world) stopCleanly(r *relay) string {
	w.t.Helper()
	if code := r.stop(); code != 0 {
		w.t.Fatalf("exit code %d after SIGTERM", code)
	}
	return w.confirmed()
}

func (w *world) exec(sql ...string) {
	w.t.Helper()
	w.pg.Exec(w.t, w.dsn, sql...)
}

// move goes on with another server.
func (w *world) move(pg *testenv.PG) { w.pg, w.dsn = pg, pg.DSN("shop") }

const dropSlot = "SELECT pg_drop_replication_slot('walpost')"

// gaps are the ways to lose events that a start must see. make works on a world whose relay is stopped at the checkpoint, and
// returns what the refusal has to say beside that position.
var gaps = []struct {
	name    string
	version string
	opts    []testenv.PGOption
	prepare func(w *world) // while the relay runs
	make    func(w *world) []string
}{
	{
		name: "another server", version: "15",
		make: func(w *world) []string {
			other := testenv.Postgres(w.t, "15", testenv.OwnIdentity())
			other.Exec(w.t, other.DSN("postgres"), "CREATE DATABASE shop")
			w.move(other)
			w.exec(shop.Schema, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')",
				"SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')")
			return []string{"another server", w.pg.Value(w.t, w.dsn, "SELECT system_identifier::text FROM pg_control_system()")}
		},
	},
	{
		name: "a server that was restored from an earlier copy", version: "15",
		prepare: func(w *world) { w.saveCopy() },
		make: func(w *world) []string {
			restore(w.t, w.pg, w.copy())
			return []string{"restored from an earlier copy"}
		},
	},
	{
		name: "a point-in-time restore to before the checkpoint", version: "15", opts: []testenv.PGOption{testenv.Param("wal_keep_size", "1GB")},
		prepare: func(w *world) { w.saveCopy() },
		make: func(w *world) []string {
			w.move(restoreUntil(w.t, w.pg, w.copy(), w.copiedAt()))
			return []string{"history left timeline 1 at"}
		},
	},
	{
		name: "a promoted standby without the slot", version: "15",
		make: func(w *world) []string {
			sb := w.pg.Standby(w.t)
			sb.CatchUp(w.t, w.pg)
			if err := w.pg.Stop("fast", time.Minute); err != nil {
				w.t.Fatal(err)
			}
			sb.Promote(w.t)
			w.move(sb)
			return []string{`slot "walpost" does not exist`}
		},
	},
	{
		name: "a missing slot", version: "18",
		make: func(w *world) []string {
			w.exec(dropSlot)
			return []string{`slot "walpost" does not exist`, "to the start of a new slot"}
		},
	},
	{
		name: "a slot that was advanced", version: "15",
		make: func(w *world) []string {
			w.insert(10)
			w.exec("SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())")
			return []string{"it was advanced", " to " + w.confirmed() + " may be missing"}
		},
	},
	{
		name: "a slot that was made again", version: "17",
		make: func(w *world) []string {
			w.exec(dropSlot)
			w.insert(10)
			w.exec("SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')")
			return []string{"created again", " to " + w.confirmed() + " may be missing"}
		},
	},
	{
		name: "a slot that the server has invalidated", version: "15", opts: []testenv.PGOption{testenv.Param("max_slot_wal_keep_size", "1MB")},
		make: func(w *world) []string {
			for range 4 {
				w.exec("SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 17)", "SELECT pg_switch_wal()", "CHECKPOINT")
			}
			return []string{`slot "walpost" is lost`}
		},
	},
}

// copies of data directories, by world.
var copies sync.Map

type savedCopy struct{ dir, lsn string }

// saveCopy keeps a copy of the data directory for later, and a position behind it.
func (w *world) saveCopy() {
	dir := w.pg.CopyData(w.t)
	w.arrive(w.insert(2000))
	copies.Store(w, savedCopy{dir, w.pg.Value(w.t, w.dsn, "SELECT pg_current_wal_lsn()::text")})
	w.arrive(w.insert(2000))
}

func (w *world) copy() string     { c, _ := copies.Load(w); return c.(savedCopy).dir }
func (w *world) copiedAt() string { c, _ := copies.Load(w); return c.(savedCopy).lsn }

func TestAGapIsRefusedUntilItIsAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range gaps {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.version, c.opts...)
			r := w.startReady()
			w.arrive(w.insert(100))
			if c.prepare != nil {
				c.prepare(w)
			}
			checkpoint := w.stopCleanly(r)
			want := append(c.make(w), checkpoint)

			token := w.refused(want)
			if wrong := w.refused(append(want, "--accept-gap names gap 0123456789ab, but walpost found another gap"), "--accept-gap=0123456789ab"); wrong != token {
				t.Errorf("the same gap has the tokens %s and %s", token, wrong)
			}

			r = w.startReady("--accept-gap=" + token)
			if !strings.Contains(r.log.String(), "GAP ACCEPTED") {
				t.Errorf("an accepted gap is not logged")
			}
			w.arrive(w.insert(10))
			w.stopCleanly(r)

			// The token is used up: it does no harm where there is no gap, and opens no other.
			before := w.again()
			r = w.startReady("--accept-gap=" + token)
			if strings.Contains(r.log.String(), "GAP ACCEPTED") {
				t.Errorf("a used token was taken again")
			}
			w.arrive(w.insert(10))
			checkpoint = w.stopCleanly(r)
			if n := w.again() - before; n > 0 {
				t.Errorf("%d events came again after a clean stop", n)
			}
			w.exec(dropSlot)
			next := w.refused([]string{checkpoint, "but walpost found another gap"}, "--accept-gap="+token)
			if next == token {
				t.Errorf("another gap has the same token")
			}
		})
	}
}

func TestAServerThatWentBackIsNoticedByARunningRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "15")
	r := w.startReady()
	w.arrive(w.insert(100))
	w.saveCopy()
	// Without a checkpoint beyond the copy there is nothing that the server has forgotten: the relay reads all of it again.
	w.confirms(w.copiedAt())
	restore(t, w.pg, w.copy())
	_, log := w.halted(r, "", "restored from an earlier copy")
	token := tokenInHint.FindStringSubmatch(log)
	if token == nil {
		t.Fatal("no token in the log")
	}
	if again := w.refused([]string{"restored from an earlier copy"}); again != token[1] {
		t.Errorf("the gap has the token %s when it is noticed, and %s at the next start", token[1], again)
	}
	w.startReady("--accept-gap=" + token[1])
	w.arrive(w.insert(10))
}

// A slot with failover (17 and newer) is there on the standby that was promoted: it goes on there by itself.
func TestAPromotedStandbyWithTheSlotIsNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "17")
	w.exec("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')",
		"SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, false, true)")
	sb := w.pg.Standby(t)
	primary := w.pg
	w.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/shop?sslmode=disable&target_session_attrs=read-write", primary.Port(), sb.Port())
	w.startReady()
	rows := w.insert(100)
	w.arrive(rows)
	conn, err := pgx.Connect(t.Context(), sb.DSN("shop"))
	if err != nil {
		t.Fatal(err)
	}
	// The standby takes the slot over once what the slot needs is not older than what the standby has. While nothing is written, the
	// slot gets there by the server's own records.
	eventually(t, 90*time.Second, "the slot is synchronized", func() bool {
		primary.Exec(t, primary.DSN("shop"), "SELECT pg_log_standby_snapshot()")
		sb.CatchUp(t, primary)
		time.Sleep(300 * time.Millisecond) // each try is a line of the server's log
		if _, err := conn.Exec(t.Context(), "SELECT pg_sync_replication_slots()"); err != nil {
			t.Fatal(err)
		}
		return sb.Value(t, sb.DSN("shop"), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walpost' AND synced AND NOT temporary") == "1"
	})
	_ = conn.Close(t.Context())
	rows = append(rows, w.insert(100)...)
	w.arrive(rows)
	w.confirms(w.now()) // what was delivered behind the last checkpoint comes again on another timeline
	sb.CatchUp(t, primary)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	sb.Promote(t)
	rows = append(rows, w.insert(100)...)
	w.arrive(rows)
	if n := w.again(); n > 0 {
		t.Errorf("%d events came again", n)
	}
}

// What was right when the relay looked may be wrong when it gets the slot: it looks once more behind it.
func TestASlotThatIsMovedWhileItIsWaitedForIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "15")
	r := w.startReady()
	w.arrive(w.insert(10))
	w.stopCleanly(r)
	ctx := t.Context()
	other, err := pgconn.Connect(ctx, w.dsn+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it holds nothing any more
	err = pglogrepl.StartReplication(ctx, other, "walpost", 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'walpost'"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r = w.start()
	eventually(t, 30*time.Second, "it waits for the slot", func() bool { return strings.Contains(r.log.String(), "slot is in use; waiting for it") })
	taken := w.insert(10)
	at, err := pglogrepl.ParseLSN(w.now())
	if err != nil {
		t.Fatal(err)
	}
	if err := pglogrepl.SendStandbyStatusUpdate(ctx, other, pglogrepl.StandbyStatusUpdate{WALWritePosition: at}); err != nil {
		t.Fatal(err)
	}
	w.confirms(at.String())
	_ = other.Close(ctx)
	w.halted(r, "", "it was advanced, created again or used by another reader", " to "+at.String()+" may be missing")
	if n := w.arrived(taken); n > 0 {
		t.Errorf("%d events behind the gap arrived", n)
	}
}
