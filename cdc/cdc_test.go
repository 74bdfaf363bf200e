package cdc

import (
	"strings"
	"testing"
)

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
	if got, want := r.Size(), recordOverhead+6+2+7+(4+2+3)+(4+7); got != want {
		t.Errorf("size is %d, must be %d", got, want)
	}
	if got := new(Record).Size(); got != recordOverhead {
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
