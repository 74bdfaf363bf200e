package deadletter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// A topic is a story of words: "a" a letter of event a, "a2" one of its second attempt, "a:retried"
// and "a:dropped" marks, "x:began" and "x:ended" what a command says, "a/5" a letter whose transaction
// has the position 5, "a/5h" one that was committed an hour later, "?" a record of somebody else's, "!" a letter that cannot be read.
func foldOf(t *testing.T, story string) string {
	t.Helper()
	var f Fold
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
			if at, of := strings.CutPrefix(word[1:], "/"); of {
				l.Commit, l.Row, l.CommitTime = cdc.Position(at[0]-'0'), 1, committed
				if strings.HasSuffix(at, "h") {
					l.CommitTime = committed.Add(time.Hour)
				}
			} else if len(word) > 1 {
				l.Attempts = int(word[1] - '0')
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
		out = append(out, fmt.Sprintf("%s %s %d@%d-%d x%d", e.Token, e.State, e.Attempts, e.First.Offset, e.Newest.Offset, e.Copies))
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
		"a b":                     "a open 1@0-0 x1, b open 1@1-1 x1",
		"a b a":                   "a open 1@0-2 x2, b open 1@1-1 x1", // written again after a crash
		"a b a:retried":           "a retried 1@0-0 x1, b open 1@1-1 x1",
		"a a a:retried":           "a retried 1@0-1 x2", // a mark is for all letters before it
		"a a:dropped":             "a dropped 1@0-0 x1",
		"a b a2":                  "a open 2@0-2 x2, b open 1@1-1 x1", // a retry that was refused keeps its place
		"a a2 a":                  "a open 2@0-1 x3",                  // and an old letter tells nothing new
		"a b a:retried a":         "b open 1@1-1 x1, a open 1@3-3 x1", // it went bad again, and is the last one
		"a a:retried a:dropped":   "a retried 1@0-0 x1",               // the first mark counts
		"a:retried a":             "a open 1@1-1 x1",                  // a mark says nothing of what follows
		"a b:dropped":             "a open 1@0-0 x1",
		"? a ! ?":                 "a open 1@1-1 x1, 2 foreign 1 damaged",
		"a a:retried a a:dropped": "a dropped 1@2-2 x1",
		"a/5 b/3 d/4":             "b open 1@1-1 x1, d open 1@2-2 x1, a open 1@0-0 x1", // a was refused late
		"a/5 b/7 c/3 d/6":         "c open 1@2-2 x1, a open 1@0-0 x1, d open 1@3-3 x1, b open 1@1-1 x1",
		"a/5 b/3h":                "a open 1@0-0 x1, b open 1@1-1 x1", // of another history
		"x:began a":               "a open 1@1-1 x1, newest x, working [x]",
		"x:began y:began x:ended": "newest y, working [y]",
		"x:began y:began y:ended": "newest y, working [x]",
	} {
		if got := foldOf(t, story); got != want {
			t.Errorf("%q: %s\nwant %s", story, got, want)
		}
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
	if got != "123456" {
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
