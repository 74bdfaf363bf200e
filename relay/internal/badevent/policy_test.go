package badevent

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
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
