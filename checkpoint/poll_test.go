package checkpoint

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

// The position of a source that polls is the id of a transaction. What the server must have is in WAL.
// polled is a table that is polled.
func polled() *cdc.Polled {
	return &cdc.Polled{Strategy: "cursor", XIDColumn: "xid", Table: "public.outbox", OID: 16400, Database: 5}
}

func TestJudgeASourceThatPolls(t *testing.T) {
	rec := func(change func(*Record)) *Record {
		r := &Record{Name: "shop.public.outbox", Epoch: 3, SystemID: "7", Timeline: 2, Database: "shop", Polled: polled(), Position: cdc.Numbered(5000), WAL: 100, Time: time.Now()}
		change(r)
		return r
	}
	found := func(change func(*cdc.Identity)) cdc.Identity {
		f := cdc.Identity{SystemID: "7", Timeline: 2, Database: "shop", Polled: polled(), Server: 200}
		change(&f)
		return f
	}
	promoted := func(end cdc.LSN) func(*cdc.Identity) {
		return func(f *cdc.Identity) { f.Timeline, f.History = 3, []cdc.Fork{{Timeline: 2, End: end}} }
	}
	for name, c := range map[string]struct {
		rec   func(*Record)
		found func(*cdc.Identity)
		want  Reason
	}{
		"all is well":                        {},
		"the server lacks what is recorded":  {found: func(f *cdc.Identity) { f.Server = 99 }, want: ServerBehind},
		"the server has just that":           {found: func(f *cdc.Identity) { f.Server = 100 }},
		"a promoted standby with all":        {found: promoted(100)},
		"a promoted standby that lacks some": {found: promoted(99), want: TimelineForked},
		"a promotion of unknown end":         {found: func(f *cdc.Identity) { f.Timeline = 3 }, want: TimelineForked},
		"the same without WAL that matters":  {rec: func(r *Record) { r.WAL = 0 }, found: func(f *cdc.Identity) { f.Timeline = 3 }},
		"an old primary":                     {found: func(f *cdc.Identity) { f.Timeline = 1 }, want: TimelineBack},
		"another server":                     {found: func(f *cdc.Identity) { f.SystemID = "8" }, want: OtherSystem},
		"another table has the name":         {found: func(f *cdc.Identity) { f.Polled.OID++ }, want: TableReplaced},
		"a copy of the database":             {found: func(f *cdc.Identity) { f.Polled.Database++ }, want: TableReplaced},
		"the table has another name":         {found: func(f *cdc.Identity) { f.Polled.Table = "public.events" }},
		"a replaced table, and a strategy":   {found: func(f *cdc.Identity) { f.Polled.Strategy = "claim"; f.Polled.OID++ }, want: TableReplaced},
		"another strategy":                   {found: func(f *cdc.Identity) { f.Polled.Strategy = "claim" }, want: OtherSource},
		"another strategy, and an old copy":  {found: func(f *cdc.Identity) { f.Polled.Strategy, f.Server = "claim", 99 }, want: ServerBehind},
		"another column":                     {found: func(f *cdc.Identity) { f.Polled.XIDColumn = "other" }, want: OtherSource},
		"another column, and an old copy":    {found: func(f *cdc.Identity) { f.Polled.XIDColumn, f.Server = "other", 99 }, want: ServerBehind},
		"a slot, and an old primary":         {found: func(f *cdc.Identity) { f.Polled, f.Slot, f.Timeline = nil, "walpost", 1 }, want: TimelineBack},
		"a slot, and a promotion":            {found: func(f *cdc.Identity) { f.Polled, f.Slot = nil, "walpost"; promoted(99)(f) }, want: TimelineForked},
		"a record of a slot that went on":    {rec: func(r *Record) { r.Polled, r.Slot, r.Position, r.WAL = nil, "walpost", 201, 0 }, want: ServerBehind},
		"a slot":                             {found: func(f *cdc.Identity) { f.Polled, f.Slot = nil, "walpost" }, want: OtherSource},
		"a record of a slot":                 {rec: func(r *Record) { r.Polled, r.Slot, r.Position, r.WAL = nil, "walpost", 200, 0 }, want: OtherSource},
	} {
		t.Run(name, func(t *testing.T) {
			if c.rec == nil {
				c.rec = func(*Record) {}
			}
			if c.found == nil {
				c.found = func(*cdc.Identity) {}
			}
			r, f := rec(c.rec), found(c.found)
			if back, err := Decode(r.HolderKey(), r.Encode()); err != nil || back.WAL != r.WAL || (r.Polled == nil) != (back.Polled == nil) || r.Polled != nil && *back.Polled != *r.Polled {
				t.Fatalf("%v: %+v", err, back)
			}
			start, err := Judge(r, f)
			var refusal *Refusal
			switch {
			case c.want == "" && (err != nil || start != cdc.Numbered(5000)):
				t.Fatalf("start at %s: %v", start, err)
			case c.want != "" && (!errors.As(err, &refusal) || refusal.Reason != c.want):
				t.Fatalf("%v, must be %s", err, c.want)
			case c.want == "":
				return
			}
			if strings.Contains(err.Error(), "0/1388") {
				t.Errorf("the refusal speaks of positions of another kind: %s", err)
			}
			begun := f
			begun.SlotFound = cdc.SlotState{Exists: true, Created: true, Confirmed: cdc.Numbered(6000)}
			from := cdc.Numbered(6000)
			if c.want == TableReplaced {
				begun, from = f, cdc.Numbered(5000)
			}
			if start, err := AcceptedStart(refusal, begun); f.Polled != nil && (err != nil || start != from) {
				t.Errorf("accepted: start at %s, %v", start, err)
			}
		})
	}
}

// An accepted gap stays in the record until it is closed, whatever else is accepted.
func TestAnAcceptedGapStaysOpen(t *testing.T) {
	rec := &Record{
		Name: "shop.public.outbox", Epoch: 3, SystemID: "7", Timeline: 2, Database: "shop", Polled: &cdc.Polled{Strategy: "cursor"}, Position: cdc.Numbered(5000), WAL: 100, RunID: "r", Holder: "h", Time: time.Now().UTC(),
		Accepted: []Accepted{{Token: "first", Gap: "a gap", Time: time.Now().UTC()}},
	}
	_, err := Judge(rec, cdc.Identity{SystemID: "8", Timeline: 2, Database: "shop", Polled: &cdc.Polled{Strategy: "cursor"}, Server: 200})
	var gap *Refusal
	if !errors.As(err, &gap) {
		t.Fatal(err)
	}
	base := &Record{Time: time.Now().UTC()}
	base.Accept(gap)
	next := &Record{Name: rec.Name, SystemID: "8", Timeline: 2, Database: "shop", Polled: &cdc.Polled{Strategy: "cursor"}, Position: cdc.Numbered(6000), Time: base.Time}
	next.Follow(base, rec, false)
	read, err := Decode(next.HolderKey(), next.Encode())
	if err != nil {
		t.Fatal(err)
	}
	store := map[string][]byte{read.HolderKey(): next.Encode(), CloseKey(rec.Name, "first"): []byte("{}"), CloseKey("another", gap.Token): []byte("{}")}
	if r, _, err := newest(rec.Name, store); err != nil || len(r.Accepted) != 2 {
		t.Fatalf("%v: %+v", err, r)
	}
	if open := StillOpen(read.Accepted, closed(rec.Name, store)); len(open) != 1 || open[0].Token != gap.Token || open[0].Gap == "" {
		t.Errorf("open: %+v", open)
	}
}

// Until a change of the source has begun, its record has the position of the former source.
func TestAnIntendedChangeIsJudgedByWhatItKnowsOfTheWAL(t *testing.T) {
	for what, rec := range map[string]*Record{
		"from polling to a slot": {SystemID: "7", Timeline: 2, Database: "shop", Slot: "walpost", Position: cdc.Numbered(5000)},
		"from a slot to polling": {SystemID: "7", Timeline: 2, Database: "shop", Polled: polled(), Position: 0x5000, WAL: 100},
	} {
		rec.Name, rec.Epoch, rec.Holder, rec.Copy = "shop", 1, "h", &Copy{Origin: OriginRecover, From: rec.Position}
		back, err := Decode(rec.HolderKey(), rec.Encode())
		if err != nil || back.Position != rec.Position {
			t.Fatalf("%s: %+v, %v", what, back, err)
		}
		found := cdc.Identity{SystemID: "7", Timeline: 2, Database: "shop", Slot: rec.Slot, Polled: rec.Polled, Server: 200}
		var refusal *Refusal
		if _, err := Judge(back, found); err != nil && (!errors.As(err, &refusal) || refusal.Reason != SlotMissing) {
			t.Errorf("%s: %v", what, err)
		}
		found.SlotFound = cdc.SlotState{Exists: true, Created: true, Confirmed: 300}
		if rec.Polled != nil {
			found.SlotFound.Confirmed = cdc.Numbered(9)
		}
		if begun := back.Begun(found); begun.Position != found.SlotFound.Confirmed || begun.Copy.From != rec.Position {
			t.Errorf("%s: begun as %+v", what, begun)
		}
		back.Copy.Slot = true
		if err := back.check(); err == nil {
			t.Errorf("%s: the position of the former source is taken for the new one's", what)
		}
	}
}
