package sink

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// payloads makes records as the router does: the event id is a part of the record's only buffer.
type payloads []weak.Pointer[byte]

func (p *payloads) record(topic, id string, size int) *cdc.Record {
	buf := testenv.Incompressible(max(size, len(id)))
	copy(buf, id)
	*p = append(*p, weak.Make(&buf[0]))
	return &cdc.Record{
		Topic: topic, Key: buf[:len(id):len(id)], Value: buf, Partition: -1, EventID: unsafe.String(&buf[0], len(id)),
		Committed: time.Now(), Time: time.UnixMilli(1_700_000_000_000),
	}
}

// held is how many of the payloads are still in memory.
func (p payloads) held() (n int) {
	runtime.GC()
	for _, made := range p {
		if made.Value() != nil {
			n++
		}
	}
	return n
}

// Nothing of a record stays in memory once its Ack is taken and dropped. An Ack with an error may be kept, without
// its Record.
func TestADeliveredPayloadIsFreed(t *testing.T) {
	c := limited(t, 20_000)
	s := open1(t, config(c.ListenAddrs())).Kafka
	var made payloads
	var acks []cdc.Ack
	deliver := func(topic, id string, size, count int) {
		for range count {
			s.Send(made.record(topic, id, size), cdc.Ticket{})
		}
		for want := len(acks) + count; len(acks) < want; acks = s.Acks(acks) {
			<-s.Wake()
		}
	}
	deliver("a", "first", 1000, 1)
	deliver("a", "many", 1000, 500)
	deliver("b", "poison", 30_000, 1)
	if a := acks[len(acks)-1]; !errors.Is(a.Err, kerr.MessageTooLarge) || a.EventID != "poison" || a.Topic != "b" || acks[0].Topic != "a" {
		t.Fatalf("%+v, %+v", acks[0], a)
	}
	acks[len(acks)-1].Record = nil
	for i := range acks[:len(acks)-1] {
		acks[i].EventID = ""
	}
	waitFor(t, func() bool { return made.held() == 0 }) // the client ends behind its promises
	runtime.KeepAlive(acks)
}
