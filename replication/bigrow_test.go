package replication

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// allocated is how many bytes were allocated so far, whether or not they are in use: an upper bound of what do needs at once.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A row costs one buffer of its size, although it is far bigger than the usual buffer, and the buffer is freed when the next event is
// asked for, also where none comes or a part of the next message is here already.
func TestABigRowCostsItsSizeOnce(t *testing.T) {
	const size = 64 << 20
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	s := w.stream(0)
	defer w.close(s)
	insert := func(payload string) string {
		return "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'made', " + payload + ")"
	}
	w.exec(insert("to_jsonb('small'::text)"))
	w.until(s, "aggregate_id", committed(1))
	before := inUse()

	small := make([]string, 200)
	for i := range small {
		small[i] = insert("to_jsonb('small'::text)")
	}
	w.exec("BEGIN;" + insert(fmt.Sprintf("to_jsonb(repeat('x', %d))", size)) + ";" + strings.Join(small, ";") + "; COMMIT")
	took := allocated(func() {
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
			return ev.Kind == cdc.Insert && len(ev.Row.Values[ev.Row.Relation.Index("payload")].Bytes) > size
		})
	})
	if took < size || took > size+size/8 {
		t.Errorf("%d bytes were allocated for a row of %d", took, size)
	}
	w.until(s, "aggregate_id", committed(1))
	for range 2 { // nothing more comes
		if _, err := s.Next(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if after := inUse(); after > before+size/8 {
		t.Errorf("%d bytes are in use after the row, %d before", after, before)
	}
}

// A part of the next message behind a big one does not keep the big buffer.
func TestTheBigBufferGoesWhileTheNextMessageIsHereInPart(t *testing.T) {
	s, w := connectFake(t, testConfig(), nil)
	startFake(t, s, w)
	rows := transaction(200, strings.Repeat("x", 3*bufferSize))
	next := transaction(300, "small")
	go w.send(append(rows, next[:10]...))
	events(t, s, 1)
	row, err := s.Next(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	big := weak.Make(&row.Row.Values[0].Bytes[0])
	events(t, s, 1)
	if _, err := s.Next(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := len(s.wire.buf); n != bufferSize {
		t.Errorf("the buffer has %d bytes", n)
	}
	if runtime.GC(); big.Value() != nil {
		t.Error("the newest row is still referred to")
	}
	go w.send(next[10:])
	if got := events(t, s, 3); string(got[1].Row.Values[0].Bytes) != "small" {
		t.Error("the next row differs")
	}
}
