package pgoutput

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/replication/internal/pgoutput/pgoutputtest"
)

// BenchmarkRow says why walpost decodes rows itself: pglogrepl's decoder copies each column.
func BenchmarkRow(b *testing.B) {
	row := pgoutputtest.Insert(5, "6f0c1a8e-0000-4000-8000-000000000001", "orders", "17", "OrderPlaced", strings.Repeat("v", 300))
	b.Run("walpost", func(b *testing.B) {
		d := NewDecoder(100, nil, Messages{})
		for _, m := range [][]byte{pgoutputtest.Begin(200), pgoutputtest.Relation(5, "id", "aggregatetype", "aggregateid", "type", "payload")} {
			if _, err := d.Decode(m, 150); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			if ev, err := d.Decode(row, 150); err != nil || ev.Kind != cdc.Insert {
				b.Fatal(ev, err)
			}
		}
	})
	b.Run("pglogrepl", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if m, err := pglogrepl.Parse(row); err != nil || m.Type() != pglogrepl.MessageTypeInsert {
				b.Fatal(m, err)
			}
		}
	})
}

// The other reason: a connection that is cut, or a server that is none, must be an error. If pglogrepl learns that, the comment
// of Decoder is out of date.
func TestPglogreplPanicsOnAShortRow(t *testing.T) {
	row := pgoutputtest.Insert(5, "1", "a")
	defer func() {
		if recover() == nil {
			t.Error("pglogrepl's decoder does not panic any more: does walpost still need its own?")
		}
	}()
	for n := 1; n < len(row); n++ {
		_, _ = pglogrepl.Parse(row[:n])
	}
}
