package protocol

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv/short"
)

var (
	faults    = flag.Int("faults", -1, "explore every bound with that many faults, which may take hours and all memory")
	maxStates = flag.Int("states", 4_000_000, "the most states of one exploration")
)

// raced says that only the small explorations run: nothing here runs in parallel, and .ci/beside runs all of them without the detector.
var raced = short.Raced(false, true)

// pageText is docs/protocol.md without its line breaks.
func pageText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// bounds are the explorations. The small ones run with -short and the race detector, too.
var bounds = []struct {
	Bound
	small bool
}{
	{Bound{Items: []string{"ab", "a"}, Window: 2, Faults: 1}, true},
	{Bound{Items: []string{"ab", "a"}, Window: 2, Faults: 2}, false},
	{Bound{Items: []string{"a", "a"}, Window: 2, Faults: 1, Failover: true}, false},
	{Bound{Items: []string{"ab", "", "ba"}, Window: 2, Faults: 1}, false},
	{Bound{Items: []string{"a", "a"}, Window: 2, Failover: true}, true},
	{Bound{ExactlyOnce: true, Items: []string{"ab", "a"}, Window: 2, Faults: 1}, true},
	{Bound{ExactlyOnce: true, Items: []string{"ab", "a"}, Window: 2, Faults: 2}, false},
	{Bound{ExactlyOnce: true, Items: []string{"ab"}, Window: 2, Faults: 3}, false},
	{Bound{ExactlyOnce: true, Items: []string{"a", "a"}, Window: 2, Faults: 1, Failover: true}, false},
}

// TestTheProtocolKeepsItsPromises explores the protocol as it is.
func TestTheProtocolKeepsItsPromises(t *testing.T) {
	text := pageText(t)
	for _, b := range bounds {
		if short.Pick(raced, true) && !b.small {
			continue
		}
		if *faults >= 0 {
			b.Faults = *faults
		}
		r := Explore(New(b.Bound, Sound), *maxStates)
		t.Logf("%s: %s", b, r)
		if r.Broken != "" {
			t.Fatalf("%s: %s", b, r.Broken)
		}
		if *faults < 0 && !b.small && !strings.Contains(text, b.row(r)) {
			t.Errorf("docs/protocol.md lacks the row\n%s", b.row(r))
		}
	}
}

// row is a row of the table in docs/protocol.md.
func (b Bound) row(r Result) string {
	mode, failover := "at_least_once", "no"
	if b.ExactlyOnce {
		mode = "exactly_once"
	}
	if b.Failover {
		failover = "yes"
	}
	items := make([]string, len(b.Items))
	for i, item := range b.Items {
		items[i] = "(" + strings.Join(strings.Split(item, ""), " ") + ")"
	}
	return fmt.Sprintf("| `%s` | %s | %d | %s | %s | %d |", mode, strings.Join(items, " "), b.Faults, failover, thousands(r.States), r.Depth)
}

func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// shows says how each variant shows, and how many faults that takes.
var shows = [variants]struct {
	faults int
	found  string
}{
	ConfirmEarly:     {0, "the slot is confirmed up to item 1, and the newest checkpoint is at 0"},
	CheckpointEarly:  {0, "is delivered, and it is not in Kafka"},
	LSNDedupe:        {0, "overtakes row 1, which is not in Kafka"},
	IgnoreNext:       {1, "is sent again, and the checkpoint said that it is delivered"},
	StartAtSlot:      {1, "is sent again, and the checkpoint said that it is delivered"},
	NoReread:         {1, "is sent again, and the checkpoint said that it is delivered"},
	SameKey:          {2, "the slot is confirmed up to item 1, and the newest checkpoint is at 0"},
	KeepEpoch:        {2, "the checkpoint goes back"},
	IgnoreOthers:     {2, "is sent again, and the checkpoint said that it is delivered"},
	LateIsProgress:   {2, "is sent again, and the checkpoint said that it is delivered"},
	BelieveEmpty:     {2, "is sent again, and the checkpoint said that it is delivered"},
	NoSequence:       {0, "is in Kafka twice, without a crash or a takeover"},
	EternalWalsender: {1, "no finish can be reached"},

	ReadBeforeFence:    {1, "is visible, and the checkpoint that came with it is not"},
	FenceStandby:       {0, "a process is fenced, and nothing had happened"},
	UnknownIsAborted:   {1, "is visible twice"},
	UnknownIsCommitted: {1, "is delivered, and it is not in Kafka"},
	ReadUnsettled:      {1, "is visible, and the checkpoint that came with it is not"},
	KeepList:           {2, "is visible, and the checkpoint that came with it is not"},
	CheckpointOutside:  {0, "is visible, and the checkpoint that came with it is not"},
}

// TestEachBrokenVariantIsFound explores each variant until it shows.
func TestEachBrokenVariantIsFound(t *testing.T) {
	if count := fmt.Sprintf("each of %d variants", variants-Sound-1); !strings.Contains(pageText(t), count) {
		t.Errorf("docs/protocol.md doesn't say: %s", count)
	}
	for v := Sound + 1; v < variants; v++ {
		t.Run(v.String(), func(t *testing.T) {
			want := shows[v]
			if want.found == "" {
				t.Fatal("nothing says how it shows")
			}
			if raced && want.faults > 1 {
				t.Skip(".ci/beside explores it without the race detector")
			}
			b := Bound{ExactlyOnce: v.exactlyOnce(), Items: []string{"ab", "a"}, Window: 2, Faults: want.faults}
			r := Explore(New(b, v), *maxStates)
			switch {
			case r.Broken == "":
				t.Errorf("not found in %s", r)
			case !strings.Contains(r.Broken, want.found):
				t.Errorf("found something else in %s: %s", r, r.Broken)
			}
			t.Logf("%s: %s", r, strings.SplitN(r.Broken, "\n", 2)[0])
		})
	}
}
