package relay

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/walpost/walpost/cdc"
)

type keeper struct {
	told  []string
	again bool
}

func (k *keeper) Delivered(row uint32) { k.told = append(k.told, fmt.Sprint("delivered ", row)) }
func (k *keeper) Returned(row uint32)  { k.told = append(k.told, fmt.Sprint("returned ", row)) }
func (k *keeper) Overdue() error       { return nil }
func (k *keeper) Refused(row uint32, why string) bool {
	k.told = append(k.told, fmt.Sprintf("refused %d: %s", row, why))
	return k.again
}

func TestAKeeperIsToldOfEachOutcome(t *testing.T) {
	large := &cdc.Refusal{Reason: cdc.Unroutable, Topic: "a", Err: errors.New("too large")}
	rec := &cdc.Record{Topic: "a", Key: []byte("k")}
	for what, c := range map[string]struct {
		ack         cdc.Ack
		again, ends bool
		told        []string
		taken       []string // of the keys k, j and none
	}{
		"acknowledged":                 {ack: cdc.Ack{}, told: []string{"delivered 7"}},
		"taken back":                   {ack: cdc.Ack{Err: cdc.ErrTakenBack, Record: rec}, ends: true, told: []string{"returned 7"}},
		"refused, and again":           {ack: cdc.Ack{Err: large, Record: rec}, again: true, ends: true, told: []string{"refused 7: too large"}, taken: []string{"k"}},
		"refused, at last":             {ack: cdc.Ack{Err: large, Record: rec}, told: []string{"refused 7: too large"}},
		"refused without a key":        {ack: cdc.Ack{Err: large, Record: &cdc.Record{Topic: "a"}}, again: true, ends: true, told: []string{"refused 7: too large"}},
		"no sink, which is no attempt": {ack: cdc.Ack{Err: errors.New("closed"), Record: rec}, again: true},
	} {
		k := &keeper{again: c.again}
		c.ack.Ticket.Row, c.ack.Topic = 7, "a"
		var taken []string
		passed := false
		ends := claimEnded(k, &c.ack, func(a *cdc.Ack, of func([]byte, *cdc.Ticket) bool) {
			passed = a == &c.ack
			for _, key := range [][]byte{[]byte("k"), []byte("j"), nil} {
				if of(key, nil) {
					taken = append(taken, string(key))
				}
			}
		})
		if ends != c.ends || !slices.Equal(k.told, c.told) || !slices.Equal(taken, c.taken) || passed != (c.ends && errors.Is(c.ack.Err, large)) {
			t.Errorf("%s: ends %t, told %q, taken %q, passed %t", what, ends, k.told, taken, passed)
		}
	}
	if claimEnded(nil, new(cdc.Ack), nil) {
		t.Error("without a keeper nothing comes again")
	}
}
