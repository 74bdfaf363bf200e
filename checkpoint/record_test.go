package checkpoint

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"pgregory.net/rapid"
)

func aRecord() *Record {
	return &Record{
		Version: version, Name: "shop.walpost", Epoch: 7, SystemID: "7564103926847123456", Timeline: 3,
		Slot: "walpost", Database: "shop", Position: 0x16_B374D848,
		Next:      &Next{Commit: 0x16_B374E000, CommitEnd: 0x16_B374E030, Rows: 2, LastEventID: "7f3"},
		Published: &Published{Published: publishes(), LSN: 0x16_B374D900, Time: time.Date(2026, 11, 20, 11, 59, 50, 0, time.UTC)},
		RunID:     "018f", Holder: "2c1f", Time: time.Date(2026, 11, 20, 12, 0, 0, 123456000, time.UTC),
	}
}

func publishes() cdc.Published {
	return cdc.Published{Publication: "walpost", OID: 16410, XMin: 740, Tables: []cdc.PublishedTable{
		{Name: "public.outbox", OID: 16400, Entries: []cdc.PublishedEntry{{By: cdc.PublishedByTable, OID: 16411, XMin: 740}}},
		{Name: "sales.outbox", OID: 16402, Entries: []cdc.PublishedEntry{{By: cdc.PublishedBySchema, OID: 16412, XMin: 740}, {By: cdc.PublishedByAll}}},
	}}
}

// TestARecordIsStoredLikeThis pins the format: records of this version are read for ever.
func TestARecordIsStoredLikeThis(t *testing.T) {
	const key = "shop.walpost/7.2c1f"
	const value = `{"version":2,"name":"shop.walpost","epoch":7,"system_identifier":"7564103926847123456","timeline":3,` +
		`"slot":"walpost","database":"shop","lsn":"16/B374D848","next":{"commit_lsn":"16/B374E000",` +
		`"commit_end_lsn":"16/B374E030","rows":2,"last_event_id":"7f3"},` +
		`"published":{"publication":"walpost","oid":16410,"xmin":740,"tables":[{"name":"public.outbox","oid":16400,` +
		`"entries":[{"by":"table","oid":16411,"xmin":740}]},{"name":"sales.outbox","oid":16402,"entries":[` +
		`{"by":"schema","oid":16412,"xmin":740},{"by":"all tables"}]}],"lsn":"16/B374D900","time":"2026-11-20T11:59:50Z"},` +
		`"run_id":"018f","holder":"2c1f","time":"2026-11-20T12:00:00.123456Z"}`
	r := aRecord()
	if got := r.HolderKey(); got != key {
		t.Errorf("key is %q, must be %q", got, key)
	}
	if got := string(r.Encode()); got != value {
		t.Errorf("value is\n%s\nmust be\n%s", got, value)
	}
	r.Version = 0 // the caller need not know it
	r.Time = r.Time.In(time.FixedZone("", 3600))
	if got := string(r.Encode()); got != value {
		t.Errorf("value is\n%s\nmust be\n%s", got, value)
	}
	got, err := Decode(key, []byte(value))
	if err != nil || !reflect.DeepEqual(got, aRecord()) {
		t.Errorf("read as %+v, %v", got, err)
	}
}

func lsn(t *rapid.T, what string) cdc.Position {
	return cdc.Position(rapid.Uint64Range(1, 1<<63-1).Draw(t, what))
}

// records draws any record that may be stored.
func records() *rapid.Generator[*Record] {
	return rapid.Custom(func(t *rapid.T) *Record {
		name := rapid.StringN(1, 20, -1).Filter(func(s string) bool { return strings.ToValidUTF8(s, "") == s })
		r := &Record{
			Version: version,
			Name:    name.Draw(t, "name") + rapid.SampledFrom([]string{"", "/", "/3", "//", "/a/7"}).Draw(t, "slashes"),
			Epoch:   rapid.Uint64Min(1).Draw(t, "epoch"), SystemID: name.Draw(t, "system"),
			Timeline: rapid.Uint32Min(1).Draw(t, "timeline"), Slot: name.Draw(t, "slot"), Database: name.Draw(t, "database"),
			Position: lsn(t, "lsn"), RunID: rapid.StringN(0, 9, -1).Draw(t, "run"), Holder: rapid.StringN(0, 9, -1).Draw(t, "holder"),
			Time: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC(),
		}
		if rapid.Bool().Draw(t, "next?") {
			r.Next = &Next{
				Commit: lsn(t, "commit"), CommitEnd: lsn(t, "end") - 1,
				Rows: rapid.IntMin(0).Draw(t, "rows"), LastEventID: rapid.String().Draw(t, "id"),
			}
		}
		if rapid.Bool().Draw(t, "published?") {
			r.Published = &Published{Published: publishes(), LSN: lsn(t, "look").LSN(), Time: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "at"), 0).UTC()}
			r.Published.OID, r.Published.Publication = rapid.Uint32Min(1).Draw(t, "oid"), name.Draw(t, "publication")
		}
		return r
	})
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := records().Draw(t, "record")
		value := r.Encode()
		got, err := Decode(r.HolderKey(), value)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Fatalf("is %+v (%+v), was %+v (%+v)", got, got.Next, r, r.Next)
		}
		if again := got.Encode(); !bytes.Equal(again, value) {
			t.Fatalf("the second time it is %s, the first time %s", again, value)
		}
	})
}

func TestWhatIsNotUnderstoodIsAnError(t *testing.T) {
	const key = "shop.walpost/7.2c1f"
	value := string(aRecord().Encode())
	edit := func(old, with string) string {
		if strings.Count(value, old) != 1 {
			t.Fatalf("%s is %d times in %s", old, strings.Count(value, old), value)
		}
		return strings.Replace(value, old, with, 1)
	}
	for _, c := range []struct{ what, key, value, says string }{
		{"nothing", key, "", "unexpected end"},
		{"null", key, "null", "version is missing"},
		{"no object", key, "7", "cannot unmarshal"},
		{"half of it", key, value[:len(value)/2], "unexpected end"},
		{"something behind", key, value + "{}", "after top-level value"},
		{"no version", key, edit(`"version":2,`, ``), "version is missing"},
		{"a later version", key, edit(`"version":2`, `"version":3`), "version 3 is unknown"},
		{"a later version, of which nothing else is known", key, `{"version":3,"lsn":{"at":1}}`, "version 3 is unknown"},
		{"version 0", key, edit(`"version":2`, `"version":0`), "version 0 is unknown"},
		{"version 1", key, edit(`"version":2`, `"version":1`), "version 1 is unknown"},
		{"a publication without an OID", key, edit(`"oid":16410`, `"oid":0`), "published.oid"},
		{"a publication without a look", key, edit(`"lsn":"16/B374D900",`, ``), "published.lsn"},
		{"a field it does not have", key, edit(`"run_id"`, `"runid"`), "unknown field"},
		{"a field of next that it does not have", key, edit(`"rows":2`, `"rows":2,"x":1`), "unknown field"},
		{"an LSN that is none", key, edit(`16/B374D848`, `16-B374D848`), "not a position"},
		{"an LSN that is a number", key, edit(`"16/B374D848"`, `97523456072`), "cannot unmarshal"},
		{"no LSN", key, edit(`"lsn":"16/B374D848",`, ``), "lsn must not be 0"},
		{"an empty next", key, edit(value[strings.Index(value, `{"commit_lsn"`):strings.Index(value, `,"published"`)], `{}`), "next.commit_lsn must"},
		{"a next of another kind", key, edit(`"commit_lsn":"16/B374E000"`, `"commit_lsn":"8"`), "of the kind of lsn"},
		{"rows below 0", key, edit(`"rows":2`, `"rows":-1`), "next.rows"},
		{"no system", key, edit(`"7564103926847123456"`, `""`), "system_identifier is missing"},
		{"no slot", key, edit(`"slot":"walpost",`, ``), "slot is missing"},
		{"no database", key, edit(`"database":"shop",`, ``), "database is missing"},
		{"no name", "/7.2c1f", edit(`"name":"shop.walpost",`, ``), "name is missing"},
		{"no timeline", key, edit(`"timeline":3,`, ``), "timeline must be"},
		{"a year below 0", key, edit(`2026-11-20T12:00:00.123456Z`, `0000-01-01T00:00:00+23:59`), "time must be"},
		{"epoch 0", "shop.walpost/0.2c1f", edit(`"epoch":7`, `"epoch":0`), "epoch must be"},
		{"an epoch below 0", key, edit(`"epoch":7`, `"epoch":-7`), "cannot unmarshal"},
		{"another epoch", "shop.walpost/8.2c1f", value, `"shop.walpost/7.2c1f"`},
		{"another name", "shop/7.2c1f", value, `"shop.walpost/7.2c1f"`},
		{"a key of another form", "shop.walpost/07.2c1f", value, `"shop.walpost/7.2c1f"`},
		{"another holder", "shop.walpost/7.b", value, `"shop.walpost/7.2c1f"`},
		{"no holder", "shop.walpost/7", value, `"shop.walpost/7.2c1f"`},
	} {
		r, err := Decode(c.key, []byte(c.value))
		if err == nil {
			t.Errorf("%s: read as %+v", c.what, r)
			continue
		}
		if !strings.Contains(err.Error(), `"`+c.key+`"`) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: the error must name key %s and say %q: %v", c.what, c.key, c.says, err)
		}
		if !fault.NeedsPerson(err) || fault.Retryable(err) || fault.Hint(err) == "" {
			t.Errorf("%s: a person must be asked, with a hint: %v", c.what, err)
		}
	}
}

func TestARecordThatCouldNotBeReadIsNotWritten(t *testing.T) {
	for what, change := range map[string]func(*Record){
		"no name":           func(r *Record) { r.Name = "" },
		"a name of bytes":   func(r *Record) { r.Name = "\xff" },
		"epoch 0":           func(r *Record) { r.Epoch = 0 },
		"no system":         func(r *Record) { r.SystemID = "" },
		"timeline 0":        func(r *Record) { r.Timeline = 0 },
		"no slot":           func(r *Record) { r.Slot = "" },
		"no database":       func(r *Record) { r.Database = "" },
		"position 0":        func(r *Record) { r.Position = 0 },
		"next at 0":         func(r *Record) { r.Next.Commit = 0 },
		"rows below 0":      func(r *Record) { r.Next.Rows = -1 },
		"a time out of any": func(r *Record) { r.Time = time.Unix(math.MaxInt32*1000, 0) },
	} {
		t.Run(what, func(t *testing.T) {
			r := aRecord()
			change(r)
			defer func() {
				if p, ok := recover().(string); !ok || !strings.Contains(p, "checkpoint: encode ") {
					t.Errorf("panic %v", p)
				}
			}()
			t.Errorf("written as %s", r.Encode())
		})
	}
}

func TestNewestIsTheHighestEpochOfTheName(t *testing.T) {
	store := map[string][]byte{}
	put := func(name string, epoch uint64) {
		r := aRecord()
		r.Name, r.Epoch = name, epoch
		store[r.HolderKey()] = r.Encode()
	}
	read := func(name string) (uint64, []string) {
		t.Helper()
		before := maps.Clone(store)
		r, older, err := newest(name, store)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(before, store) {
			t.Error("the caller's map was changed")
		}
		if r == nil {
			return 0, older
		}
		if r.Name != name {
			t.Errorf("asked for %q, got %q", name, r.Name)
		}
		return r.Epoch, older
	}
	if epoch, older := read("shop"); epoch != 0 || older != nil {
		t.Errorf("of nothing: %d, %q", epoch, older)
	}
	put("shop", 9)
	put("shop", 10) // not after 9 as text
	for epoch := uint64(2); epoch < 9; epoch++ {
		put("shop", epoch)
	}
	put("shop/7", 11) // another name that begins the same: its key is shop/7/11.2c1f
	put("shop/", 12)
	put("shopping", 13)
	for name, want := range map[string]struct {
		epoch uint64
		older []string
	}{
		"shop": {10, []string{"shop/2.2c1f", "shop/3.2c1f", "shop/4.2c1f", "shop/5.2c1f", "shop/6.2c1f", "shop/7.2c1f", "shop/8.2c1f", "shop/9.2c1f"}}, "shop/7": {11, nil}, "shop/": {12, nil}, "shopping": {13, nil}, "sho": {0, nil},
	} {
		if epoch, older := read(name); epoch != want.epoch || !slices.Equal(older, want.older) {
			t.Errorf("of %q: %d, %q; must be %d, %q", name, epoch, older, want.epoch, want.older)
		}
	}
}

// TestOneUnreadableRecordIsEnough: it may be newer than all that can be read, or of a walpost that knows more.
func TestOneUnreadableRecordIsEnough(t *testing.T) {
	for _, c := range []struct {
		key, value string
		bad        bool
	}{
		{"shop.walpost/3", "{}", true},
		{"shop.walpost/9", "{}", true},
		{"shop.walpost/9", "", true},
		{"shop.walpost/x", "{}", true},
		{"shop.walpost/", "{}", true},
		{"shop.walpost/18446744073709551616", "{}", true},
		{"shop.walpost/x/3", "{}", false}, // of shop.walpost/x
		{"another/3", "{}", false},
	} {
		r := aRecord()
		got, _, err := newest(r.Name, map[string][]byte{r.HolderKey(): r.Encode(), c.key: []byte(c.value)})
		if c.bad && (err == nil || got != nil || !strings.Contains(err.Error(), c.key)) {
			t.Errorf("beside %s=%s: %v, %v", c.key, c.value, got, err)
		}
		if !c.bad && (err != nil || got == nil) {
			t.Errorf("beside %s=%s: %v, %v", c.key, c.value, got, err)
		}
	}
}

// FuzzDecode looks for a value that panics, or is taken and can not be written and read again.
func FuzzDecode(f *testing.F) {
	f.Add("shop.walpost/7.2c1f", aRecord().Encode())
	f.Add("a/1.", []byte(`{"version":2,"name":"a","epoch":1,"system_identifier":"1","timeline":1,"slot":"s","database":"d","lsn":"0/1","run_id":"","time":"0001-01-01T00:00:00Z"}`))
	f.Add("a/1.", []byte(`{"version":2,"name":"a","epoch":1,"system_identifier":"1","timeline":1,"slot":"s","database":"d","lsn":"0/1","run_id":"","time":"2026-11-20T12:00:00+01:00"}`))
	f.Add("a/1.", []byte(`{"version":2,"name":"a","epoch":1,"system_identifier":"1","timeline":1,"slot":"s","database":"d","lsn":"0/1","run_id":"","time":"0000-01-01T00:00:00+23:59"}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		r, err := Decode(key, value)
		if err != nil {
			var p interface{ NeedsPerson() bool }
			if r != nil || !errors.As(err, &p) {
				t.Fatalf("%v with %v", r, err)
			}
			return
		}
		again, err := Decode(key, r.Encode())
		if err != nil {
			t.Fatalf("%q was read, and not read again: %v", value, err)
		}
		if !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

// Two processes may take one epoch: the first one lost the slot before its record was there. Each has a key of its own, and the one that has
// come furthest is right.
func TestOfTwoHoldersOfOneEpochTheFurtherOneIsTheNewest(t *testing.T) {
	of := func(holder string, change func(r *Record)) *Record {
		r := aRecord()
		r.Holder, r.Next = holder, nil
		change(r)
		return r
	}
	copied := func(rows uint64) func(*Record) {
		return func(r *Record) { r.Copy = &Copy{Origin: OriginSnapshot, Slot: true, Rows: rows} }
	}
	for what, c := range map[string]struct{ further, behind func(r *Record) }{
		"epoch":            {func(r *Record) { r.Epoch++; r.Position-- }, func(*Record) {}},
		"position":         {func(r *Record) { r.Position++ }, func(r *Record) { r.Next = &Next{Commit: r.Position + 1, Rows: 3} }},
		"rows of a copy":   {copied(4), copied(3)},
		"end of a copy":    {func(*Record) {}, copied(4)},
		"part of the next": {func(r *Record) { r.Next = &Next{Commit: r.Position + 1, Rows: 1} }, func(*Record) {}},
	} {
		for _, holders := range [][2]string{{"a", "b"}, {"b", "a"}} {
			further, behind := of(holders[0], c.further), of(holders[1], c.behind)
			got, older, err := newest(further.Name, map[string][]byte{further.HolderKey(): further.Encode(), behind.HolderKey(): behind.Encode()})
			if err != nil || got.Holder != further.Holder || !slices.Equal(older, []string{behind.HolderKey()}) || got.HolderKey() != further.HolderKey() {
				t.Errorf("%s, held by %q: %+v, older %q, %v", what, holders, got, older, err)
			}
		}
	}
}
