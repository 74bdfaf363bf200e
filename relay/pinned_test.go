package relay

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay/internal/recent"
)

// A payloadRouter makes records as the real router does: the event id is a part of the record's only buffer.
type payloadRouter struct {
	benchRouter
	made []weak.Pointer[byte]
}

func (r *payloadRouter) Route(_ *cdc.Event, rec *cdc.Record) (bool, error) {
	n := len(r.made)
	buf := fmt.Appendf(make([]byte, 0, 1<<16), "id-%d", n)
	*rec = cdc.Record{
		Topic: "t", Key: buf, Value: buf[:cap(buf)], EventID: unsafe.String(&buf[0], len(buf)),
		Headers: []cdc.Header{{Key: "id", Value: buf}},
	}
	r.made = append(r.made, weak.Make(&buf[0]))
	return true, nil
}

// held is how many payloads are still in memory.
func (r *payloadRouter) held() (n int) {
	runtime.GC()
	for _, p := range r.made {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// A pausingSource does not commit its last transaction, and calls idle for ever instead.
type pausingSource struct {
	benchSource
	idle func()
}

func (s *pausingSource) Open(context.Context, bool, bool) (Session, error) { return s, nil }

func (s *pausingSource) Next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	if s.n == 1 && s.row == s.rows {
		s.idle()
		return &cdc.Event{Kind: cdc.Idle}, nil
	}
	return s.benchSource.Next(ctx, wait)
}

// Nothing of a record stays in memory once it is delivered, also in the middle of a transaction: neither the list of the newest
// events nor the place in the transaction may refer to the record's bytes.
func TestADeliveredPayloadIsFreed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := &pausingSource{benchSource: benchSource{n: 3, rows: 20, row: -1, pos: 16, vals: [1]cdc.Value{{Bytes: []byte("x")}}}}
	router := &payloadRouter{}
	cfg := DefaultConfig()
	cfg.Name = "shop"
	r := New(cfg, src, router, &benchSink{wake: make(chan struct{}, 1)}, benchStore{})
	looked := false
	src.idle = func() {
		if st := r.Status(); looked || st.Events < 60 || len(st.Recent["t"]) != recent.PerTopic {
			return
		} else if newest := st.Recent["t"][0].EventID; newest != "id-59" {
			t.Errorf("the newest event is %q", newest)
		}
		looked = true
		if n := router.held(); n > 0 {
			t.Errorf("%d of 60 payloads are in memory after their delivery", n)
		}
		cancel()
	}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !looked {
		t.Fatal("not all events were delivered")
	}
}
