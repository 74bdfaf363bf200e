package verify

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	ipg "github.com/walpost/walpost/internal/pg"
)

// polls makes the world one whose relay polls the table, and has delivered everything below *at.
func (w *world) polls(at *Reached) {
	w.runs = false
	w.cfg.Slot = "nobodys"
	w.exec("ALTER TABLE outbox ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id()")
	w.cfg.From.Names.Publication = ""
	w.cfg.Polled = &Polled{
		XIDColumn: "xid",
		Reached:   func(context.Context) (Reached, error) { return *at, nil },
		Refused:   func(context.Context) (string, error) { return "", nil },
		Stalled:   func(context.Context, cdc.Position) (string, error) { return "a reason", nil },
	}
}

// transaction is the id of the transaction that wrote a row.
func (w *world) transaction(id string) cdc.Position {
	w.Helper()
	n, err := strconv.ParseUint(w.pg.Value(w.T, w.dsn, "SELECT xid::text FROM outbox WHERE id = '"+id+"'"), 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	return cdc.Numbered(n)
}

// Without a slot, the position of the checkpoint says which rows must have a record.
func TestThePositionOfAPollingRelayDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	var at Reached
	w.polls(&at)
	for _, id := range []string{"a", "b", "c", "d"} {
		w.insert(id + " plain k " + id)
	}
	w.send(w.records()[0])
	impatient := func(o *Options) { o.Wait = 10 * time.Millisecond }

	at = Reached{Unknown: "no checkpoint"}
	r := w.verify(impatient)
	w.wants(r, 0, "not_confirmed b -1", "not_confirmed c -1", "not_confirmed d -1")
	if r.NotConfirmed != "no checkpoint" {
		t.Errorf("it says %q", r.NotConfirmed)
	}

	at = Reached{Position: w.transaction("c")}
	r = w.verify(impatient)
	w.wants(r, 0, "missing b -1", "not_confirmed c -1", "not_confirmed d -1")
	if want := fmt.Sprintf("rows of transaction %s were read (a reason)", w.transaction("d")); !strings.Contains(r.NotConfirmed, want) {
		t.Errorf("it says %q", r.NotConfirmed)
	}

	// What a border sees is delivered, also above the position.
	d := w.transaction("d")
	at.Border = cdc.Snapshot{XMin: at.Position.Number(), XMax: d.Number() + 1, Open: []uint64{w.transaction("c").Number()}}
	w.wants(w.verify(impatient), 0, "missing b -1", "not_confirmed c -1", "missing d -1")

	// verify waits while the relay comes further.
	at = Reached{Position: cdc.Numbered(3)}
	w.wants(w.verify(func(o *Options) {
		o.Say = func(text string) {
			if strings.HasPrefix(text, fmt.Sprintf("waiting until the relay has delivered transaction %s", d)) {
				at.Position = d + 1
			}
		}
	}), 0, "missing b -1", "missing c -1", "missing d -1")

	// The bound of a first start is compared with the transactions of the column.
	w.cfg.Bound = ipg.Bound{System: w.pg.Value(w.T, w.dsn, "SELECT system_identifier::text FROM pg_control_system()"), XID: w.transaction("c").Number()}
	w.exec("UPDATE outbox SET payload = 'b2' WHERE id = 'b'")
	if r = w.verify(impatient); r.LeftOut != 1 {
		t.Errorf("%+v", r)
	}
	w.wants(r, 0, "missing c -1", "missing d -1")
	w.cfg.Bound = ipg.Bound{}

	// A position of another history says nothing.
	w.cfg.Polled.Refused = func(context.Context) (string, error) { return "another history", nil }
	w.wants(w.verify(), 0, "not_confirmed b -1", "not_confirmed c -1", "not_confirmed d -1")
	w.cfg.Polled.Refused = func(context.Context) (string, error) { return "", nil }
	w.cfg.Unfinished = func(context.Context) (string, error) { return "a recover", nil }
	w.wants(w.verify(), 0, "not_confirmed b -1", "not_confirmed c -1", "not_confirmed d -1")
}

// The order of a key is that of the column, also if the transaction with the lower number committed last.
func TestTheColumnIsTheOrderOfAPolledTable(t *testing.T) {
	t.Parallel()
	for _, commits := range []string{"on", "off"} {
		w := newWorld(t, commits)
		at := Reached{Position: cdc.Numbered(1 << 40)}
		w.polls(&at)
		w.insert("a plain k 1", "b plain k 2")
		w.exec("UPDATE outbox SET seq = DEFAULT WHERE id = 'a'") // behind b
		all := w.records()
		all[1].Timestamp = all[0].Timestamp.Add(-2 * time.Second)
		w.send(all...)
		w.wants(w.verify(), 0)
	}
}

// A row can have any id, such as one of another server.
func TestARowOfAnUnknownTransactionIsNotDelivered(t *testing.T) {
	at := Reached{Position: cdc.Numbered(5), Border: cdc.Snapshot{XMin: 7, XMax: 7}}
	for xid, want := range map[uint64]bool{4: true, 6: true, 7: false, 1 << 63: false, math.MaxUint64: false} {
		if got := at.has(xid); got != want {
			t.Errorf("%d: %v", xid, got)
		}
	}
}
