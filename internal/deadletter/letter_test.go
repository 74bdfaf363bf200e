package deadletter

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

var committed = time.Date(2026, 3, 4, 5, 6, 7, 891234000, time.UTC)

// stored is a record as a consumer gets it.
func stored(rec *cdc.Record, partition int32, offset int64) *kgo.Record {
	out := &kgo.Record{Key: rec.Key, Value: rec.Value, Timestamp: rec.Time, Topic: rec.Topic, Partition: partition, Offset: offset}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

// through encodes a letter and decodes it.
func through(t *testing.T, l *Letter) *Letter {
	t.Helper()
	rec, err := l.Encode("dead")
	if err != nil {
		t.Fatal(err)
	}
	back, mark, err := Decode(stored(rec, 0, 0))
	if err != nil || mark != nil {
		t.Fatalf("%v, %+v", err, mark)
	}
	return back
}

// kinds are columns with texts that they can have.
var kinds = []struct {
	column cdc.Column
	texts  []string
}{
	{cdc.Column{TypeOID: 25, TypeName: "text", BaseName: "text"}, []string{"", "a", "ä€😀", "<&>\"\\\n\u2028", strings.Repeat("x", 3000)}},
	{cdc.Column{TypeOID: 1043, TypeMod: 24, TypeName: "varchar(20)", BaseName: "varchar", HasDefault: true, Default: "'x'::character varying"}, []string{"v"}},
	{cdc.Column{TypeOID: 3802, TypeName: "jsonb", BaseName: "jsonb"}, []string{`{"a": 1}`, `{"b": [1, "<x>"]}`}},
	{cdc.Column{TypeOID: 23, TypeName: "integer", BaseName: "int4", NotNull: true}, []string{"-7", "2147483647"}},
	{cdc.Column{TypeOID: 1700, TypeMod: 20<<16 | 14, TypeName: "numeric(20,10)", BaseName: "numeric"}, []string{"12.3000000000"}},
	{cdc.Column{TypeOID: 17, TypeName: "bytea", BaseName: "bytea"}, []string{`\x00ff5b`, `\x`}},
	{cdc.Column{TypeOID: 1184, TypeMod: 3, BaseTypeMod: 3, TypeName: "timestamp(3) with time zone", BaseName: "timestamptz"}, []string{"2024-02-29 12:34:56.1+00"}},
	{cdc.Column{TypeOID: 20001, TypeName: "mood", BaseName: "mood", EnumLabels: []string{"sad", "so so"}}, []string{"sad"}},
	{cdc.Column{TypeOID: 1007, TypeName: "integer[]", BaseName: "_int4", ElementType: 23, ElementName: "int4"}, []string{"{1,NULL,3}", "{}"}},
	{cdc.Column{TypeOID: 20002, TypeName: "flag", BaseType: 16, BaseName: "bool"}, []string{"t", "f"}},
}

// randomEvent is an insert, or an update, of a table with columns of every kind.
func randomEvent(rng *rand.Rand) *cdc.Event {
	rel := &cdc.Relation{ID: rng.Uint32(), Schema: "public", Name: "outbox", ReplicaIdentity: "dnfi"[rng.IntN(4)]}
	add := func(name string, c cdc.Column) {
		c.Name = name
		if c.TypeMod == 0 {
			c.TypeMod, c.BaseTypeMod = -1, -1
		}
		rel.Columns = append(rel.Columns, c)
	}
	add("id", cdc.Column{TypeOID: 2950, TypeName: "uuid", BaseName: "uuid", Key: true, NotNull: true, KeyPosition: 1})
	add("aggregate_type", kinds[0].column)
	add("aggregate_id", kinds[rng.IntN(5)].column)
	add("payload", kinds[rng.IntN(3)].column)
	add("x", kinds[rng.IntN(len(kinds))].column)
	value := func(c *cdc.Column) cdc.Value {
		if !c.NotNull && rng.IntN(4) == 0 {
			return cdc.Value{}
		}
		for i := range kinds {
			if kinds[i].column.TypeName == c.TypeName {
				return cdc.Value{Bytes: []byte(kinds[i].texts[rng.IntN(len(kinds[i].texts))])}
			}
		}
		return cdc.Value{Bytes: []byte(fmt.Sprintf("00000000-0000-0000-0000-%012d", rng.IntN(1000)))}
	}
	ev := &cdc.Event{Kind: cdc.Insert, LSN: cdc.LSN(rng.Uint64()), Time: committed.Add(time.Duration(rng.IntN(1e9)) * time.Microsecond)}
	row := func() cdc.Row {
		r := cdc.Row{Relation: rel}
		for i := range rel.Columns {
			r.Values = append(r.Values, value(&rel.Columns[i]))
		}
		return r
	}
	ev.Row = row()
	if ev.Row.Values[1].Bytes != nil && rng.IntN(3) > 0 {
		ev.Row.Values[1].Bytes = []byte("order")
	}
	if rng.IntN(3) == 0 {
		ev.Kind, ev.Old = cdc.Update, row()
		if rng.IntN(2) == 0 {
			ev.Row.Values[3] = cdc.Value{Unchanged: true}
		}
	}
	return ev
}

// A row comes back from its letter as it was, so every router makes the same of it.
func TestARowIsTheSameAfterALetter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		ev := randomEvent(rng)
		if back := through(t, &Letter{Token: "t", CommitTime: ev.Time, Event: ev}).Event; !reflect.DeepEqual(ev, back) {
			t.Fatalf("%+v\n%+v", ev, back)
		}
	}
}

// Letters stay in the topic for years, so a row has the same text in every version.
func TestTheTextOfARow(t *testing.T) {
	rel := &cdc.Relation{ID: 16390, Schema: "public", Name: "outbox", ReplicaIdentity: 'f', Columns: []cdc.Column{
		{Name: "id", TypeOID: 20, TypeMod: -1, Key: true},
		{
			Name: "all", TypeOID: 1, TypeMod: 2, Key: true, NotNull: true, KeyPosition: 3, Generated: true, Identity: "a", HasDefault: true, Default: "'<x>'",
			TypeName: "t", BaseType: 4, BaseTypeMod: 5, BaseName: "b", ElementType: 6, ElementName: "e", EnumLabels: []string{"l"}, ElementLabels: []string{"m"},
		},
	}}
	ev := &cdc.Event{Kind: cdc.Update, LSN: 0x16B3748, Time: committed, Row: cdc.Row{Relation: rel, Values: []cdc.Value{{Bytes: []byte("7")}, {Unchanged: true}}}}
	ev.Old = cdc.Row{Relation: rel, Values: []cdc.Value{{}, {Bytes: []byte("\xff")}}}
	const want = `{"kind":"update","lsn":"0/16B3748","commit_time":"2026-03-04T05:06:07.891234Z","relation":{"oid":16390,"schema":"public","name":"outbox",` +
		`"replica_identity":"f","columns":[{"name":"id","type_oid":20,"typmod":-1,"key":true},` +
		`{"name":"all","type_oid":1,"typmod":2,"key":true,"not_null":true,"key_position":3,"generated":true,"identity":"a","has_default":true,"default":"'<x>'",` +
		`"type":"t","base_type_oid":4,"base_typmod":5,"base_name":"b","element_type_oid":6,"element_name":"e","enum_labels":["l"],"element_labels":["m"]}]},` +
		`"values":["7",{"unchanged":true}],"old":[null,{"base64":"/w=="}]}`
	if got := string(encoded(t, &Letter{Token: "t", CommitTime: ev.Time, Event: ev}).Value); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A message comes back from its letter byte for byte, also if its content is no text, which JSON would change.
func TestAMessageIsTheSameAfterALetter(t *testing.T) {
	for _, content := range []string{`{"id":"u-1","aggregate_type":"order","aggregate_id":"k","payload":1,"x":"<"}`, "{", "", "a\xff\xfe", "\x00"} {
		ev := &cdc.Event{Kind: cdc.Message, LSN: 0x16B3748, Time: committed, Row: cdc.Row{Relation: cdc.Messages("outbox"), Values: []cdc.Value{{Bytes: []byte(content)}}}}
		back := through(t, &Letter{Token: "t", CommitTime: ev.Time, Event: ev}).Event
		if !reflect.DeepEqual(ev, back) {
			t.Errorf("%+v\n%+v", ev, back)
		}
	}
}

func TestALetterIsOfOneRelay(t *testing.T) {
	for _, c := range []struct {
		name, database string // in the letter
		own, in        string
		is             bool
	}{
		{"a.walpost", "a", "a.walpost", "a", true},
		{"a.walpost_2", "a", "a.walpost", "a", false},
		{"b.walpost", "b", "a.walpost", "a", false},
		{"x", "b", "x", "a", false},
		{"x", "b", "x", "", true},
		{"x", "b", "", "", false},
	} {
		if l := (&Letter{Name: c.name, Database: c.database}); l.IsOf(c.own, c.in) != c.is {
			t.Errorf("%+v", c)
		}
	}
}

func encoded(t *testing.T, l *Letter) *cdc.Record {
	t.Helper()
	rec, err := l.Encode("dead")
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestALetterComesBackWhole(t *testing.T) {
	full := Letter{
		Name: "shop", Database: "d", SystemID: "7", Timeline: 3, TableID: 9,
		Token: "16-B374D848-3-0a1b2c3d", Reason: cdc.TooLarge, Error: "MESSAGE_TOO_LARGE", Table: "public.outbox", ID: "u-1",
		Commit: 0x16_B374D848, Row: 3, CommitTime: committed, Topic: "outbox.event.order", Partition: 7, Attempts: 2, Version: "1.2.3",
		Key: []byte("k"), KeyKnown: true,
	}
	full.Record = &cdc.Record{
		Topic: full.Topic, Partition: 7, Key: full.Key, Value: []byte("v"), Time: committed.Add(-time.Hour).Truncate(time.Millisecond),
		Committed: committed, EventID: "u-1", Headers: []cdc.Header{{Key: "id", Value: []byte("u-1")}, {Key: "null"}, {Key: "", Value: []byte{}}},
	}
	claimed := *full.Record
	claimed.Claim = &cdc.Claim{Key: "k"}
	waiting := full
	if waiting.Record = &claimed; !encoded(t, &waiting).Waits() {
		t.Error("the letter does not wait for the payload")
	}
	least := Letter{Token: "t", Partition: -1, Attempts: 1, CommitTime: committed, KeyKnown: true}
	least.Record = &cdc.Record{Partition: -1, Time: time.UnixMilli(0).UTC(), Committed: committed}
	for name, l := range map[string]Letter{"full": full, "least": least} {
		if back := through(t, &l); !reflect.DeepEqual(back, &l) {
			t.Errorf("%s:\n%+v %+v\n%+v %+v", name, l, l.Record, *back, back.Record)
		}
	}
}

// The record's own headers stay, even if they are those of a letter of a letter.
func TestHeadersThatLookLikeALettersStay(t *testing.T) {
	inner := Letter{Token: "inner", Topic: "a", Partition: -1, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{Value: []byte("v")}}
	for range 3 {
		rec, err := inner.Encode("dead")
		if err != nil {
			t.Fatal(err)
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: hToken, Value: []byte("false")}, cdc.Header{Key: hCount, Value: []byte("9")})
		outer := Letter{Token: "outer", Partition: -1, Attempts: 1, KeyKnown: true, Key: rec.Key, Record: rec}
		back := through(t, &outer)
		if !reflect.DeepEqual(back.Record.Headers, rec.Headers) || back.Token != "outer" || back.Topic != "" {
			t.Fatalf("%+v\n%+v", back.Record.Headers, rec.Headers)
		}
		inner = outer
	}
}

// Letters without a key come into the partition of their token, where their mark follows them.
func TestALetterWithoutAKeyHasItsTokenAsKey(t *testing.T) {
	for _, l := range []Letter{
		{Token: "t", KeyKnown: true, Partition: -1, Record: &cdc.Record{}},
		{Token: "t", Partition: -1, Event: randomEvent(rand.New(rand.NewPCG(3, 4)))},
	} {
		rec, err := l.Encode("dead")
		if err != nil || string(rec.Key) != "t" {
			t.Fatalf("key %q, %v", rec.Key, err)
		}
		if back := through(t, &l); back.Key != nil || back.KeyKnown != l.KeyKnown {
			t.Errorf("%q, known %t", back.Key, back.KeyKnown)
		}
	}
	empty := Letter{Token: "t", Key: []byte{}, KeyKnown: true, Partition: -1, Record: &cdc.Record{}}
	if back := through(t, &empty); back.Key == nil || !back.KeyKnown {
		t.Error("an empty key is not a null one")
	}
}

func TestAnErrorIsCutBetweenCharacters(t *testing.T) {
	l := Letter{Token: "t", Error: strings.Repeat("€", 2000), KeyKnown: true, Partition: -1, Record: &cdc.Record{}}
	if text := through(t, &l).Error; len(text) > maxError || len(text) < maxError-3 || !utf8.ValidString(text) {
		t.Errorf("%d bytes, ends in %q", len(text), text[len(text)-5:])
	}
}

func TestOtherRecordsAreForeign(t *testing.T) {
	for _, headers := range [][]kgo.RecordHeader{
		nil,
		{{Key: "id", Value: []byte("1")}},
		{{Key: hCount, Value: []byte("5")}},
		{{Key: hToken, Value: []byte("t")}, {Key: hCount, Value: []byte("x")}},
		{{Key: "other", Value: []byte("t")}, {Key: hCount, Value: []byte("2")}},
	} {
		if _, _, err := Decode(&kgo.Record{Headers: headers}); !errors.Is(err, ErrForeign) {
			t.Errorf("%v: %v", headers, err)
		}
	}
}

// FuzzDecode: no record makes Decode panic, and what it reads is written the same way.
func FuzzDecode(f *testing.F) {
	seed := func(l Letter) {
		rec, err := l.Encode("dead")
		if err != nil {
			f.Fatal(err)
		}
		var flat []byte
		for _, h := range rec.Headers {
			flat = append(flat, h.Key+"\x00"+string(h.Value)+"\x01"...)
		}
		f.Add(rec.Key, rec.Value, flat)
	}
	seed(Letter{Token: "t", Partition: 3, Row: 1, Commit: 5, CommitTime: committed, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{Value: []byte("v")}})
	seed(Letter{Token: "t", Partition: -1, Event: randomEvent(rand.New(rand.NewPCG(1, 2)))})
	f.Add([]byte("k"), []byte{}, []byte(hMark+"\x00dropped\x01"+hToken+"\x00t\x01"+hCount+"\x003\x01"))
	f.Fuzz(func(t *testing.T, key, value, flat []byte) {
		rec := &kgo.Record{Key: key, Value: value}
		for _, part := range bytes.Split(flat, []byte{1}) {
			if k, v, ok := bytes.Cut(part, []byte{0}); ok {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: string(k), Value: v})
			}
		}
		l, m, err := Decode(rec)
		if err != nil {
			if l != nil || m != nil {
				t.Fatal("a value beside an error")
			}
			return
		}
		if m != nil {
			return
		}
		again, err := l.Encode("dead")
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := Decode(stored(again, 0, 0))
		if err != nil || back.Token != l.Token || back.Attempts != l.Attempts || back.Form() != l.Form() || back.KeyKnown != l.KeyKnown {
			t.Fatalf("%+v\n%+v, %v", l, back, err)
		}
	})
}
