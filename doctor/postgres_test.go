package doctor

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication"
)

// restricted makes a role that may replicate and nothing else, and has the world connect as it. exec goes on as the superuser.
func (w *world) restricted() (role string) {
	w.Helper()
	role = "role_" + w.cfg.Slot
	w.exec("CREATE ROLE " + role + " LOGIN REPLICATION")
	w.Cleanup(func() { w.exec("DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
	w.cfg.DSN = conf.Secret(strings.Replace(string(w.cfg.DSN), "postgres@", role+"@", 1))
	return role
}

var firstStatement = regexp.MustCompile(`(GRANT|ALTER|CREATE) `)

// heals runs the fixes of each finding of that name, as the superuser, until there is none but ok. It returns what was found, in order.
func (w *world) heals(name string) (details []string) {
	w.Helper()
	for range 10 {
		i := slices.IndexFunc(w.examine(), func(f Finding) bool { return f.Name == name && f.Verdict != OK })
		if i < 0 {
			return details
		}
		f := w.examine()[i]
		details = append(details, string(f.Verdict)+" "+f.Why)
		// Words may stand before and behind the statements.
		text := f.FixText()
		sql := text[firstStatement.FindStringIndex(text)[0] : strings.LastIndexByte(text, ';')+1]
		for one := range strings.SplitSeq(sql, "; ") {
			w.exec(one)
		}
	}
	w.Fatalf("%s is not healed by what it says: %q", name, details)
	return nil
}

func (w *world) wantDetails(got []string, want ...string) {
	w.Helper()
	if len(got) != len(want) {
		w.Fatalf("found %q, want %q", got, want)
	}
	for i := range got {
		if !strings.Contains(got[i], want[i]) {
			w.Errorf("found %q, want %q", got[i], want[i])
		}
	}
}

func TestWhatACleanupLacksIsHealedByWhatIsPrinted(t *testing.T) {
	partitioned := []string{
		"CREATE TABLE public.outbox (id int, aggregate_id text, payload text, created_at timestamptz NOT NULL, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)",
		"CREATE TABLE old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')",
		`CREATE TABLE "New One" PARTITION OF outbox FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')`,
	}
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		const name = "cleanup of public.outbox"
		t.Run("delete", func(t *testing.T) {
			w := newWorld(t, pg, outboxTable)
			w.cfg.Outbox = replication.Outbox{Deletes: true}
			role := w.restricted()
			w.wantDetails(w.heals(name), "FAIL role "+role+" may not delete from public.outbox")
			w.wantDetails(w.heals("index for the "+name), "warn no index of public.outbox begins with created_at")
			f := named(w.examine(), name)
			if f == nil || f.Verdict != OK {
				t.Errorf("healed: %+v", f)
			}
			for _, right := range []string{"SELECT", "DELETE", "UPDATE (created_at)"} {
				w.exec("REVOKE " + right + " ON outbox FROM " + role)
				if opts, err := w.source().Missing(t.Context()); err != nil || len(opts.Cleans) != 1 {
					t.Errorf("without %s setup prints nothing for %v (%v)", right, opts.Cleans, err)
				}
				w.wantDetails(w.heals(name), "may not delete from")
			}
			w.exec("REVOKE USAGE ON SCHEMA public FROM public")
			w.wantDetails(w.heals(name), "may not delete from")
			w.cfg.Outbox.TimeColumn = "event_type"
			if f := named(w.examine(), name); f == nil || f.Verdict != Fail || !strings.Contains(f.Why, "column event_type of public.outbox is a text") {
				t.Errorf("a text: %+v", f)
			}
			if f := named(w.examine(), "index for the "+name); f != nil {
				t.Errorf("an index on a text: %+v", f)
			}
			w.cfg.Outbox = replication.Outbox{}
			if f := named(w.examine(), name); f != nil {
				t.Errorf("without a cleanup: %+v", f)
			}
		})
		t.Run("no column", func(t *testing.T) {
			w := newWorld(t, pg, "CREATE TABLE outbox (id int, aggregate_id text, payload text)")
			w.cfg.Outbox = replication.Outbox{Deletes: true, TimeColumn: "at"}
			w.wantDetails(w.heals(name), "FAIL public.outbox has no column at (source.time_column)")
			w.wantDetails(w.heals("index for the "+name), "warn no index of public.outbox begins with at")
			w.exec("DROP INDEX outbox_at_idx", "CREATE INDEX ON outbox (at) WHERE id > 0", "CREATE INDEX ON outbox (id, at)")
			w.wantDetails(w.heals("index for the "+name), "no index")
		})
		t.Run("delete from partitions", func(t *testing.T) {
			w := newWorld(t, pg, partitioned...)
			w.cfg.Outbox = replication.Outbox{Deletes: true}
			role := w.restricted()
			w.exec("GRANT SELECT, DELETE, UPDATE ON outbox TO " + role) // of the parent, which says nothing of the partitions
			w.wantDetails(w.heals(name), `may not delete from public."New One", public.old`)
			w.wantDetails(w.heals("index for the "+name), "no index")
		})
		t.Run("archive", func(t *testing.T) {
			const archive = "archive of public.outbox"
			w := newWorld(t, pg, outboxTable)
			w.cfg.Outbox = replication.Outbox{Deletes: true, Archives: true}
			if f := named(w.examine(), name); f != nil && f.Verdict == OK {
				t.Errorf("without an archive: %+v", f)
			}
			role := w.restricted()
			w.wantDetails(w.heals(archive), "FAIL archive table public.outbox_archive does not exist")
			w.exec("REVOKE ALL ON outbox_archive FROM "+role, `ALTER TABLE outbox ADD COLUMN "New One" varchar(7)`, "ALTER TABLE outbox_archive ADD COLUMN who int NOT NULL")
			w.wantDetails(w.heals(archive), `it needs "New One" character varying(7) as in public.outbox`, "who is NOT NULL there", "archive table public.outbox_archive may not be written by role "+role)
			w.exec("CREATE PUBLICATION " + w.cfg.Publication + " FOR TABLE outbox, outbox_archive")
			if f := named(w.examine(), archive); f == nil || f.Verdict != Fail || !strings.Contains(f.Why, "Postgres would send each archived row to walpost again") {
				t.Errorf("published: %+v", f)
			}
		})
		t.Run("drop partitions", func(t *testing.T) {
			w := newWorld(t, pg, append(partitioned, "CREATE TABLE rest PARTITION OF outbox DEFAULT")...)
			w.cfg.Outbox = replication.Outbox{Owns: true}
			w.exec("REVOKE CREATE ON SCHEMA public FROM public")
			role := w.restricted()
			w.wantDetails(w.heals(name), "FAIL public.outbox belongs to postgres: role "+role, `may not drop public."New One", public.old, public.rest`, "may not drop public.old, public.rest",
				"may not drop public.rest", "may not create tables in schema public")
			if f := named(w.examine(), name); f == nil || f.Verdict != OK { // the default partition is a safety net, and stays
				t.Errorf("found %+v", f)
			}
			// And walpost setup prints what is taken away.
			prints := func(want int) {
				t.Helper()
				if opts, err := w.source().Missing(t.Context()); err != nil || len(opts.Cleans) != want {
					t.Errorf("%d to be printed by setup, want %d (%v)", len(opts.Cleans), want, err)
				}
			}
			prints(0)
			w.exec("REVOKE CREATE ON SCHEMA public FROM " + role)
			prints(1)
			w.exec("GRANT CREATE ON SCHEMA public TO "+role, "ALTER TABLE old OWNER TO postgres")
			prints(1)
			w.exec("ALTER TABLE old OWNER TO " + role)
			w.exec("CREATE UNLOGGED TABLE quick PARTITION OF outbox FOR VALUES FROM ('2021-01-01') TO ('2021-02-01')", "ALTER TABLE quick OWNER TO "+role)
			if f := named(w.examine(), name); f == nil || f.Verdict != Warn || !strings.Contains(f.Why, "public.quick are partitioned, foreign or unlogged") {
				t.Errorf("an unlogged one: %+v", f)
			}
			w.cfg.Outbox.TimeColumn = "created_at"
			w.exec("DROP TABLE outbox", strings.Replace(partitioned[0], "RANGE (created_at)", "RANGE (created_at, id)", 1))
			if f := named(w.examine(), name); f == nil || f.Verdict != Fail || !strings.Contains(f.Why, "PARTITION BY RANGE (created_at), and public.outbox is not") {
				t.Errorf("by two columns: %+v", f)
			}
		})
	})
}

func TestARoleThatSeesNothingIsHealedByWhatIsPrinted(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		w := newWorld(t, pg, outboxTable)
		role := w.restricted()
		w.wantDetails(w.heals("monitoring"), "warn role "+role+" cannot see")
		w.wantDetails(w.heals("reading public.outbox"), "may not read")
		w.wantDetails(w.heals("row-level security"))
		w.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
		w.wantDetails(w.heals("row-level security"), "row-level security of public.outbox applies to role "+role)
		if f := named(w.examine(), "monitoring"); f == nil || f.Verdict != OK {
			t.Errorf("healed: %+v", f)
		}
	})
}

// What the role's and the database's defaults say of these does not reach our sessions, so it is not reported; what does, is.
func TestOnlySettingsThatHitOurSessionsAreReported(t *testing.T) {
	for _, v := range []string{"14", "17", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v)
			w := newWorld(t, pg, outboxTable)
			role := w.restricted()
			w.dsn += "&statement_timeout=0&idle_session_timeout=0&idle_in_transaction_session_timeout=0&lock_timeout=0" // of the superuser
			for _, s := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} {
				w.exec("ALTER ROLE "+role+" SET "+s+" = '1ms'", "ALTER DATABASE "+w.cfg.Slot+" SET "+s+" = '1ms'")
			}
			for _, f := range w.examine() {
				if f.Name == "settings" || strings.HasSuffix(f.Name, "_timeout") && f.Verdict != OK {
					t.Errorf("found %+v", f)
				}
			}
			dsn := w.cfg.DSN
			w.cfg.DSN += "&statement_timeout=4s"
			if f := named(w.examine(), "statement_timeout"); f == nil || f.Verdict != Warn || !strings.Contains(f.Why, "to 4s") {
				t.Errorf("of the DSN: %+v", f)
			}
			w.cfg.DSN = conf.Secret(dsn)
			w.exec("GRANT CREATE ON DATABASE "+w.cfg.Slot+" TO "+role, "ALTER TABLE outbox OWNER TO "+role, "ALTER DATABASE "+w.cfg.Slot+" SET default_transaction_read_only = on")
			// The superuser that heals has the database's default too.
			w.dsn += "&default_transaction_read_only=off"
			if err := w.open(); ipg.SQLState(err) != "25006" {
				t.Errorf("a run in a read-only role: %v", err)
			}
			w.wantDetails(w.heals("default_transaction_read_only"), "FAIL default_transaction_read_only is on for role "+role+": publication walpost cannot be created")
			if err := w.open(); err != nil {
				t.Error(err)
			}
			if pg.Version() < 17 {
				return
			}
			w.exec("ALTER ROLE " + role + " SET transaction_timeout = '20s'")
			w.wantDetails(w.heals("transaction_timeout"), "warn transaction_timeout is 20s")
		})
	}
}

func TestTransactionsThatDecodingWroteToDiskAreCounted(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		w := newWorld(t, pg, outboxTable, publicationForOutbox)
		w.exec(w.slotOf("pgoutput"), "ALTER DATABASE "+w.cfg.Slot+" SET logical_decoding_work_mem = '64kB'")
		if f := named(w.examine(), "logical_decoding_work_mem"); f != nil && f.Verdict != OK {
			t.Errorf("before: %+v", f)
		}
		read := "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('" + w.cfg.Slot + "', NULL, NULL, 'proto_version', '1', 'publication_names', 'walpost')"
		w.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'a', 'b', 'c', to_jsonb(repeat('x', 100)) FROM generate_series(1, 2000)", read)
		var f *Finding
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // the counters come a moment later (14)
			if f = named(w.examine(), "logical_decoding_work_mem"); f != nil && f.Verdict == Warn {
				break
			}
		}
		if f == nil || f.Verdict != Warn || !strings.Contains(f.Why, "the server has written 1 transactions (") || !strings.Contains(f.Why, "logical_decoding_work_mem (64.0 KiB)") {
			t.Fatalf("found %+v", f)
		}
		// The statement is one that the server takes.
		sql, _, _ := strings.Cut(strings.Replace(f.FixText(), `ROLE "postgres"`, "DATABASE "+w.cfg.Slot, 1), ";")
		w.exec(sql)
		if f = named(w.examine(), "logical_decoding_work_mem"); f == nil || !strings.Contains(f.Why, "logical_decoding_work_mem (64.0 MiB)") {
			t.Errorf("after %s: %+v", sql, f)
		}
	})
}

// A publication says nothing of a table that does not exist, and the statement that names the table works once it exists.
func TestAPublicationIsJudgedWhenTheTableExists(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t, ""), "CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION walpost FOR TABLE a WITH (publish = 'insert')")
	found := w.examine()
	if f := named(found, "publication"); f == nil || f.Why != "publication walpost exists; it is examined further when all tables exist" {
		t.Errorf("the publication: %+v", f)
	}
	f := named(found, "publication extras")
	if f == nil || !strings.HasPrefix(f.FixText(), "When all configured tables exist: Create a separate publication for walpost, and set source.publication: ") {
		t.Fatalf("the statement: %+v", f)
	}
	// Another relay may read the publication, so the advice to take a table out of it comes last, with what that loses.
	_, cut, ok := strings.Cut(f.FixText(), "Or, if no other relay and no subscriber reads publication walpost (they would lose events): ")
	if !ok {
		t.Fatalf("the statement: %+v", f)
	}
	w.exec(outboxTable, cut)
	found = w.examine()
	if f := named(found, "publication"); f == nil || f.Why != "publication walpost publishes inserts into public.outbox" || named(found, "publication extras") != nil {
		t.Errorf("afterwards: %+v, %+v", f, named(found, "publication extras"))
	}
}

// The list of ALTER PUBLICATION SET TABLE replaces schemas, too.
func TestAPublicationIsCutDownByWhatIsPrinted(t *testing.T) {
	for _, v := range []string{"14", "15", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v)
			w := newWorld(t, pg, outboxTable, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
			if pg.Version() >= 15 {
				w.exec("CREATE PUBLICATION walpost FOR TABLES IN SCHEMA public")
			} else {
				w.exec("CREATE PUBLICATION walpost FOR TABLE outbox, a, b")
			}
			f := named(w.examine(), "publication extras")
			if f == nil || !strings.Contains(f.Why, "publication walpost also has public.a, public.b") {
				t.Fatalf("found %+v", f)
			}
			w.exec(f.FixText()[strings.LastIndex(f.FixText(), "ALTER PUBLICATION"):])
			if f := named(w.examine(), "publication extras"); f != nil {
				t.Errorf("afterwards: %+v", f)
			}
			w.wantDetails(w.heals("publication operations"), "warn publication walpost also publishes update, delete, truncate")
			if f := named(w.examine(), "publication"); f == nil || f.Verdict != OK {
				t.Errorf("healed: %+v", f)
			}
			w.exec("DROP PUBLICATION walpost", "DROP TABLE a, b", "CREATE PUBLICATION walpost FOR ALL TABLES WITH (publish = 'insert')")
			if f := named(w.examine(), "publication extras"); f == nil || !strings.Contains(f.Why, "covers all tables (FOR ALL TABLES)") || !strings.Contains(f.FixText(), `CREATE PUBLICATION "walpost_outbox" FOR TABLE "public"."outbox" WITH (publish = 'insert'`) {
				t.Errorf("for all tables: %+v", f)
			}
		})
	}
}

// What is said of a publication of all tables where there is a slot: another one is of use from where it was made on.
func TestASlotTakesAnotherPublicationOnceItIsConfirmedBeyondItsMaking(t *testing.T) {
	for _, v := range []string{"14", "17"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t, v), outboxTable, "CREATE PUBLICATION walpost FOR ALL TABLES WITH (publish = 'insert')")
			w.exec(w.slotOf("pgoutput"), insertRow)
			f := named(w.examine(), "publication extras")
			if f == nil || !strings.Contains(f.FixText(), "Once walpost status shows that the slot has confirmed that position") {
				t.Fatalf("found %+v", f)
			}
			w.exec(string(f.Fix[1].(fix.SQL)))
			read := func(publication string) string {
				return fmt.Sprintf("SELECT count(*) FROM pg_logical_slot_peek_binary_changes('%s', NULL, NULL, 'proto_version', '1', 'publication_names', '%s')", w.cfg.Slot, publication)
			}
			// Too early, it fails for ever: the row was written without it.
			early, err := ipg.Database{DSN: w.dsn}.ConnectSQL(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer ipg.Close(early)
			if _, err := early.Exec(t.Context(), read("walpost_outbox")).ReadAll(); ipg.SQLState(err) != "42704" {
				t.Errorf("before it is confirmed: %v", err)
			}
			w.exec("SELECT pg_replication_slot_advance('"+w.cfg.Slot+"', pg_current_wal_lsn())", insertRow)
			if n := w.value(read("walpost_outbox")); n == "0" {
				t.Error("nothing is read afterwards")
			}
		})
	}
}

func TestAnExaminationKnowsWhetherItsConnectionIsInTLS(t *testing.T) {
	pg := testenv.Postgres(t, "", testenv.Private())
	w := newWorld(t, pg, outboxTable)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		path := filepath.Join(pg.DataDir(), name)
		// COPY TO a program would do it as the server's account; a file that is there keeps its owner.
		pg.Exec(t, w.dsn, "COPY (SELECT 1) TO "+pgname.QuoteLiteral(path))
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pg.Exec(t, pg.DSN("postgres"), "ALTER SYSTEM SET ssl = on")
	pg.Restart(t)
	if f := named(w.examine(), "TLS"); f != nil {
		t.Errorf("at home without it: %+v", f)
	}
	w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "sslmode=disable", "sslmode=require", 1))
	if f := named(w.examine(), "TLS"); f == nil || f.Verdict != OK {
		t.Errorf("with it: %+v", f)
	}
}

// stalling forwards to a server until the client says word, from when on the server says nothing more, as one that hangs.
func stalling(t *testing.T, server, word string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	stuck := word == ""
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				return
			}
			mu.Lock()
			open = append(open, client, up)
			mu.Unlock()
			pump := func(to, from net.Conn, asks bool) {
				buf := make([]byte, 1<<16)
				for {
					n, err := from.Read(buf)
					mu.Lock()
					stuck = stuck || asks && bytes.Contains(buf[:n], []byte(word))
					hold := stuck
					mu.Unlock()
					if err != nil {
						to.Close()
						return
					}
					if hold {
						continue
					}
					if _, err := to.Write(buf[:n]); err != nil {
						_, _ = io.Copy(io.Discard, from)
						return
					}
				}
			}
			go pump(up, client, true)
			go pump(client, up, false)
		}
	}()
	return listener.Addr().String()
}

func TestAServerThatHangsDoesNotHangAnExamination(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for _, c := range []struct{ name, word, on, step string }{
		{"from the beginning", "", "connection", "connect as "},
		{"at the first question", "pg_postmaster_start_time", "catalog", "read the server's settings"},
		{"at the slot", "slot_name = ", "catalog", "read slot "},
		{"at the publication", "pg_publication ", "catalog", "read publication walpost"},
		{"at the stream", "replication\x00database", "replication connection", "connect for replication"},
		{"at the doctor's settings", "max_wal_size", "settings", "read the settings"},
		{"at the cleanup's rights", "AS barred", "settings", "read what the cleanup needs"},
		{"at the rows", "LIMIT 1", "source.snapshot", "public.outbox"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, pg, outboxTable, "CREATE INDEX ON outbox (created_at)")
			w.cfg.Outbox = replication.Outbox{Deletes: true}
			var found []Finding
			// On a busy machine, an earlier step can take longer than the limit.
			for limit := 3 * time.Second; ; limit *= 3 {
				w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, fmt.Sprintf("127.0.0.1:%d", pg.Port()), stalling(t, fmt.Sprintf("127.0.0.1:%d", pg.Port()), c.word), 1))
				found = checkPostgres(t.Context(), &w.cfg, limit, time.Millisecond)
				last := found[len(found)-1]
				if last.Name == c.on && last.Verdict == Fail && strings.HasPrefix(last.Why, "no answer within ") && strings.Contains(last.Why, c.step) && len(last.Fix) > 0 {
					break
				}
				if limit > time.Minute {
					t.Errorf("the last finding is %+v, want %s with %q", last, c.on, c.step)
					break
				}
			}
			for _, f := range found[:len(found)-1] {
				if f.Verdict == Fail {
					t.Errorf("another fails: %+v", f)
				}
			}
		})
	}
	w := newWorld(t, pg, outboxTable)
	for limit := 3 * time.Second; ; limit *= 2 {
		w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, fmt.Sprintf("127.0.0.1:%d", pg.Port()), stalling(t, fmt.Sprintf("127.0.0.1:%d", pg.Port()), "max_wal_size"), 1))
		hurried, done := context.WithTimeout(t.Context(), limit)
		f := checkPostgres(hurried, &w.cfg, examineWithin, walPause)
		done()
		if f[len(f)-1].Name == "settings" && strings.HasPrefix(f[len(f)-1].Why, "no answer within "+limit.String()) {
			break
		}
		if limit > 10*time.Second { // checkPostgres has a limit of its own
			t.Errorf("the caller's own limit: %+v", f)
			break
		}
	}
	// Who stops waiting does not hear that the server is slow.
	w = newWorld(t, pg, outboxTable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := checkPostgres(ctx, &w.cfg, examineWithin, walPause); len(f) != 1 || f[0].Verdict != Fail || strings.Contains(f[0].Why, "no answer") {
		t.Errorf("cancelled: %+v", f)
	}
}

// named is the first finding of that name.
func named(found []Finding, name string) *Finding {
	for i := range found {
		if found[i].Name == name {
			return &found[i]
		}
	}
	return nil
}
