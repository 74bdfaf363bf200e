package parking

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/deadletter"
)

// A relay is told what is parked of its rows under other names, and not what is parked of other rows.
func TestTheOtherNamesOfTheSameRows(t *testing.T) {
	for _, c := range []struct {
		relay, system, database, table string
		is                             bool
	}{
		{"a.before", "7", "a", "public.outbox", true},
		{"a.walpost", "7", "a", "public.outbox", false},
		{"a.before", "8", "a", "public.outbox", false},
		{"a.before", "7", "b", "public.outbox", false},
		{"a.before", "7", "a", "public.other", false},
	} {
		o := Others{Name: "a.walpost", SystemID: "7", Database: "a", Tables: []string{"public.outbox"}}
		o.Add(Item{Letter: &deadletter.Letter{Name: c.relay, SystemID: c.system, Database: c.database, Table: c.table, Token: "t", Key: []byte("k")}})
		text := ""
		for _, s := range o.Strangers() {
			text += fmt.Sprintf("%d %d %s", s.Keys, s.Events, s.Relay)
		}
		if is := text == "1 1 "+c.relay; is != c.is || !is && text != "" {
			t.Errorf("%+v: %q", c, text)
		}
		o.Add(Item{Mark: &deadletter.Mark{State: deadletter.Dropped, Name: c.relay, Token: "t"}, Offset: 1})
		if left := o.Strangers(); len(left) > 0 {
			t.Errorf("%+v: dropped, and %v", c, left)
		}
	}
	if hint := (Stranger{Relay: "a.before"}).Hint(); !strings.Contains(hint, "set name: a.before again") || strings.Contains(hint, "--relay=") {
		t.Error(hint)
	}
	var none *Others
	if none.Add(Item{}); none.Strangers() != nil {
		t.Error("nobody looks, and there are strangers")
	}
}
