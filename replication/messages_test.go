package replication

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/testenv"
)

func emit(content string) string {
	return "SELECT pg_logical_emit_message(true, 'outbox', '" + content + "')"
}

// events reads up to the row or message called end. Rows are named by their aggregate_id, messages by their content.
func (w *world) events(s *Session, end string) []string {
	var got []string
	w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
		switch ev.Kind {
		case cdc.Message:
			got = append(got, string(ev.Row.Values[0].Bytes))
		case cdc.Insert:
			got = append(got, string(ev.Row.Values[ev.Row.Relation.Index("aggregate_id")].Bytes))
		case cdc.Commit:
			return slices.Contains(got, end)
		default:
		}
		return false
	})
	return got
}

func TestMessagesArriveInTheOrderOfTheWAL(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		w.cfg.Messages.Prefix = "outbox"
		source := w.source()
		s, err := w.open(source, true, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed); err != nil {
			t.Fatal(err)
		}
		w.exec(
			"BEGIN;"+emit("1")+";"+insertOf("2")+";"+emit("3")+";"+emit("4")+";"+insertOf("5")+";COMMIT",
			"BEGIN;"+emit("rolled back")+";"+insertOf("rolled back")+";ROLLBACK",
			"BEGIN;"+emit("6")+";SAVEPOINT a;"+emit("rolled back")+";ROLLBACK TO a;"+emit("7")+";SAVEPOINT b;"+insertOf("8")+";"+emit("9")+";RELEASE b;COMMIT",
			"SELECT pg_logical_emit_message(true, 'outbox2', 'another prefix')",
			"SELECT pg_logical_emit_message(false, 'outbox2', 'another prefix')",
			"BEGIN; SELECT pg_logical_emit_message(false, 'outbox', 'not transactional'); SELECT pg_logical_emit_message(false, 'outbox', 'not transactional'); ROLLBACK",
			"SELECT pg_logical_emit_message(true, 'outbox', '\\x0001ff'::bytea)",
			"SELECT pg_logical_emit_message(true, 'outbox', '')",
			emit("end"),
		)
		want := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "\x00\x01\xff", "", "end"}
		if got := w.events(s, "end"); !slices.Equal(got, want) {
			t.Errorf("events are %q, want %q", got, want)
		}
		remarks := 0
		source.Remarks(func(what string, severe bool, count uint64, last string) {
			remarks++
			if what != "message that is not transactional ignored" || !severe || count != 2 || !strings.HasPrefix(last, "messages:outbox at ") {
				t.Errorf("remark %q (severe: %t) %d times, last %q", what, severe, count, last)
			}
		})
		if remarks != 1 {
			t.Errorf("%d remarks", remarks)
		}
		w.close(s)
		if got := w.events(w.stream(0), "end"); !slices.Equal(got, want) { // nothing was confirmed
			t.Errorf("the second time, events are %q, want %q", got, want)
		}
	})
}

// TestMessagesNeedNoTable: the publication is empty, and other tables of the database are written meanwhile.
func TestMessagesNeedNoTable(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, insertOf("before"))
		w.cfg.Messages.Prefix, w.cfg.Tables = "outbox", nil
		s := w.stream(0)
		w.exec(insertOf("none of ours"), emit("1"), "BEGIN;"+insertOf("none of ours")+";"+emit("2")+";COMMIT", emit("end"))
		if got := w.events(s, "end"); !slices.Equal(got, []string{"1", "2", "end"}) {
			t.Errorf("events are %q", got)
		}
		w.close(s)
		if found, err := w.source().Check(t.Context()); err != nil || found.Unpublished != "" {
			t.Errorf("%v, %q", err, found.Unpublished)
		}
		opts, err := w.source().Missing(t.Context())
		if err != nil || !opts.Empty() {
			t.Errorf("%v: missing is %+v", err, opts)
		}
		// walpost recover refuses without a table, so nothing may advise it.
		advises := func(hint string) {
			t.Helper()
			if strings.Contains(hint, "recover") || !strings.Contains(hint, "Run walpost run to see the gap") {
				t.Errorf("the hint is %q", hint)
			}
		}
		w.exec("DROP PUBLICATION walpost")
		for _, u := range w.unmet() {
			advises(u.Fix.Text(""))
		}
		_, err = w.source().Check(t.Context())
		advises(fault.Hint(err))
		w.exec("SELECT pg_drop_replication_slot(" + pgname.QuoteLiteral(w.cfg.Slot) + ")")
		_, err = w.source().Check(t.Context())
		advises(fault.Hint(err))
	})
}

func TestSetupForMessagesAloneMakesAnEmptyPublication(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""))
	w.cfg.Messages.Prefix, w.cfg.Tables = "outbox", nil
	opts, err := w.source().Missing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if sql := SetupSQL(w.cfg, opts); !strings.Contains(sql, "logical messages") || !strings.Contains(sql, "\nCREATE PUBLICATION \"walpost\" WITH (publish = 'insert', publish_via_partition_root = true);\n") {
		t.Error(sql)
	}
	made, err := w.source().Apply(t.Context())
	if err != nil || !slices.Equal(made, []string{"publication walpost"}) {
		t.Errorf("%v: made %q", err, made)
	}
	if left := w.unmet(); len(left) > 0 {
		t.Errorf("then unmet: %v", left[0])
	}
}

func TestAConfigurationOfMessages(t *testing.T) {
	for _, c := range []struct {
		prefix, snapshot string
		tables           []string
		want             string
	}{
		{"outbox", "", nil, ""},
		{"outbox", "never", nil, ""},
		{"outbox", "initial", []string{"public.outbox"}, ""},
		{"événements 1", "", nil, ""},
		{"", "", nil, "source.table: is required"},
		{"outbox", "initial", nil, "source.snapshot: must be never without source.table, because messages are in no table (got \"initial\")"},
		{"a\nb", "", nil, "source.messages.prefix: must be at most 200 bytes of UTF-8 without control characters"},
		{strings.Repeat("x", 201), "", nil, "source.messages.prefix: must be at most 200 bytes"},
		{"a\xff", "", nil, "source.messages.prefix: must be at most 200 bytes of UTF-8"},
	} {
		cfg := DefaultConfig()
		cfg.DSN, cfg.Messages.Prefix, cfg.Snapshot, cfg.Tables = "postgres://localhost/shop", c.prefix, c.snapshot, c.tables
		got := ""
		if found := cfg.Validate(); len(found) > 0 {
			got = fmt.Sprint(found)
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q with %q and %q: %s, want %s", c.prefix, c.snapshot, c.tables, got, c.want)
		}
	}
}

// TestAMessageSaysWhereItIsFrom: the server itself says the transaction, the position, and where the transaction before it ended.
func TestAMessageSaysWhereItIsFrom(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	w.cfg.Messages.Format, w.cfg.Messages.Include = "debezium", []string{"a.*"}
	s := w.stream(0)
	w.exec(insertOf("first"), "CREATE TABLE facts AS SELECT pg_logical_emit_message(true, 'a1', 'x') AS lsn, txid_current() AS tx",
		"SELECT pg_logical_emit_message(true, 'b', 'not selected')", insertOf("end"))
	want := w.value("SELECT tx || ' ' || lsn FROM facts")
	var ended cdc.LSN
	got := ""
	w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
		switch ev.Kind {
		case cdc.Message:
			if v := ev.Row.Values; string(v[0].Bytes) != "x" || string(v[2].Bytes) != ended.String() || ended == 0 {
				t.Errorf("%s from %s, and the transaction before ended at %s", v[0].Bytes, v[2].Bytes, ended)
			}
			got += string(ev.Row.Values[1].Bytes) + " " + ev.LSN.String()
		case cdc.Commit:
			ended = ev.Pos.LSN()
		case cdc.Insert:
			return string(ev.Row.Values[ev.Row.Relation.Index("aggregate_id")].Bytes) == "end"
		default:
		}
		return false
	})
	if got != want {
		t.Errorf("the message is from %s, want %s", got, want)
	}
}

// TestMessagesFromAStandby: a standby has only the WAL of its primary, where the messages are written.
func TestMessagesFromAStandby(t *testing.T) {
	for _, version := range []string{"16", "18"} {
		t.Run(version, func(t *testing.T) {
			primary := testenv.Postgres(t, version, testenv.Private())
			w := newWorld(t, primary, outboxTable, publicationForOutbox)
			w.cfg.Messages.Prefix = "outbox"
			standby := primary.Standby(t)
			w.cfg.DSN = conf.Secret(standby.DSN(w.cfg.Slot) + "&target_session_attrs=any")
			stop := logsSnapshots(t, primary)
			s := w.mustOpen(w.source(), true)
			stop()
			if err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed); err != nil {
				t.Fatal(err)
			}
			w.exec("BEGIN;"+emit("1")+";"+insertOf("2")+";"+emit("3")+";COMMIT", "BEGIN;"+emit("rolled back")+";ROLLBACK",
				"SELECT pg_logical_emit_message(false, 'outbox', 'no transaction')", emit("end"))
			if got := w.events(s, "end"); !slices.Equal(got, []string{"1", "2", "3", "end"}) {
				t.Errorf("events are %q", got)
			}
			w.close(s)
		})
	}
}
