package cdc

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestAPositionIsPrintedAsPostgresPrintsIt(t *testing.T) {
	for pos, text := range map[Position]string{
		0:                  "0/0",
		1:                  "0/1",
		0x16B3748:          "0/16B3748",
		0x16_B374D848:      "16/B374D848",
		0x16_00000001:      "16/1",
		math.MaxUint32:     "0/FFFFFFFF",
		math.MaxUint32 + 1: "1/0",
		math.MaxUint64:     "FFFFFFFF/FFFFFFFF",
	} {
		if got := pos.String(); got != text {
			t.Errorf("%d is printed %s, must be %s", uint64(pos), got, text)
		}
		if got, err := ParsePosition(text); err != nil || got != pos {
			t.Errorf("%s is read as %d, %v; must be %d", text, uint64(got), err, uint64(pos))
		}
	}
}

// TestAPositionIsReadAsPostgresReadsIt: the table agrees with SELECT '…'::pg_lsn on Postgres 15 (pg_lsn_in).
func TestAPositionIsReadAsPostgresReadsIt(t *testing.T) {
	for text, pos := range map[string]Position{
		"16/b374d848": 0x16_B374D848,
		"0/016B3748":  0x16B3748, // as 19 prints it
		"00000016/1":  0x16_00000001,
	} {
		if got, err := ParsePosition(text); err != nil || got != pos {
			t.Errorf("%s is read as %s, %v; must be %s", text, got, err, pos)
		}
	}
	for _, text := range []string{
		"", "/", "0", "0/", "/0", "0/0/0", "0-0", "G/0", "0/G", "0x1/2", "1/0x2", "+1/2", "1/+2", "-1/2", "1_0/2",
		" 1/2", "1/2 ", "1 /2", "1/ 2", "1/2 .", "1/2\n", "100000000/0", "0/100000000", "000000000/0", "0/000000000", "١/٢",
	} {
		got, err := ParsePosition(text)
		if err == nil || got != 0 || !strings.Contains(err.Error(), "not an LSN") {
			t.Errorf("%q is read as %s, %v", text, got, err)
		}
	}
}

func TestAPositionIsTextInJSON(t *testing.T) {
	type T struct{ LSN, Next Position }
	value, err := json.Marshal(T{LSN: 0x16_B374D848})
	if want := `{"LSN":"16/B374D848","Next":"0/0"}`; err != nil || string(value) != want {
		t.Errorf("%s, %v; must be %s", value, err, want)
	}
	var back T
	if err := json.Unmarshal(value, &back); err != nil || back.LSN != 0x16_B374D848 || back.Next != 0 {
		t.Errorf("read as %+v, %v", back, err)
	}
	for _, bad := range []string{`{"LSN":5}`, `{"LSN":"5"}`, `{"LSN":true}`} {
		back := T{LSN: 7}
		if err := json.Unmarshal([]byte(bad), &back); err == nil || back.LSN != 7 {
			t.Errorf("%s is read as %+v", bad, back)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add("16/B374D848")
	f.Add("0/0")
	f.Add("1/2 .")
	f.Fuzz(func(t *testing.T, text string) {
		pos, err := ParsePosition(text)
		if err != nil {
			return
		}
		if again, err := ParsePosition(pos.String()); err != nil || again != pos {
			t.Fatalf("%q is %s, which is %s, %v", text, pos, again, err)
		}
		// Nothing but digits of either case with leading zeros may be taken.
		high, low, _ := strings.Cut(strings.ToUpper(text), "/")
		trim := func(s string) string {
			if s = strings.TrimLeft(s, "0"); s == "" {
				return "0"
			}
			return s
		}
		if plain := trim(high) + "/" + trim(low); plain != pos.String() {
			t.Fatalf("%q is read as %s", text, pos)
		}
	})
}

func TestEveryKindHasAName(t *testing.T) {
	seen := map[string]bool{}
	for k := Idle; k <= Commit; k++ {
		name := k.String()
		if name == "" || strings.HasPrefix(name, "Kind(") || seen[name] {
			t.Errorf("kind %d is called %q", uint8(k), name)
		}
		seen[name] = true
	}
	for _, k := range []Kind{0, Commit + 1} { // the zero Event is none
		if got := k.String(); !strings.HasPrefix(got, "Kind(") {
			t.Errorf("kind %d is called %q", uint8(k), got)
		}
	}
}

func TestASizeCountsWhatADeliveryHolds(t *testing.T) {
	r := Record{
		Topic: "orders", Key: []byte("42"), Value: []byte("payload"),
		Headers: []Header{{Key: "id", Value: []byte("7f3")}, {Key: "nothing"}},
		EventID: "7f3", Partition: -1,
	}
	if got, want := r.Size(), RecordOverhead+6+2+7+(4+2+3)+(4+7); got != want {
		t.Errorf("size is %d, must be %d", got, want)
	}
	if got := new(Record).Size(); got != RecordOverhead {
		t.Errorf("an empty record has size %d: a window of bytes must count it too", got)
	}
}

func TestAColumnIsFoundByItsExactName(t *testing.T) {
	r := &Relation{Schema: "public", Name: "outbox", Columns: []Column{{Name: "id"}, {Name: "Id"}, {Name: "payload"}}}
	for name, want := range map[string]int{"id": 0, "Id": 1, "ID": -1, "payload": 2, "": -1} {
		if got := r.Index(name); got != want {
			t.Errorf("column %q is at %d, must be %d", name, got, want)
		}
	}
	if got := r.String(); got != "public.outbox" {
		t.Errorf("it is called %q", got)
	}
}
