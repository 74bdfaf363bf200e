package badevent

import (
	"os"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/router"
)

// A halt counts only for a source that can give its event. The advice is that of the source: the WAL keeps a row or a message as it
// was written, and a source that polls reads the row again.
func TestAHaltOfAnotherSourceIsNone(t *testing.T) {
	wal := cdc.Identity{SystemID: "7", Timeline: 2, History: []cdc.Fork{{Timeline: 1, End: 1000}}, Database: "shop", Slot: "walpost"}
	polls := cdc.Identity{SystemID: "7", Timeline: 2, Database: "shop", Polled: &cdc.Polled{Strategy: "cursor"}}
	inWAL, inMessage := "An UPDATE or DELETE of the row changes nothing", "The WAL keeps the message as it was written"
	for name, c := range map[string]struct {
		found cdc.Identity
		halt  func(*checkpoint.Halt)
		want  string // in the hint; "" for no halt
	}{
		"of the WAL":                  {wal, func(*checkpoint.Halt) {}, inWAL},
		"of a message":                {wal, func(h *checkpoint.Halt) { h.Table = cdc.Messages("a.b").String() }, inMessage},
		"of an unknown table":         {wal, func(h *checkpoint.Halt) { h.Table = "" }, inWAL},
		"of a table that is polled":   {polls, func(h *checkpoint.Halt) { h.Slot, h.Commit = "", cdc.Numbered(2000) }, "Or update or delete the row."},
		"before a promotion":          {wal, func(h *checkpoint.Halt) { h.Timeline, h.Commit = 1, 999 }, inWAL},
		"behind the promotion":        {wal, func(h *checkpoint.Halt) { h.Timeline, h.Commit = 1, 1000 }, ""},
		"of a newer timeline":         {wal, func(h *checkpoint.Halt) { h.Timeline = 3 }, ""},
		"of another server":           {wal, func(h *checkpoint.Halt) { h.SystemID = "8" }, ""},
		"of another database":         {wal, func(h *checkpoint.Halt) { h.Database = "other" }, ""},
		"of another slot":             {wal, func(h *checkpoint.Halt) { h.Slot = "second" }, ""},
		"of a slot, and polled now":   {polls, func(*checkpoint.Halt) {}, ""},
		"of a table, and a slot now":  {wal, func(h *checkpoint.Halt) { h.Slot = "" }, ""},
		"before the start of the run": {wal, func(h *checkpoint.Halt) { h.Timeline, h.Commit = 1, 499 }, ""},
	} {
		h := &checkpoint.Halt{Token: "token", SystemID: "7", Timeline: 2, Database: "shop", Slot: "walpost", Commit: 2000, Row: 1, Table: "public.outbox"}
		c.halt(h)
		err := new(Poison).Halted(&Names{Found: c.found}, map[string]*checkpoint.Halt{h.Token: h}, nil, 500)
		if (err != nil) != (c.want != "") || !strings.Contains(fault.Hint(err), c.want) {
			t.Errorf("%s: %v, %s", name, err, fault.Hint(err))
		}
	}
}

// docs/repair.md shows the log line of a halt, with parts of its hint left out.
func TestTheHaltOfThePageIsThatOfAnEvent(t *testing.T) {
	page, err := os.ReadFile("../../../docs/repair.md")
	if err != nil {
		t.Fatal(err)
	}
	fault.SetOptions("--config walpost.yaml", "")
	defer fault.SetOptions("", "")
	problem := router.Problem{Option: "router.route.by.field", Rule: router.ValueSet, Message: "column aggregate_type is NULL, and the topic comes from it"}
	e := &Event{
		EventID: "00000000-0000-0000-0000-000000000003", Table: &cdc.Relation{Schema: "public", Name: "outbox"}, Commit: 0x16B3840, Row: 1,
		Token: "0-16B3840-1-0c77be12", Err: &router.RowError{LSN: 1, Problems: []router.Problem{problem}},
	}
	_, shown, _ := strings.Cut(strings.Join(strings.Fields(string(page)), " "), `{"level":"error",`)
	shown, _, _ = strings.Cut(shown, `,"in_flight"`)
	rest := `"err":"` + e.Error() + `","hint":"` + e.Hint() + `"`
	for _, part := range strings.Split(shown, "…") {
		_, after, found := strings.Cut(rest, strings.TrimSpace(part))
		if !found || part == "" {
			t.Errorf("the page has %q, and the line is %s", part, rest)
		}
		rest = after
	}
}
