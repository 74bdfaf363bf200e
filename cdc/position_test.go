package cdc

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestAnLSNIsPrintedAsPostgresPrintsIt(t *testing.T) {
	for pos, text := range map[LSN]string{
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
		if got, err := ParseLSN(text); err != nil || got != pos {
			t.Errorf("%s is read as %d, %v; must be %d", text, uint64(got), err, uint64(pos))
		}
	}
}

// TestAnLSNIsReadAsPostgresReadsIt: the table agrees with SELECT '…'::pg_lsn on Postgres 15 (pg_lsn_in).
func TestAnLSNIsReadAsPostgresReadsIt(t *testing.T) {
	for text, pos := range map[string]LSN{
		"16/b374d848": 0x16_B374D848,
		"0/016B3748":  0x16B3748, // as 19 prints it
		"00000016/1":  0x16_00000001,
	} {
		if got, err := ParseLSN(text); err != nil || got != pos {
			t.Errorf("%s is read as %s, %v; must be %s", text, got, err, pos)
		}
	}
	for _, text := range []string{
		"", "/", "0", "0/", "/0", "0/0/0", "0-0", "G/0", "0/G", "0x1/2", "1/0x2", "+1/2", "1/+2", "-1/2", "1_0/2",
		" 1/2", "1/2 ", "1 /2", "1/ 2", "1/2 .", "1/2\n", "100000000/0", "0/100000000", "000000000/0", "0/000000000", "١/٢",
	} {
		got, err := ParseLSN(text)
		if err == nil || got != 0 || !strings.Contains(err.Error(), "not an LSN") {
			t.Errorf("%q is read as %s, %v", text, got, err)
		}
	}
}

func TestAnLSNIsTextInJSON(t *testing.T) {
	type T struct{ LSN, Next LSN }
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

func FuzzParseLSN(f *testing.F) {
	f.Add("16/B374D848")
	f.Add("0/0")
	f.Add("1/2 .")
	f.Fuzz(func(t *testing.T, text string) {
		pos, err := ParseLSN(text)
		if err != nil {
			return
		}
		if again, err := ParseLSN(pos.String()); err != nil || again != pos {
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

// A number is never shown as an LSN, nor read as one.
func TestAPositionIsShownAsWhatTheSourceMadeItOf(t *testing.T) {
	for text, pos := range map[string]Position{
		"0":                 0,
		"16/B374D848":       LSN(0x16_B374D848).Position(),
		"7FFFFFFF/FFFFFFFF": LSN(math.MaxInt64).Position(),
		"42":                Numbered(42),
		// The newest id before a server would run out of them.
		"9223372036854775807": Numbered(math.MaxInt64),
	} {
		if got := pos.String(); got != text {
			t.Errorf("%s is printed %s", text, got)
		}
		if got, err := ParsePosition(text); err != nil || got != pos {
			t.Errorf("%s is read as %s, %v", text, got, err)
		}
		value, err := json.Marshal(pos)
		if back := Position(7); err != nil || string(value) != `"`+text+`"` || json.Unmarshal(value, &back) != nil || back != pos {
			t.Errorf("%s is %s in JSON, %v, and read back as %s", text, value, err, back)
		}
	}
	for _, text := range []string{"", "/", "4/", "-1", "+1", "0x1", "1e3", "80000000/0", "9223372036854775808", "1 ", "2A"} {
		if got, err := ParsePosition(text); err == nil {
			t.Errorf("%q is read as %s", text, got)
		}
	}
	for number, key := range map[Position]string{Numbered(42): "position", LSN(42).Position(): "lsn"} {
		if got, _ := number.Log(); got != key {
			t.Errorf("%s is logged as %s, must be %s", number, got, key)
		}
	}
}

func TestThePositionsOfASourceAreInItsOrder(t *testing.T) {
	if Numbered(9) >= Numbered(10) || LSN(9).Position() >= LSN(10).Position() || Numbered(1) == 0 || Numbered(0) != 0 || LSN(0).Position() != 0 {
		t.Error("not in order")
	}
	if Numbered(9)+1 != Numbered(10) || Numbered(10).Number() != 10 || LSN(10).Position().LSN() != 10 {
		t.Error("another number")
	}
}

// One source never takes the position of another one for its own.
func TestAPositionMeansNothingToAnotherKindOfSource(t *testing.T) {
	for what, use := range map[string]func(){
		"a number as an LSN":    func() { Numbered(42).LSN() },
		"an LSN as a number":    func() { LSN(42).Position().Number() },
		"an LSN out of range":   func() { LSN(1 << 63).Position() },
		"a number out of range": func() { Numbered(1 << 63) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", what)
				}
			}()
			use()
		}()
	}
}
