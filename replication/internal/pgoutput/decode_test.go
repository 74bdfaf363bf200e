package pgoutput

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/logicalmsg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication/internal/pgoutput/pgoutputtest"
)

// Messages as the server writes them, for what recordings do not hold.

func msgLogical(flags byte, prefix, content string) []byte {
	b := pgoutputtest.U64([]byte{'M', flags}, 9)
	b = append(append(b, prefix...), 0)
	return append(pgoutputtest.U32(b, len(content)), content...)
}

// wanted asks for the messages with a prefix.
func wanted(prefix string, outside func(cdc.LSN)) Messages {
	relations := logicalmsg.NewRelations(logicalmsg.Config{Prefix: prefix, Format: logicalmsg.Row})
	return Messages{Relations: relations, Outside: func(_ *cdc.Relation, at cdc.LSN) { outside(at) }}
}

func TestMessagesWithThePrefixAreEvents(t *testing.T) {
	var outside []cdc.LSN
	d := NewDecoder(100, nil, wanted("outbox", func(at cdc.LSN) { outside = append(outside, at) }))
	var got []string
	for _, m := range [][]byte{
		msgLogical(0, "outbox", "before"), pgoutputtest.Begin(200),
		msgLogical(1, "outbox", "a"), msgLogical(1, "outbox2", "b"), msgLogical(1, "outbo", "c"), msgLogical(1, "", "d"), msgLogical(1, "outbox", ""),
		pgoutputtest.Commit(200, 250), msgLogical(0, "other", "e"), msgLogical(0, "outbox", "f"),
	} {
		ev, err := d.Decode(m, 150)
		if err != nil {
			t.Fatal(err)
		}
		if ev == nil || ev.Kind != cdc.Message {
			continue
		}
		if v := ev.Row.Values; len(v) != 1 || v[0].Bytes == nil || ev.Relation() != ev.Row.Relation || ev.Row.Relation.String() != "messages:outbox" || ev.LSN != 9 || !ev.Time.Equal(d.commitAt) {
			t.Errorf("%+v", ev)
		}
		got = append(got, string(ev.Row.Values[0].Bytes))
	}
	if !slices.Equal(got, []string{"a", ""}) || len(outside) != 2 {
		t.Errorf("events are %q, and %d messages belong to no transaction", got, len(outside))
	}
}

func TestWhatBreaksTheProtocolIsAnErrorThatNamesIt(t *testing.T) {
	relation := pgoutputtest.Relation(5, "id", "v")
	for _, c := range []struct {
		name     string
		messages [][]byte
		want     string
	}{
		{"nothing", [][]byte{{}}, "empty message"},
		{"an unknown kind", [][]byte{{'Q', 1}}, `message 'Q' at 0/63: unknown kind of message`},
		{"a streamed transaction", [][]byte{{'S', 0, 0, 0, 1, 1}}, `message 'S'`},
		{"a row outside a transaction", [][]byte{relation, pgoutputtest.Insert(5, "1", "a")}, "outside a transaction"},
		{"a row after the commit", [][]byte{relation, pgoutputtest.Begin(200), pgoutputtest.Commit(200, 240), pgoutputtest.Insert(5, "1", "a")}, "outside a transaction"},
		{"a row of an unknown relation", [][]byte{pgoutputtest.Begin(200), pgoutputtest.Insert(6, "1")}, "relation 6, which was not described"},
		{"a begin within a transaction", [][]byte{pgoutputtest.Begin(200), pgoutputtest.Begin(300)}, "within the transaction"},
		{"a transaction that lies before the start", [][]byte{pgoutputtest.Begin(99)}, "before 0/64"},
		{"a transaction that lies before the one before", [][]byte{pgoutputtest.Begin(200), pgoutputtest.Commit(200, 240), pgoutputtest.Begin(239)}, "before 0/F0"},
		{"a commit without begin", [][]byte{pgoutputtest.Commit(200, 240)}, "outside a transaction"},
		{"the commit of another transaction", [][]byte{pgoutputtest.Begin(200), pgoutputtest.Commit(201, 240)}, "that was to commit at 0/C8"},
		{"a commit that ends before it begins", [][]byte{pgoutputtest.Begin(200), pgoutputtest.Commit(200, 200)}, "that ends at 0/C8"},
		{"flags of a commit", [][]byte{pgoutputtest.Begin(200), append([]byte{'C', 1}, pgoutputtest.Commit(200, 240)[2:]...)}, "flags 0x1"},
		{"too few columns", [][]byte{relation, pgoutputtest.Begin(200), pgoutputtest.Insert(5, "1")}, "1 columns in a row of public.t, which was described with 2"},
		{"too many columns", [][]byte{relation, pgoutputtest.Begin(200), pgoutputtest.Insert(5, "1", "2", "3")}, "3 columns"},
		{"a binary value", [][]byte{relation, pgoutputtest.Begin(200), append(pgoutputtest.U16(append(pgoutputtest.U32([]byte{'I'}, 5), 'N'), 2), 'n', 'b', 0, 0, 0, 0)}, "binary value in column v of public.t"},
		{"an unknown kind of value", [][]byte{relation, pgoutputtest.Begin(200), append(pgoutputtest.U16(append(pgoutputtest.U32([]byte{'I'}, 5), 'N'), 2), 'z')}, "'z' in column id"},
		{"an insert of an old row", [][]byte{relation, pgoutputtest.Begin(200), append(pgoutputtest.U32([]byte{'I'}, 5), 'K')}, "part 'K'"},
		{"bytes behind the end", [][]byte{relation, pgoutputtest.Begin(200), append(pgoutputtest.Insert(5, "1", "a"), 0)}, "1 bytes behind its end"},
		{"a value longer than the message", [][]byte{relation, pgoutputtest.Begin(200), append(pgoutputtest.U16(append(pgoutputtest.U32([]byte{'I'}, 5), 'N'), 2), 't', 255, 255, 255, 255)}, "cut short"},
		{"a transactional message outside", [][]byte{msgLogical(1, "p", "c")}, "outside a transaction"},
		{"a message with unknown flags", [][]byte{pgoutputtest.Begin(200), msgLogical(2, "p", "c")}, "unknown flags 0x2"},
		{"a message with more content than it has", [][]byte{pgoutputtest.Begin(200), append(msgLogical(1, "p", "")[:13], 255, 255, 255, 255)}, "cut short"},
		{"more columns than the message can hold", [][]byte{append(append(pgoutputtest.U32([]byte{'R'}, 5), "s\x00t\x00d"...), 255, 255)}, "cut short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder(100, nil, wanted("p", func(cdc.LSN) {}))
			for i, m := range c.messages {
				ev, err := d.Decode(m, 99)
				if i < len(c.messages)-1 {
					if err != nil {
						t.Fatalf("message %d: %v", i, err)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one with %q", err, c.want)
				}
				if ev != nil {
					t.Errorf("event %+v beside the error", ev)
				}
			}
		})
	}
}

func TestAMessageCutShortIsAnError(t *testing.T) {
	for _, version := range testenv.Versions {
		d := NewDecoder(0, nil, wanted("p", func(cdc.LSN) {}))
		for _, m := range recording(t, version) {
			for n := range min(len(m.data), 2000) {
				if k := m.data[0]; n > 0 && (k == 'T' || k == 'O') {
					continue // skipped unread
				}
				// A copy of what the decoder knows, since a begin changes it.
				probe := *d
				probe.values, probe.old = nil, nil
				if ev, err := probe.Decode(m.data[:n], m.pos); err == nil {
					t.Fatalf("Postgres %s: the first %d of %d bytes of message %q gave %+v", version, n, len(m.data), m.data[0], ev)
				}
			}
			if _, err := d.Decode(m.data, m.pos); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestATableThatIsTheSameKeepsItsRelation(t *testing.T) {
	d := NewDecoder(0, nil, wanted("p", func(cdc.LSN) {}))
	row := func(relation []byte, values ...string) *cdc.Relation {
		t.Helper()
		if _, err := d.Decode(relation, 0); err != nil {
			t.Fatal(err)
		}
		ev, err := d.Decode(pgoutputtest.Insert(5, values...), 1)
		if err != nil {
			t.Fatal(err)
		}
		return ev.Row.Relation
	}
	if _, err := d.Decode(pgoutputtest.Begin(200), 200); err != nil {
		t.Fatal(err)
	}
	first := row(pgoutputtest.Relation(5, "id", "v"), "1", "a")
	again := row(pgoutputtest.Relation(5, "id", "v"), "2", "a")
	renamed := row(pgoutputtest.Relation(5, "id", "w"), "3", "a")
	if first != again {
		t.Error("the same description gave another relation")
	}
	if renamed == first || first.Columns[1].Name != "v" || renamed.Columns[1].Name != "w" {
		t.Errorf("a renamed column gave %+v and left %+v", renamed, first)
	}
	d.fill = func(rel *cdc.Relation) error { rel.Columns[1].EnumLabels = []string{"x"}; return nil }
	filled := row(pgoutputtest.Relation(5, "id", "w"), "4", "a")
	if filled == renamed || renamed.Columns[1].EnumLabels != nil || filled.Columns[1].EnumLabels == nil {
		t.Error("what the catalog says now is not in a relation of its own")
	}
}

func TestNullEmptyAndUnchangedAreThreeThings(t *testing.T) {
	d := NewDecoder(0, nil, wanted("p", func(cdc.LSN) {}))
	update := append(pgoutputtest.U32([]byte{'U'}, 5), 'N')
	update = append(pgoutputtest.U16(update, 3), 'n', 't', 0, 0, 0, 0, 'u')
	var ev *cdc.Event
	for _, m := range [][]byte{pgoutputtest.Relation(5, "a", "b", "c"), pgoutputtest.Begin(200), update} {
		var err error
		if ev, err = d.Decode(m, 1); err != nil {
			t.Fatal(err)
		}
	}
	v := ev.Row.Values
	if v[0].Bytes != nil || v[0].Unchanged {
		t.Errorf("NULL is %+v", v[0])
	}
	if v[1].Bytes == nil || len(v[1].Bytes) != 0 || v[1].Unchanged {
		t.Errorf("the empty value is %+v", v[1])
	}
	if v[2].Bytes != nil || !v[2].Unchanged {
		t.Errorf("the unchanged value is %+v", v[2])
	}
	if ev.Old.Relation != nil || !ev.Time.Equal(pgoutputtest.At) {
		t.Errorf("event %+v", ev)
	}
}

func TestDecodingRowsDoesNotAllocate(t *testing.T) {
	d := NewDecoder(0, nil, wanted("p", func(cdc.LSN) {}))
	if _, err := d.Decode(pgoutputtest.Relation(5, "a", "b", "c"), 0); err != nil {
		t.Fatal(err)
	}
	pos := cdc.LSN(100)
	insert, logical := pgoutputtest.Insert(5, "1", "two", strings.Repeat("3", 300)), msgLogical(1, "p", "content")
	begin, commit := pgoutputtest.Begin(0), pgoutputtest.Commit(0, 0)
	if n := testing.AllocsPerRun(1000, func() {
		pos += 100
		binary.BigEndian.PutUint64(begin[1:], uint64(pos))
		binary.BigEndian.PutUint64(commit[2:], uint64(pos))
		binary.BigEndian.PutUint64(commit[10:], uint64(pos+50))
		for _, m := range [][]byte{begin, insert, insert, logical, commit} {
			if _, err := d.Decode(m, pos); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations a transaction, want none", n)
	}
}

// FuzzDecode feeds sequences of messages, each behind its length in two bytes.
func FuzzDecode(f *testing.F) {
	for _, version := range testenv.Versions {
		var seed []byte
		for _, m := range recording(f, version) {
			if len(m.data) > 300 {
				continue
			}
			if seed = append(pgoutputtest.U16(seed, len(m.data)), m.data...); len(seed) > 1000 {
				f.Add(seed)
				seed = nil
			}
		}
	}
	for _, m := range [][]byte{pgoutputtest.Relation(5, "id"), pgoutputtest.Insert(5, "1"), pgoutputtest.Commit(1, 2), msgLogical(1, "p", "c"), {'Y', 0, 0, 0, 1, 'a', 0, 'b', 0}} {
		f.Add(append(pgoutputtest.U16(nil, len(m)), m...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := NewDecoder(0, nil, wanted("p", func(cdc.LSN) {}))
		for pos := cdc.LSN(1); len(data) >= 2; pos++ {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			m := data[2 : 2+n : 2+n]
			data = data[2+n:]
			open := d.InTx
			ev, err := d.Decode(m, pos)
			if err != nil {
				return // a session ends with its first error
			}
			if ev == nil {
				continue
			}
			if ev.Kind != cdc.Begin && !open {
				t.Fatalf("%s outside a transaction", ev.Kind)
			}
			for _, row := range []cdc.Row{ev.Row, ev.Old} {
				if row.Relation == nil {
					continue
				}
				if len(row.Values) != len(row.Relation.Columns) {
					t.Fatalf("%d values of %d columns", len(row.Values), len(row.Relation.Columns))
				}
				for _, v := range row.Values {
					if len(v.Bytes) > 0 && !within(v.Bytes, m) {
						t.Fatal("a value that is not a part of its message")
					}
				}
			}
		}
	})
}

func within(part, whole []byte) bool {
	p, w := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return p >= w && p+uintptr(len(part)) <= w+uintptr(len(whole))
}
