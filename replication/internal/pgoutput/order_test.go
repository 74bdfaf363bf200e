package pgoutput

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// TestAMessageComesBeforeTheRowsBehindIt: the story has one letter for each event of a transaction, with its position. A small
// letter is a row, and a capital letter is a message.
func TestAMessageComesBeforeTheRowsBehindIt(t *testing.T) {
	for story, want := range map[string]string{
		"":                     "",
		"a1":                   "a",
		"a1 B1":                "Ba",
		"B1 a1":                "Ba",
		"a1 B2":                "aB",
		"a1 b1 C1 d1":          "Cabd",
		"a1 b2 C2 D3 e3 f4 G5": "aCbDefG",
		"a1 b1 c2 D2 e2 F4 g9": "abDceFg",
		"a1 B1 C2 d2":          "BaCd",
	} {
		o := Order{On: true}
		got, bytes := "", []byte("?")
		give := func(ev *cdc.Event) {
			for ev = o.Take(ev); ev != nil; ev = o.Next() {
				if len(ev.Row.Values) > 0 {
					got += string(ev.Row.Values[0].Bytes)
				}
			}
		}
		give(&cdc.Event{Kind: cdc.Begin, Pos: 9})
		for _, word := range strings.Fields(story) {
			bytes[0] = word[0] // the bytes of an event are overwritten by the next one
			ev := &cdc.Event{Kind: cdc.Insert, LSN: cdc.LSN(word[1] - '0'), Row: cdc.Row{Values: []cdc.Value{{Bytes: bytes}}}}
			if word[0] < 'a' {
				ev.Kind = cdc.Message
			}
			give(ev)
			give(nil) // a message of the server that gives no event
		}
		give(&cdc.Event{Kind: cdc.Commit, Pos: 10})
		if got != want || len(o.queue)+o.ready+o.size != 0 {
			t.Errorf("%s gives %s, want %s; then %d events of %d bytes are held", story, got, want, len(o.queue), o.size)
		}
	}
}

func TestWhatIsHeldForTheOrderIsBounded(t *testing.T) {
	o := Order{On: true}
	row := &cdc.Event{Kind: cdc.Insert, LSN: 1, Row: cdc.Row{Values: []cdc.Value{{Bytes: make([]byte, maxHeld/4)}}}}
	gone := 0
	for range 20 {
		for ev := o.Take(row); ev != nil; ev = o.Next() {
			gone++
		}
		if o.size > maxHeld {
			t.Fatalf("%d bytes are held", o.size)
		}
	}
	if gone == 0 {
		t.Error("nothing went")
	}
}
