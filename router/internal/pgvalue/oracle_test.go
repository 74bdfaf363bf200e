//go:build linux || darwin

package pgvalue

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication"
)

var (
	update = flag.Bool("update", false, "ask Debezium again: writes testdata/debezium/golden.txt. Needs -debezium")
	seed   = flag.Uint64("seed", 0, "seed of the random rows for -debezium; 0 takes one from the clock")
	rows   = flag.Int("rows", 300, "how many random rows to send through -debezium in each mode")
	lib    = flag.String("debezium", "", "folder with Debezium's jars: mvn -f testdata/debezium/pom.xml dependency:copy-dependencies -DoutputDirectory=<folder>")
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestAskDebezium writes the goldens, with -update.
func TestAskDebezium(t *testing.T) {
	if !*update {
		t.Skip("the goldens are not written anew without -update")
	}
	if *lib == "" {
		t.Fatal("-update needs -debezium")
	}
	columns := readCases(t)
	ask(t, columns)
	writeGolden(t, columns)
}

// TestDebeziumAtRandom sends random rows and defaults through walpost and through Debezium and compares. Values it found to differ
// belong into cases.txt.
func TestDebeziumAtRandom(t *testing.T) {
	if *lib == "" {
		t.Skip("needs -debezium; the goldens hold what it said")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	columns := possible(t, randomCases(rand.New(rand.NewPCG(*seed, 1)), *rows))
	ask(t, columns)
	values, _ := compare(t, columns)
	t.Logf("%d values of %d columns compared", values, len(columns))
}

// possible keeps what Postgres takes.
func possible(t *testing.T, columns []goldenColumn) (kept []goldenColumn) {
	conn := setUp(t, testenv.Postgres(t, "").Database(t))
	for i, c := range columns {
		table := "c" + strconv.Itoa(i)
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE TABLE %s (v %s)", table, c.definition)); err != nil {
			continue
		}
		c.rows = slices.DeleteFunc(c.rows, func(r goldenRow) bool {
			_, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO %s VALUES (%s)", table, r.sql))
			return err != nil
		})
		if len(c.rows) > 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// setUp connects to a new database and makes the types that cases use.
func setUp(t *testing.T, dsn string) *pgx.Conn {
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	setup, err := os.ReadFile("testdata/debezium/setup.sql")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(setup)) {
		if _, err := conn.Exec(t.Context(), line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return conn
}

// ask sends the rows through walpost's source and, in every mode, through Debezium.
func ask(t *testing.T, columns []goldenColumn) {
	pg := testenv.Postgres(t, "", testenv.Private(), testenv.Param("max_replication_slots", "20"), testenv.Param("max_wal_senders", "20"))
	dsn := pg.Database(t)
	conn := setUp(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	tables := make([]string, len(columns))
	for i, c := range columns {
		tables[i] = "public.c" + strconv.Itoa(i)
		exec(fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, v %s)", tables[i], c.definition))
	}
	exec("CREATE PUBLICATION walpost FOR TABLE " + strings.Join(tables, ", ") + " WITH (publish = 'insert')")
	ours := conn.Config().Database + "_ours"
	exec("SELECT pg_create_logical_replication_slot('" + ours + "', 'pgoutput')")
	for run := range runs {
		d := &debezium{T: t, conn: conn, run: run, slot: fmt.Sprintf("%s_%d", conn.Config().Database, run)}
		d.start()
		for i := range columns {
			c := &columns[i]
			c.schema = append(c.schema, "")
			for j := range c.rows {
				exec(fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", tables[i], 1000*run+j, c.rows[j].sql))
				schema, value := d.answer(tables[i], 1000*run+j)
				if schema != "" && c.schema[run] != "" && c.schema[run] != schema {
					t.Fatalf("run %d: %s has schema %s and %s", run, c.definition, c.schema[run], schema)
				}
				c.schema[run] = cmp.Or(schema, c.schema[run])
				c.rows[j].value = append(c.rows[j].value, value)
			}
		}
		d.stop()
	}
	readStream(t, dsn, tables, ours, columns)
}

// readStream fills in the columns and the texts, as walpost reads them.
func readStream(t *testing.T, dsn string, tables []string, slot string, columns []goldenColumn) {
	cfg := replication.DefaultConfig()
	cfg.DSN, cfg.Tables, cfg.Slot, cfg.Snapshot = conf.Secret(dsn), tables, slot, "never"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	session, err := replication.NewSource(cfg).Open(ctx, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.Background())
	if err := session.Start(ctx, session.Identity().SlotFound.Confirmed); err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, c := range columns {
		left += len(c.rows) * len(runs)
	}
	for left > 0 {
		ev, err := session.Next(ctx, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind != cdc.Insert {
			continue
		}
		i, _ := strconv.Atoi(ev.Row.Relation.Name[1:])
		j, _ := strconv.Atoi(string(ev.Row.Values[0].Bytes))
		left--
		columns[i].column = ev.Row.Relation.Columns[1]
		r, raw := &columns[i].rows[j%1000], ev.Row.Values[1].Bytes
		if j < 1000 {
			r.raw = bytes.Clone(raw)
		} else if !bytes.Equal(r.raw, raw) { // it is not the same again: a sequence
			t.Logf("%s: %s and %s", r.sql, r.raw, raw)
		}
	}
}

// A debezium is one connector with the modes of one run.
type debezium struct {
	*testing.T
	conn   *pgx.Conn
	run    int
	slot   string
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Reader
	deaths int
}

func (d *debezium) start() {
	d.slotAnew()
	u, err := url.Parse(d.conn.Config().ConnString())
	if err != nil {
		d.Fatal(err)
	}
	password, _ := u.User.Password()
	m := runs[d.run]
	d.cmd = exec.Command("java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC",
		"-cp", filepath.Join(*lib, "*"), "testdata/debezium/Oracle.java",
		"database.hostname="+u.Hostname(), "database.port="+u.Port(), "database.user="+u.User.Username(), "database.password="+password,
		"database.dbname="+d.conn.Config().Database, "slot.name="+d.slot, "publication.name=walpost",
		"time.precision.mode="+m.Time, "decimal.handling.mode="+m.Decimal, "binary.handling.mode="+m.Binary,
		"interval.handling.mode="+m.Interval, "hstore.handling.mode="+m.HStore)
	d.cmd.Stderr = os.Stderr
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		d.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.Fatal(err)
	}
	d.out = bufio.NewReader(out)
	if err := d.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { d.cmd.Process.Kill() })
}

func (d *debezium) stop() {
	d.cmd.Process.Kill()
	d.cmd.Wait()
}

// answer waits for what becomes of a row, which is the only one on its way.
func (d *debezium) answer(table string, id int) (schema, value string) {
	line, err := d.out.ReadString('\n')
	if err != nil {
		d.Fatalf("run %d: %v", d.run, err)
	}
	f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
	if len(f) == 2 && f[0] == "died" {
		if d.deaths++; d.deaths > 80 {
			d.Fatalf("run %d: it dies of everything: %s", d.run, f[1])
		}
		chain := strings.Split(f[1], " <- ")
		d.slotAnew()
		if _, err := io.WriteString(d.in, "again\n"); err != nil {
			d.Fatal(err)
		}
		return "", "died " + chain[len(chain)-1]
	}
	if len(f) != 5 || f[0] != "row" || "public."+f[1] != table || f[2] != strconv.Itoa(id) {
		d.Fatalf("run %d: %q is no answer to row %d of %s", d.run, line, id, table)
	}
	return f[3], f[4]
}

// slotAnew makes the slot, behind what a connector died of.
func (d *debezium) slotAnew() {
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := d.conn.Exec(d.Context(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", d.slot)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			d.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the connector still lets go of it
	}
	if _, err := d.conn.Exec(d.Context(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", d.slot); err != nil {
		d.Fatal(err)
	}
}

// readCases reads what to ask.
func readCases(t *testing.T) (columns []goldenColumn) {
	text, err := os.ReadFile("testdata/debezium/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	var row string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if definition, ok := strings.CutPrefix(line, "= "); ok {
			columns = append(columns, goldenColumn{definition: definition})
			continue
		}
		if row == "" && strings.HasPrefix(line, "#") {
			continue
		}
		if row += line; strings.Count(row, "'")%2 == 1 { // a string with a line break
			row += "\n"
			continue
		}
		c := &columns[len(columns)-1]
		c.rows = append(c.rows, goldenRow{sql: row})
		row = ""
	}
	return columns
}

const goldenHead = `# What Debezium makes of the rows of cases.txt, by run of the modes below. Written by
#   mvn -f testdata/debezium/pom.xml dependency:copy-dependencies -DoutputDirectory=<folder>
#   go test . -run TestAskDebezium -update -debezium <folder>
`

func writeGolden(t *testing.T, columns []goldenColumn) {
	var b strings.Builder
	b.WriteString(goldenHead)
	for i, m := range runs {
		fmt.Fprintf(&b, "#   %d  %s %s %s %s %s\n", i, m.Time, m.Decimal, m.Binary, m.Interval, m.HStore)
	}
	for _, c := range columns {
		c.column.TypeOID, c.column.ElementType, c.column.BaseType = stable(c.column.TypeOID), stable(c.column.ElementType), stable(c.column.BaseType)
		column, err := json.Marshal(c.column)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n= %s\ncolumn %s\n", c.definition, column)
		writeByRun(&b, "schema", c.schema)
		for _, r := range c.rows {
			raw := "NULL"
			if r.raw != nil {
				raw = strconv.Quote(string(r.raw))
			}
			fmt.Fprintf(&b, "text %s\n", raw)
			writeByRun(&b, "value", r.value)
		}
	}
	if err := os.WriteFile("testdata/debezium/golden.txt", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// stable makes OIDs that differ from database to database one.
func stable(oid uint32) uint32 {
	if oid >= 16384 {
		return 99999
	}
	return oid
}

// writeByRun writes what each run gave, runs that gave the same on one line: "  0,2: …".
func writeByRun(b *strings.Builder, what string, answers []string) {
	for i, a := range answers {
		if slices.Index(answers, a) < i {
			continue
		}
		var who []string
		for j := range answers {
			if answers[j] == a {
				who = append(who, strconv.Itoa(j))
			}
		}
		fmt.Fprintf(b, "  %s %s: %s\n", what, strings.Join(who, ","), a)
	}
}
