package sink

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

type brokenPipe struct{ after int }

var errPipe = errors.New("broken pipe")

func (p *brokenPipe) Write(b []byte) (int, error) {
	if p.after -= len(b); p.after < 0 {
		return 0, errPipe
	}
	return len(b), nil
}

func TestStdoutPrintsALineAndThenAcknowledges(t *testing.T) {
	var out bytes.Buffer
	s := NewStdout(&out)
	s.Send(&cdc.Record{
		Topic: "orders", Partition: -1, Key: []byte("7"), Value: []byte(`{"a":1}`), Time: time.UnixMilli(0),
		Headers: []cdc.Header{{Key: "id", Value: []byte("x")}, {Key: "none"}},
	}, cdc.Ticket{Tx: 1})
	s.Send(&cdc.Record{Topic: "orders", Partition: 2, Value: []byte{0xff}, Time: time.UnixMilli(0)}, cdc.Ticket{Tx: 2})
	<-s.Wake()
	acks := s.Acks(nil)
	want := `{"topic":"orders","key":"7","headers":[["id","x"],["none",null]],"value":"{\"a\":1}","time":"1970-01-01T00:00:00Z"}
{"topic":"orders","partition":2,"key":null,"value":null,"value_base64":"/w==","time":"1970-01-01T00:00:00Z"}
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
	if len(acks) != 2 || acks[0].Err != nil || acks[1].Ticket.Tx != 2 {
		t.Errorf("acks: %+v", acks)
	}
	if acks := s.Acks(nil); len(acks) != 0 {
		t.Errorf("again: %+v", acks)
	}
}

func TestStdoutThatCanNotBeWrittenEndsEveryRecordWithTheError(t *testing.T) {
	s := NewStdout(&brokenPipe{after: 150})
	for range 3 {
		s.Send(&cdc.Record{Topic: "orders", Partition: -1, EventID: "e"}, cdc.Ticket{})
		acks := s.Acks(nil)
		if len(acks) != 1 {
			t.Fatalf("acks: %+v", acks)
		}
		if failed := s.Stalled() != nil; failed != (acks[0].Err != nil) {
			t.Errorf("stalled %v, ack %+v", s.Stalled(), acks[0])
		}
	}
	if err := s.Stalled(); !errors.Is(err, errPipe) {
		t.Errorf("stalled: %v", err)
	}
}
