package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// sorted returns what a sorter gives for strings.
func sorted(t *testing.T, memory int, strings [][]byte) (out [][]byte) {
	t.Helper()
	dir := t.TempDir()
	s := newSorter(dir, memory)
	defer s.close()
	for _, b := range strings {
		if err := s.add(b); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the folder of the sort has %v, %v: a killed process would leave it", left, err)
	}
	if err := s.each(t.Context(), func(b []byte) error { out = append(out, bytes.Clone(b)); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestASorterSortsMoreThanItsMemory(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 0))
	var in [][]byte
	for range 20_000 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = byte(rnd.IntN(3)) // many have a common beginning, and some are equal
		}
		in = append(in, b)
	}
	for _, memory := range []int{1 << 10, 100 << 10, 4 << 20} {
		want := slices.SortedFunc(slices.Values(in), bytes.Compare)
		if got := sorted(t, memory, in); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("with %d bytes: %d strings of %d, or another order", memory, len(got), len(want))
		}
	}
	if got := sorted(t, 100, nil); len(got) > 0 {
		t.Errorf("an empty sort gives %q", got)
	}
	if err := newSorter(t.TempDir(), 1<<20).add(make([]byte, maxString+1)); err == nil {
		t.Error("a string that is too long is taken")
	}
}

func TestAnEntryIsParsedAsItWasAppended(t *testing.T) {
	e := entry{
		kind: delivered, table: 3, topic: 70_000, partition: -1, offset: 1 << 40, other: 7, key: [16]byte{1, 2, 15: 9}, value: 1 << 63, headers: 5, whole: 6,
		time: unknown, stamp: -1, age: 1 << 50, tx: 1<<32 - 1, rank: -1 << 63, flags: marked | ranked, id: []byte("id"), keyText: []byte{},
	}
	var got entry
	got.parse(e.append(nil))
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", e) {
		t.Errorf("%+v\nmust be\n%+v", got, e)
	}
}

// What the digests leave out is exactly what a row does not decide.
func TestTheDigestsOfARecord(t *testing.T) {
	h := newHasher()
	make := func(key, value string, at int64, headers ...string) (e entry) {
		var list []cdc.Header
		for i := 0; i < len(headers); i += 2 {
			list = append(list, cdc.Header{Key: headers[i], Value: []byte(headers[i+1])})
		}
		if id, found := h.content(&e, []byte(key), []byte(value), list); found != (len(headers) > 0 && headers[0] == "id") || found && string(id) != "7" {
			t.Errorf("headers %q: id %q, %t", headers, id, found)
		}
		e.time, e.stamp = at, unknown
		h.record(&e, list)
		return e
	}
	one := make("k", "v", 1, "id", "7", "type", "x")
	for name, c := range map[string]struct {
		e     entry
		whole bool
		what  string
	}{
		"the same":           {make("k", "v", 1, "id", "7", "type", "x"), true, ""},
		"another time":       {make("k", "v", 2, "id", "7", "type", "x"), false, ""},
		"an origin":          {make("k", "v", 1, "id", "7", "type", "x", "walpost.origin", "recover"), false, ""},
		"another key":        {make("l", "v", 1, "id", "7", "type", "x"), false, "key"},
		"another value":      {make("k", "", 1, "id", "7", "type", "x"), false, "value"},
		"another header":     {make("k", "v", 1, "id", "7", "type", "y"), false, "headers"},
		"headers that shift": {make("k", "v", 1, "id", "7", "typex", ""), false, "headers"},
		"several":            {make("l", "w", 1, "id", "7"), false, "key, value, headers"},
	} {
		if what := difference(&one, &c.e); what != c.what || (c.e.whole == one.whole) != c.whole {
			t.Errorf("%s: differs in %q, byte-identical %t", name, what, c.e.whole == one.whole)
		}
	}
	if e := make("k", "v", 1, "id", "7", "walpost.origin", "snapshot"); !e.has(marked) {
		t.Error("a record of a snapshot is not marked")
	}
	var null, empty entry
	h.content(&null, nil, nil, nil)
	h.content(&empty, []byte{}, []byte{}, nil)
	if what := difference(&null, &empty); what != "key, value" {
		t.Errorf("null and empty differ in %q", what)
	}
}

// A set of numbers is the oracle.
func TestOffsetsFindTheirNeighbours(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 0))
	for round := range 30 {
		var s offsets
		all := map[int64]bool{}
		spread := []int64{100, 3 * chunkBits, 1 << 40}[round%3]
		base := rnd.Int64N(spread)
		for range rnd.IntN(60) {
			o := base + rnd.Int64N(spread)
			if rnd.IntN(2) == 0 && len(all) > 0 { // close to another
				for near := range all {
					o = near + 1
					break
				}
			}
			s.add(o)
			all[o] = true
		}
		list := []int64{}
		for o := range all {
			list = append(list, o)
		}
		slices.Sort(list)
		for range 300 {
			o := rnd.Int64N(base + spread + 2)
			if len(list) > 0 && rnd.IntN(2) == 0 {
				o = list[rnd.IntN(len(list))] + rnd.Int64N(3) - 1
			}
			after, before := int64(-1), int64(-1)
			for _, x := range list {
				if x < o {
					before = x
				}
				if x > o && after < 0 {
					after = x
				}
			}
			if got := s.after(o); got != after {
				t.Fatalf("after %d is %d, must be %d", o, got, after)
			}
			if got := s.before(o); got != before {
				t.Fatalf("before %d is %d, must be %d", o, got, before)
			}
		}
	}
}

func BenchmarkSorter(b *testing.B) {
	s := newSorter(b.TempDir(), sortMemory)
	defer s.close()
	entry := make([]byte, 150)
	rnd := rand.New(rand.NewPCG(3, 0))
	for b.Loop() {
		binary.BigEndian.PutUint64(entry, rnd.Uint64())
		if err := s.add(entry); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.each(b.Context(), func([]byte) error { return nil }); err != nil {
		b.Fatal(err)
	}
}
