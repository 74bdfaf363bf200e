package backfill

import (
	"fmt"
	"os"
	"testing"

	"github.com/walpost/walpost/cdc"
)

func rowOf(rel *cdc.Relation, values ...string) *cdc.Row {
	row := &cdc.Row{Relation: rel}
	for _, v := range values {
		if v == "NULL" {
			row.Values = append(row.Values, cdc.Value{})
		} else {
			row.Values = append(row.Values, cdc.Value{Bytes: []byte(v)})
		}
	}
	return row
}

// A set knows its rows and no other, in memory and on disk, and leaves no file behind.
func TestARowSetKnowsItsRows(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	rel := &cdc.Relation{Schema: "public", Name: "outbox", Columns: []cdc.Column{{Name: "id", Key: true}, {Name: "payload"}}}
	for _, rows := range []int{0, 1, 599, 600, 601, 1200, 5000} {
		s := newRowSet()
		s.max = 600 // no multiple of a block
		for i := range rows {
			if err := s.add(rowOf(rel, fmt.Sprint(i%4000), "x")); err != nil {
				t.Fatal(err)
			}
		}
		if want := max(0, (rows-1)/600); len(s.runs) != want {
			t.Errorf("%d rows: %d runs on disk, must be %d", rows, len(s.runs), want)
		}
		for i := range 6000 {
			has, err := s.has(rowOf(rel, fmt.Sprint(i), "changed"))
			if err != nil || has != (i < min(rows, 4000)) {
				t.Fatalf("%d rows: row %d is there: %t, %v", rows, i, has, err)
			}
		}
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("%d rows: %v in the temporary directory, %v", rows, left, err)
		}
		s.Close()
	}
}

func TestWhichRowsAreTheSame(t *testing.T) {
	keyed := func(schema, name string, key bool) *cdc.Relation {
		return &cdc.Relation{Schema: schema, Name: name, Columns: []cdc.Column{{Name: "id", Key: key}, {Name: "payload"}}}
	}
	with, without := keyed("public", "outbox", true), keyed("public", "outbox", false)
	for _, c := range []struct {
		what string
		a, b *cdc.Row
		same bool
	}{
		{"the key alone", rowOf(with, "1", "x"), rowOf(with, "1", "y"), true},
		{"another key", rowOf(with, "1", "x"), rowOf(with, "2", "x"), false},
		{"another table", rowOf(with, "1", "x"), rowOf(keyed("public", "other", true), "1", "x"), false},
		{"another schema", rowOf(with, "1", "x"), rowOf(keyed("other", "outbox", true), "1", "x"), false},
		{"no key", rowOf(without, "1", "x"), rowOf(without, "1", "x"), true},
		{"no key, and changed", rowOf(without, "1", "x"), rowOf(without, "1", "y"), false},
		{"no key, with a NULL", rowOf(without, "1", "NULL"), rowOf(without, "1", ""), false},
		{"another key of the table", rowOf(with, "1", "x"), rowOf(without, "1", "x"), false},
		{"the border of two values", rowOf(without, "1x", ""), rowOf(without, "1", "x"), false},
	} {
		s := newRowSet()
		if err := s.add(c.a); err != nil {
			t.Fatal(err)
		}
		if has, err := s.has(c.b); err != nil || has != c.same {
			t.Errorf("%s: the same %t, %v", c.what, has, err)
		}
	}
}
