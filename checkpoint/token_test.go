package checkpoint

import (
	"errors"
	"slices"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// TestATokenNamesOneGap changes everything that makes it another gap, and everything that does not.
func TestATokenNamesOneGap(t *testing.T) {
	token := func(change func(*Record, *cdc.Identity)) string {
		rec, found := judged()
		found.SlotFound.Confirmed = 0x3000
		change(rec, found)
		_, err := Judge(rec, *found)
		var ref *Refusal
		if !errors.As(err, &ref) {
			t.Fatalf("not refused: %v", err)
		}
		return ref.Token
	}
	gap := token(func(*Record, *cdc.Identity) {})
	// An accepted token stands in somebody's command line: it must be the same in the next release.
	if gap != "c07b9e6521c1" {
		t.Errorf("the token of this gap is %s", gap)
	}
	for what, change := range map[string]func(*Record, *cdc.Identity){
		"the server goes on":             func(_ *Record, f *cdc.Identity) { f.Server = 0x9000 },
		"WAL is removed":                 func(_ *Record, f *cdc.Identity) { f.SlotFound.Restart, f.SlotFound.WALStatus = 0x1800, "extended" },
		"a walsender holds the slot":     func(_ *Record, f *cdc.Identity) { f.SlotFound.Active, f.SlotFound.ActivePID = true, 7 },
		"the record was written later":   func(r *Record, _ *cdc.Identity) { r.Time, r.RunID = aRecord().Time, "x" },
		"a field that is for people":     func(r *Record, _ *cdc.Identity) { r.Version = 0 },
		"the history of older timelines": func(_ *Record, f *cdc.Identity) { f.History = f.History[1:] },
	} {
		if got := token(change); got != gap {
			t.Errorf("%s: token %s, must still be %s", what, got, gap)
		}
	}
	seen := map[string]string{gap: "the gap"}
	for what, change := range map[string]func(*Record, *cdc.Identity){
		"the next epoch":             func(r *Record, _ *cdc.Identity) { r.Epoch++ },
		"another record":             func(r *Record, _ *cdc.Identity) { r.Name = "shop" },
		"the record moved":           func(r *Record, _ *cdc.Identity) { r.Position++ },
		"the record's next":          func(r *Record, _ *cdc.Identity) { r.Next = &Next{Commit: 0x2400, Rows: 1} },
		"the slot moved":             func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed++ },
		"the slot is gone":           func(_ *Record, f *cdc.Identity) { f.SlotFound = cdc.SlotState{} },
		"the slot is lost":           func(_ *Record, f *cdc.Identity) { f.SlotFound.Invalidation = "lost" },
		"its WAL is lost":            func(_ *Record, f *cdc.Identity) { f.SlotFound.WALStatus = "lost" },
		"lost for another reason":    func(_ *Record, f *cdc.Identity) { f.SlotFound.Invalidation = "idle_timeout" },
		"another system":             func(_ *Record, f *cdc.Identity) { f.SystemID = "222" },
		"a third system":             func(_ *Record, f *cdc.Identity) { f.SystemID = "333" },
		"the record's system":        func(r *Record, _ *cdc.Identity) { r.SystemID = "333" },
		"another database":           func(_ *Record, f *cdc.Identity) { f.Database = "d" },
		"the record's database":      func(r *Record, _ *cdc.Identity) { r.Database = "d" },
		"another slot":               func(_ *Record, f *cdc.Identity) { f.Slot = "s" },
		"the record's slot":          func(r *Record, _ *cdc.Identity) { r.Slot = "s" },
		"a lower timeline":           func(_ *Record, f *cdc.Identity) { f.Timeline = 2 },
		"the record's timeline":      func(r *Record, _ *cdc.Identity) { r.Timeline = 4 },
		"promoted":                   func(_ *Record, f *cdc.Identity) { descended(f, 0x2500) },
		"promoted elsewhere":         func(_ *Record, f *cdc.Identity) { descended(f, 0x2501) },
		"forked below":               func(_ *Record, f *cdc.Identity) { descended(f, 0x1500) },
		"forked below, elsewhere":    func(_ *Record, f *cdc.Identity) { descended(f, 0x1501) },
		"a timeline from nowhere":    func(_ *Record, f *cdc.Identity) { f.Timeline = 5 },
		"a copy":                     func(_ *Record, f *cdc.Identity) { f.Server = 0x1000 },
		"words that run together":    func(r *Record, f *cdc.Identity) { r.Name, r.SystemID = "shop.walpost/7 0/2000", "x" },
		"words that run together, 2": func(r *Record, f *cdc.Identity) { r.Name, r.SystemID = "shop.walpost", "7 0/2000 x" },
	} {
		got := token(change)
		if other, ok := seen[got]; ok {
			t.Errorf("%s: the same token as %s", what, other)
		}
		seen[got] = what
	}
}

func TestAnAcceptedGapIsTheOneThatWasRefused(t *testing.T) {
	refused := func(change func(*Record, *cdc.Identity)) (*Refusal, cdc.Identity) {
		t.Helper()
		rec, found := judged()
		change(rec, found)
		_, err := Judge(rec, *found)
		var ref *Refusal
		if !errors.As(err, &ref) {
			t.Fatalf("not refused: %v", err)
		}
		found.History = slices.Clone(found.History)
		return ref, *found
	}
	ahead := func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed = 0x3000 }
	missing := func(_ *Record, f *cdc.Identity) { f.SlotFound = cdc.SlotState{} }
	gone := func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Confirmed, f.SlotFound.WALStatus, f.SlotFound.Invalidation = 0x1F00, "lost", "wal_removed"
	}
	for _, c := range []struct {
		what   string
		refuse func(*Record, *cdc.Identity)
		then   func(*cdc.Identity)
		start  cdc.Position // 0: an error
	}{
		{"the slot as it was", ahead, func(f *cdc.Identity) { f.Server = 0x9000 }, 0x3000},
		{"the slot moved again", ahead, func(f *cdc.Identity) { f.SlotFound.Confirmed++ }, 0},
		{"the slot was lost meanwhile", ahead, func(f *cdc.Identity) { f.SlotFound.WALStatus = "lost" }, 0},
		{"the slot was dropped meanwhile", ahead, func(f *cdc.Identity) { f.SlotFound = cdc.SlotState{} }, 0},
		{"the server changed", ahead, func(f *cdc.Identity) { f.SystemID = "222" }, 0},
		{"a new slot for the missing one", missing, made, 0x5000},
		{"still missing", missing, func(*cdc.Identity) {}, 0},
		{"made by somebody else", missing, func(f *cdc.Identity) { made(f); f.SlotFound.Created = false }, 0},
		{"a new slot on another server", missing, func(f *cdc.Identity) { made(f); f.SystemID = "222" }, 0},
		{"a new slot after a promotion", missing, func(f *cdc.Identity) { made(f); descended(f, 0x3000) }, 0},
		{"a new slot for the lost one", gone, made, 0x5000},
		{"still lost", gone, func(*cdc.Identity) {}, 0},
		{"a new slot, and lost at once", gone, func(f *cdc.Identity) { made(f); f.SlotFound.WALStatus = "lost" }, 0},
	} {
		ref, found := refused(c.refuse)
		c.then(&found)
		start, err := AcceptedStart(ref, found)
		if start != c.start || (err == nil) != (c.start != 0) {
			t.Errorf("%s: %s, %v; must be %s", c.what, start, err, c.start)
		}
	}
}

// TestATokenOfAChangedPublicationStays: a relay that finds the change writes its last checkpoint, and may do so after
// another look that was still good. The gap is the same at the next start.
func TestATokenOfAChangedPublicationStays(t *testing.T) {
	token := func(change func(*Record, *cdc.Identity)) string {
		rec, found := judged()
		altered(found)
		change(rec, found)
		err := JudgePublished(rec, *found)
		_, again := Judge(rec, *found)
		var ref, whole *Refusal
		if !errors.As(err, &ref) || !errors.As(again, &whole) || ref.Token != whole.Token || !ref.Since.Equal(rec.Published.Time) {
			t.Fatalf("refused: %v, and at the start: %v", err, again)
		}
		start, err := AcceptedStart(ref, *found)
		if err != nil || start != rec.Position {
			t.Errorf("accepted: %s, %v", start, err)
		}
		found.Published.XMin++
		if _, err := AcceptedStart(ref, *found); err == nil {
			t.Error("accepted, although the publication was altered once more")
		}
		return ref.Token
	}
	gap := token(func(*Record, *cdc.Identity) {})
	if gap != "b1a226a812ab" {
		t.Errorf("the token of this gap is %s", gap)
	}
	for what, change := range map[string]func(*Record, *cdc.Identity){
		"the record goes on": func(r *Record, f *cdc.Identity) { r.Position++; r.Epoch++; r.Next = &Next{Commit: 0x2400, Rows: 1} },
		"a later look":       func(r *Record, _ *cdc.Identity) { r.Published.LSN++; r.Published.Time = looked.Add(1) },
		"the slot goes on":   func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed++ },
		"a promotion":        func(_ *Record, f *cdc.Identity) { descended(f, 0x2500) },
		"a table is configured": func(_ *Record, f *cdc.Identity) {
			f.Published.Tables = append(f.Published.Tables, cdc.PublishedTable{Name: "z", OID: 9})
		},
		"a table is not any more": func(_ *Record, f *cdc.Identity) { f.Published.Tables = f.Published.Tables[:1] },
		"an entry that is further": func(_ *Record, f *cdc.Identity) {
			f.Published.Tables[0].Entries = append(f.Published.Tables[0].Entries, cdc.PublishedEntry{By: cdc.PublishedByAll})
		},
	} {
		if got := token(change); got != gap {
			t.Errorf("%s: token %s, must still be %s", what, got, gap)
		}
	}
	for what, change := range map[string]func(*Record, *cdc.Identity){
		"altered twice":         func(_ *Record, f *cdc.Identity) { altered(f) },
		"altered before":        func(r *Record, _ *cdc.Identity) { r.Published.XMin-- },
		"and the table's entry": func(_ *Record, f *cdc.Identity) { f.Published.Tables[0].Entries[0].XMin++ },
		"and made again":        func(_ *Record, f *cdc.Identity) { f.Published.OID++ },
		"another record":        func(r *Record, _ *cdc.Identity) { r.Name = "shop" },
	} {
		if got := token(change); got == gap {
			t.Errorf("%s: the same token", what)
		}
	}
}

// A row of the table has a token of its own, also if ids are missing or repeated. It is the same at every start.
func TestEachRowOfATableHasItsToken(t *testing.T) {
	seen := map[string]string{}
	for name, token := range map[string]string{
		"the row":             RowToken("shop", "db", "public.outbox", "u", []byte("u"), []byte("1")),
		"another value":       RowToken("shop", "db", "public.outbox", "u", []byte("u"), []byte("2")),
		"another cut":         RowToken("shop", "db", "public.outbox", "u", []byte("u1"), nil),
		"without id":          RowToken("shop", "db", "public.outbox", "", []byte("u"), []byte("1")),
		"of another table":    RowToken("shop", "db", "public.other", "u", []byte("u"), []byte("1")),
		"of another name":     RowToken("crm", "db", "public.outbox", "u", []byte("u"), []byte("1")),
		"of another database": RowToken("shop", "db2", "public.outbox", "u", []byte("u"), []byte("1")),
	} {
		if other := seen[token]; other != "" {
			t.Errorf("%s and %s have the token %s", name, other, token)
		}
		seen[token] = name
	}
	if again := RowToken("shop", "db", "public.outbox", "u", []byte("u"), []byte("1")); seen[again] != "the row" {
		t.Errorf("%s at the next start", again)
	}
}
