package pgoutput

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

var (
	update = flag.Bool("update", false, "write the golden files anew")
	record = flag.Bool("record", false, "record testdata/pgoutput-*.gz anew, from real servers")
)

// A recorded message is what the server wrote, and where.
type recorded struct {
	pos  cdc.LSN
	data []byte
}

func recording(t testing.TB, version string) []recorded {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "pgoutput-"+version+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for {
		var head [12]byte
		if _, err := io.ReadFull(z, head[:]); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, binary.BigEndian.Uint32(head[8:]))
		if _, err := io.ReadFull(z, data); err != nil {
			t.Fatal(err)
		}
		all = append(all, recorded{cdc.LSN(binary.BigEndian.Uint64(head[:])), data})
	}
}

// TestRecord records the golden bytes: go test ./replication/internal/pgoutput -run '^TestRecord$' -record -update
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("only with -record")
	}
	script, err := os.ReadFile("testdata/record.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range testenv.Versions {
		t.Run(version, func(t *testing.T) {
			pg := testenv.Postgres(t, version)
			ctx := t.Context()
			conn, err := pgx.Connect(ctx, pg.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			run := func(sql string) {
				if _, err := conn.Exec(ctx, sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			run("set timezone = utc")
			for _, line := range strings.Split(string(script), "\n") {
				switch {
				case line == "-- slot":
					run("select pg_create_logical_replication_slot('golden_' || current_setting('server_version_num') , 'pgoutput')")
				case strings.HasPrefix(line, "copy "):
					if _, err := conn.PgConn().CopyFrom(ctx, strings.NewReader("20\tcopied\n21\t\\N\n22\t\n"), strings.TrimSuffix(line, ";")); err != nil {
						t.Fatal(err)
					}
				case line != "" && !strings.HasPrefix(line, "--"):
					run(line)
				}
			}
			var out bytes.Buffer
			z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
			rows, err := conn.Query(ctx, `select lsn - '0/0'::pg_lsn, data from pg_logical_slot_get_binary_changes('golden_' || current_setting('server_version_num'), null, null,
				'proto_version', '1', 'publication_names', 'golden,golden_inserts', 'messages', 'true')`)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var pos int64
				var data []byte
				if err := rows.Scan(&pos, &data); err != nil {
					t.Fatal(err)
				}
				head := binary.BigEndian.AppendUint64(nil, uint64(pos))
				head = binary.BigEndian.AppendUint32(head, uint32(len(data)))
				_, _ = z.Write(append(head, data...))
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join("testdata", "pgoutput-"+version+".gz"), out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEveryVersionGivesTheSameEvents decodes what each version of Postgres sent for the same statements. Positions, ids
// and times differ, nothing else may.
func TestEveryVersionGivesTheSameEvents(t *testing.T) {
	const golden = "testdata/pgoutput.txt"
	for i, version := range testenv.Versions {
		t.Run(version, func(t *testing.T) {
			got := story(t, recording(t, version))
			if *update && i == 0 {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, got, string(want))
		})
	}
}

func diff(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := 0; i < max(len(g), len(w)); i++ {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Fatalf("line %d:\n got %s\nwant %s", i+1, a, b)
		}
	}
}

// story tells the events of a recording in words. Transactions without events, of which servers send more or fewer, are left out.
func story(t *testing.T, messages []recorded) string {
	t.Helper()
	d := NewDecoder(0, nil, wanted("prefix", func(at cdc.LSN) { t.Errorf("the message at %s belongs to no transaction", at) }))
	var told []string
	tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	var begin cdc.LSN
	opened := 0
	seen := map[*cdc.Relation]bool{}
	for _, m := range messages {
		ev, err := d.Decode(m.data, m.pos)
		if err != nil {
			t.Fatal(err)
		}
		if ev == nil {
			continue
		}
		for _, row := range []cdc.Row{ev.Row, ev.Old} {
			if row.Relation != nil && !row.Relation.OfMessages() && !seen[row.Relation] {
				seen[row.Relation] = true
				tell("%s", describe(row.Relation))
			}
		}
		switch ev.Kind {
		case cdc.Begin:
			if ev.Time.Year() < 2026 || ev.Time.Year() > 2100 {
				t.Errorf("begin of a transaction at %s", ev.Time)
			}
			begin, opened = ev.Pos.LSN(), len(told)
			tell("begin")
		case cdc.Commit:
			if end := ev.Pos.LSN(); end <= begin || m.pos != end {
				t.Errorf("commit ends at %s, its record begins at %s, its message is at %s", ev.Pos, begin, m.pos)
			}
			if len(told) == opened+1 {
				told = told[:opened]
				continue
			}
			tell("commit\n")
		case cdc.Message:
			tell("message %q", ev.Row.Values[0].Bytes)
		case cdc.Insert, cdc.Update, cdc.Delete, cdc.Idle:
			tell("%s%s%s", ev.Kind, inWords(" old", ev.Old), inWords(" new", ev.Row))
		}
	}
	return strings.Join(told, "\n") + "\n"
}

func describe(rel *cdc.Relation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %q.%q identity=%c", rel.Schema, rel.Name, rel.ReplicaIdentity)
	for _, c := range rel.Columns {
		fmt.Fprintf(&b, "\n  %q", c.Name)
		if c.TypeName != "" {
			fmt.Fprintf(&b, " type %q", c.TypeName)
		} else {
			fmt.Fprintf(&b, " type %d", c.TypeOID)
		}
		if c.TypeMod != -1 {
			fmt.Fprintf(&b, " mod %d", c.TypeMod)
		}
		if c.Key {
			b.WriteString(" key")
		}
	}
	return b.String()
}

func inWords(what string, row cdc.Row) string {
	if row.Relation == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s %s", what, row.Relation)
	for i, v := range row.Values {
		fmt.Fprintf(&b, "\n    %s: ", row.Relation.Columns[i].Name)
		switch {
		case v.Unchanged:
			b.WriteString("(unchanged)")
		case v.Bytes == nil:
			b.WriteString("NULL")
		case len(v.Bytes) > 200:
			fmt.Fprintf(&b, "%d bytes, sha256 %x", len(v.Bytes), sha256.Sum256(v.Bytes))
		default:
			fmt.Fprintf(&b, "%q", v.Bytes)
		}
	}
	return b.String()
}
