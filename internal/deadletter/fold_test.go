package deadletter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// A topic is a story of words: "a" a letter of row a of the table, "a2" one of its second attempt, "a:retried"
// and "a:dropped" marks, "x:began" and "x:ended" what a command says, "a/5" a letter of an event of the stream whose transaction
// has the position 5, "a/5h" one that was committed an hour later, "a2/5" one of its second attempt, "?" a record of somebody else's,
// "!" a letter that cannot be read.
func foldOf(t *testing.T, f *Fold, story string) string {
	t.Helper()
	for offset, word := range strings.Fields(story) {
		var rec *cdc.Record
		token, state, isMark := strings.Cut(word, ":")
		switch {
		case word == "?":
			rec = &cdc.Record{Value: []byte("x")}
		case isMark:
			rec = (&Mark{Token: token, State: State(state), Why: "because", Time: committed}).Encode("dead", []byte("k"), 0)
		default:
			l := Letter{Token: word[:1], Attempts: 1, Partition: -1, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{}}
			event, at, of := strings.Cut(word, "/")
			if of {
				l.Commit, l.Row, l.CommitTime = cdc.Position(at[0]-'0'), 1, committed
				if strings.HasSuffix(at, "h") {
					l.CommitTime = committed.Add(time.Hour)
				}
			}
			if len(event) > 1 {
				l.Attempts = int(event[1] - '0')
			}
			var err error
			if rec, err = l.Encode("dead"); err != nil {
				t.Fatal(err)
			}
			if word == "!" {
				rec.Headers[len(rec.Headers)-2].Value = []byte("no form")
			}
		}
		f.Add(stored(rec, 0, int64(offset)))
	}
	var out []string
	for _, e := range f.Entries() {
		out = append(out, fmt.Sprintf("%s %s %d@%d-%d", e.Token, e.State, e.Attempts, e.First.Offset, e.Newest.Offset))
	}
	if f.Newest != "" {
		out = append(out, fmt.Sprintf("newest %s, working %v", f.Newest, f.Working))
	}
	if f.Foreign+f.Damaged > 0 {
		out = append(out, fmt.Sprintf("%d foreign %d damaged", f.Foreign, f.Damaged))
	}
	return strings.Join(out, ", ")
}

func TestATopicSaysWhatBecameOfEachEvent(t *testing.T) {
	for story, want := range map[string]string{
		"":                        "",
		"a b":                     "a open 1@0-0, b open 1@1-1",
		"a b a":                   "a open 1@0-2, b open 1@1-1", // written again after a crash
		"a b a:retried":           "a retried 1@0-0, b open 1@1-1",
		"a a a:retried":           "a retried 1@0-1", // a mark is for all letters before it
		"a a:dropped":             "a dropped 1@0-0",
		"a b a2":                  "a open 2@0-2, b open 1@1-1", // a retry that was refused keeps its place
		"a a2 a":                  "a open 2@0-1",               // and an old letter tells nothing new
		"a b a:retried a":         "b open 1@1-1, a open 1@3-3", // it went bad again, and is the last one
		"a a:retried a:dropped":   "a retried 1@0-0",            // the first mark counts
		"a:retried a":             "a open 1@1-1",               // a mark says nothing of what follows
		"a b:dropped":             "a open 1@0-0",
		"? a ! ?":                 "a open 1@1-1, 2 foreign 1 damaged",
		"a a:retried a a:dropped": "a dropped 1@2-2",
		"a/5 b/3 d/4":             "b open 1@1-1, d open 1@2-2, a open 1@0-0", // a was refused late
		"a/5 b/7 c/3 d/6":         "c open 1@2-2, a open 1@0-0, d open 1@3-3, b open 1@1-1",
		"a/5 b/3h":                "a open 1@0-0, b open 1@1-1", // of another history
		"x:began a":               "a open 1@1-1, newest x, working [x]",
		"x:began y:began x:ended": "newest y, working [y]",
		"x:began y:began y:ended": "newest y, working [x]",
	} {
		if got := foldOf(t, new(Fold), story); got != want {
			t.Errorf("%q: %s\nwant %s", story, got, want)
		}
	}
}

// A crash repeats the letters of events that no checkpoint has passed, also of those that were retried or dropped since. They stay
// closed, for a reader that keeps everything and for one that keeps only open events.
func TestARepeatedLetterOpensNoClosedEvent(t *testing.T) {
	for story, want := range map[string]struct{ all, open string }{
		"a/5 a:dropped a/5":             {"a dropped 1@0-0", ""},
		"a/5 a:retried b/6 a/5 b/6":     {"a retried 1@0-0, b open 1@2-4", "b open 1@2-4"},
		"a/5 a2/5 a:retried a/5 a2/5":   {"a retried 2@0-1", ""},
		"a/5 a:retried a2/5":            {"a retried 1@0-0", ""}, // of a retry that a newer one has overtaken
		"a a:retried a2":                {"a retried 1@0-0", ""},
		"a a:retried a a2 a":            {"a open 2@2-3", "a open 2@2-3"}, // a row of the table went bad again
		"a/5 a:dropped a/5 a:retried":   {"a dropped 1@0-0", ""},
		"a/5 b/6 a:dropped b:began a/5": {"a dropped 1@0-0, b open 1@1-1, newest b, working [b]", "b open 1@1-1, newest b, working [b]"},
	} {
		if got := foldOf(t, new(Fold), story); got != want.all {
			t.Errorf("%q: %s\nwant %s", story, got, want.all)
		}
		open := NewOpenFold()
		if got := foldOf(t, &open, story); got != want.open {
			t.Errorf("%q, open events: %s\nwant %s", story, got, want.open)
		}
	}
}

// What an open Fold holds depends on the open events, and not on those that were closed in all the years before.
func TestAnOpenFoldDoesNotGrowWithClosedEvents(t *testing.T) {
	f, events := NewOpenFold(), 2000
	for n := range 2 * closedKept {
		f.closed.add(fmt.Sprint("before", n))
	}
	add := func(rec *cdc.Record) {
		t.Helper()
		if f.Add(stored(rec, 0, 0)); f.Damaged+f.Foreign > 0 {
			t.Fatal(f.Problem)
		}
	}
	letter := func(n int) {
		t.Helper()
		l := Letter{Token: fmt.Sprint("t", n), Attempts: 1, Commit: cdc.Position(n), Row: 1, Partition: -1, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{}}
		rec, err := l.Encode("dead")
		if err != nil {
			t.Fatal(err)
		}
		add(rec)
	}
	for n := 1; n <= events; n++ {
		letter(n)
		if n > 2 {
			add((&Mark{Token: fmt.Sprint("t", n), State: Retried}).Encode("dead", []byte("k"), 0))
		}
		if held := len(f.byToken) + len(f.closed.newer) + len(f.closed.older); held > 3+closedKept {
			t.Fatalf("%d events and tokens are held after %d events", held, n)
		}
	}
	for n := events; n > events-1000; n-- {
		letter(n) // a crash
	}
	if all := f.Entries(); len(all) != 2 || all[0].Token != "t1" || all[1].Token != "t2" {
		t.Errorf("%d events are open", len(all))
	}
}

// The brokers refuse a record some time after it was sent. By then the letter of a later row, which
// could not be routed, can be in the topic. The events are in the order of their commits all the same.
func TestEventsAreInTheOrderOfTheirCommits(t *testing.T) {
	var f Fold
	for offset, l := range []Letter{
		{Token: "4", Commit: 90, Row: 1, CommitTime: committed.Add(time.Hour)},
		{Token: "3", Commit: 200, Row: 10, CommitTime: committed.Add(time.Second)},
		{Token: "2", Commit: 200, Row: 9, CommitTime: committed.Add(time.Second)},
		{Token: "1", Commit: 100, Row: 1, CommitTime: committed},
		{Token: "5", CommitTime: committed.Add(2 * time.Hour)}, // two rows of the table, read in this order
		{Token: "6", CommitTime: committed.Add(2 * time.Hour)},
		// Before the source was changed, the table was polled: positions of two kinds say nothing about the order.
		{Token: "7", Commit: cdc.Numbered(700), Row: 1, CommitTime: committed.Add(3 * time.Hour)},
		{Token: "8", Commit: 300, Row: 1, CommitTime: committed.Add(3*time.Hour + time.Second)},
	} {
		l.Partition, l.KeyKnown, l.Key, l.Record = -1, true, []byte("k"), &cdc.Record{}
		rec, err := l.Encode("dead")
		if err != nil {
			t.Fatal(err)
		}
		f.Add(stored(rec, 0, int64(offset)))
	}
	got := ""
	for _, e := range f.Entries() {
		got += e.Token
	}
	if got != "12345678" {
		t.Errorf("order %s", got)
	}
}

// Of the payloads, a Fold keeps nothing.
func TestAFoldKeepsNoPayload(t *testing.T) {
	l := Letter{Token: "t", Partition: -1, KeyKnown: true, Key: []byte("k"), Record: &cdc.Record{Value: []byte("v")}}
	rec, err := l.Encode("dead")
	if err != nil {
		t.Fatal(err)
	}
	from := stored(rec, 2, 5)
	var f Fold
	f.Add(from)
	copy(from.Key, "X")
	e := f.Entry("t")
	if e.Record != nil || e.Event != nil || string(e.Key) != "k" || string(e.RecordKey) != "k" || e.Newest != (Place{2, 5}) {
		t.Errorf("%+v", e)
	}
	f.Add(&kgo.Record{})
	if f.Foreign != 1 || f.Entry("x") != nil {
		t.Errorf("%+v", f)
	}
}
