package recent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

func TestNewestEventsAreKeptByTopicAndBounded(t *testing.T) {
	var r Events
	at := time.Now()
	for i := range 3 * Topics {
		for n := range 8 {
			at = at.Add(time.Millisecond)
			r.Add(fmt.Sprintf("t%d", i), fmt.Sprintf("%d-%d", i, n), at)
		}
	}
	if !r.Due(at, false) {
		t.Error("nothing new to list")
	}
	all := r.List(at)
	newest := all[fmt.Sprintf("t%d", 3*Topics-1)]
	if len(all) != Topics || len(newest) != PerTopic || newest[0].EventID != fmt.Sprintf("%d-7", 3*Topics-1) || newest[4].EventID != fmt.Sprintf("%d-3", 3*Topics-1) {
		t.Errorf("%d topics, of the newest %v", len(all), newest)
	}
	if _, ok := all["t0"]; ok {
		t.Error("the oldest topic is kept")
	}
	r.Add("t", "x", at)
	if r.Due(at.Add(ListEvery/2), false) || !r.Due(at.Add(ListEvery), false) || !r.Due(at, true) {
		t.Error("listed too often, or too late")
	}
}

// unknown is a stall of which the sink does not know the cause.
type unknown struct{ error }

func (unknown) CauseKnown() bool { return false }

func TestAnOutageIsOneErrorWithItsNewestKnownReason(t *testing.T) {
	at := time.Now()
	silent, refused := unknown{errors.New("no acknowledgement")}, errors.New("connection refused")
	var all []Trouble
	for range 2 { // outages
		var o Outage
		for _, err := range []error{silent, silent, errors.New("reset"), refused, refused, silent} {
			at = at.Add(time.Second)
			all = o.Waits(all, err, nil, at)
		}
	}
	if len(all) != 1 || all[0].Text != "connection refused" || all[0].Times != 2 {
		t.Errorf("%+v", all)
	}
	// The store is in Kafka, too, so its errors come between.
	mixed, o := []Trouble(nil), Outage("")
	for i := range 6 {
		at = at.Add(time.Second)
		mixed = o.Waits(mixed, fmt.Errorf("reason %d", i), nil, at)
		mixed = Troubled(mixed, errors.New("store"), nil, at)
	}
	if len(mixed) != 2 || mixed[0].Text != "store" || mixed[1].Text != "reason 5" || mixed[1].Times != 1 {
		t.Errorf("%+v", mixed)
	}
	o = ""
	if all = o.Waits(all, silent, nil, at); len(all) != 2 || all[0].Text != "no acknowledgement" {
		t.Errorf("%+v", all)
	}
}

func TestNewestErrorsAreCountedAndBounded(t *testing.T) {
	var all []Trouble
	at := time.Now()
	for i := range 9 {
		all = Troubled(all, fmt.Errorf("error %d", i), nil, at)
	}
	lost := fault.WithHint(errors.New("lost"), "look")
	for i := range 4 {
		all = Troubled(all, lost, nil, at.Add(time.Duration(i)*time.Second))
	}
	all = Troubled(all, lost, nil, at.Add(3*time.Second)) // the same fault, told of by two places
	if len(all) != newestErrors || all[0].Times != 4 || all[0].Hint != "look" || all[1].Text != "error 8" || !all[0].At.Equal(at.Add(3*time.Second)) {
		t.Errorf("%+v", all)
	}
}
