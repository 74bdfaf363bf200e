package recent

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

func TestARepeatedFaultIsLoggedOnceAMinute(t *testing.T) {
	var lines strings.Builder
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	var e FaultLog
	at := time.Now()
	e.Over(at, log).Info("over before it came")
	for range 130 {
		at = at.Add(time.Second)
		e.Fault(at, log).Warn("lost", "err", "reset")
	}
	e.Over(at, log).Info("found")
	e.Over(at, log).Info("found again")
	want := `level=WARN msg=lost times=1 for=0s err=reset
level=WARN msg=lost times=61 for=1m0s err=reset
level=WARN msg=lost times=121 for=2m0s err=reset
level=INFO msg=found times=130 for=2m9s
`
	if lines.String() != want {
		t.Errorf("logged\n%s", lines.String())
	}
}

// The loop asks four times a second.
func TestWhatTheLogHasAlreadyCostsNoAllocation(t *testing.T) {
	var lines strings.Builder
	log := slog.New(slog.NewJSONHandler(&lines, nil))
	var fault FaultLog
	var count CountLog
	at, last := time.Now(), slog.String("last", "public.outbox")
	say := func() {
		fault.Fault(at, log).LogAttrs(t.Context(), slog.LevelWarn, "lost", last)
		count.Due(uint64(fault.Times), at, false, log).LogAttrs(t.Context(), slog.LevelWarn, "ignored", last)
	}
	say()
	if n := testing.AllocsPerRun(100, say); n > 0 {
		t.Errorf("%g allocations", n)
	}
	count.Due(uint64(fault.Times), at, true, log).Warn("ignored")
	if text := lines.String(); strings.Count(text, "lost") != 1 || strings.Count(text, "ignored") != 2 || !strings.Contains(text, `"times":101,"in_all":102`) {
		t.Errorf("logged\n%s", text)
	}
}

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
