package relay

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

func TestNewestEventsAreKeptByTopicAndBounded(t *testing.T) {
	var r recent
	at := time.Now()
	for i := range 3 * recentTopics {
		for n := range 8 {
			at = at.Add(time.Millisecond)
			r.add(fmt.Sprintf("t%d", i), fmt.Sprintf("%d-%d", i, n), at)
		}
	}
	if !r.due(at, false) {
		t.Error("nothing new to list")
	}
	all := r.list(at)
	newest := all[fmt.Sprintf("t%d", 3*recentTopics-1)]
	if len(all) != recentTopics || len(newest) != recentEvents || newest[0].EventID != fmt.Sprintf("%d-7", 3*recentTopics-1) || newest[4].EventID != fmt.Sprintf("%d-3", 3*recentTopics-1) {
		t.Errorf("%d topics, of the newest %v", len(all), newest)
	}
	if _, ok := all["t0"]; ok {
		t.Error("the oldest topic is kept")
	}
	r.add("t", "x", at)
	if r.due(at.Add(recentEvery/2), false) || !r.due(at.Add(recentEvery), false) || !r.due(at, true) {
		t.Error("listed too often, or too late")
	}
}

func TestNewestErrorsAreCountedAndBounded(t *testing.T) {
	var all []Trouble
	at := time.Now()
	for i := range 9 {
		all = troubled(all, fmt.Errorf("error %d", i), at)
	}
	lost := fault.WithHint(errors.New("lost"), "look")
	for i := range 4 {
		all = troubled(all, lost, at.Add(time.Duration(i)*time.Second))
	}
	all = troubled(all, lost, at.Add(3*time.Second)) // the same fault, told of by two places
	if len(all) != recentErrors || all[0].Times != 4 || all[0].Hint != "look" || all[1].Text != "error 8" || !all[0].At.Equal(at.Add(3*time.Second)) {
		t.Errorf("%+v", all)
	}
}
