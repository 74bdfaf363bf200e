package advice

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// of is the advice about a gap. Each command that it offers is in its text, and it begins as a sentence does.
func of(t *testing.T, gap *checkpoint.Refusal) (text string, offers []string) {
	t.Helper()
	err := Of(fmt.Errorf("session: %w", gap))
	if !fault.NeedsPerson(err) || fault.Retryable(err) || err.Error() != "session: "+gap.Error() {
		t.Errorf("it behaves in another way: %v", err)
	}
	text = fault.Hint(err)
	for _, a := range fault.Commands(err) {
		if !strings.Contains(text, a.Command) {
			t.Errorf("it lacks %q: %s", a.Command, text)
		}
		offers = append(offers, strings.Join(strings.Fields(a.Command)[1:], " "))
	}
	if text == "" || text[0] < 'A' || text[0] > 'Z' || strings.Contains(text, "  ") {
		t.Errorf("%s: %q", gap.Reason, text)
	}
	return text, offers
}

var (
	seen    = cdc.Published{Publication: "walpost", OID: 5, Tables: []cdc.PublishedTable{{Name: "public.outbox", OID: 7}}}
	reasons = []checkpoint.Reason{
		checkpoint.OtherSystem, checkpoint.OtherDatabase, checkpoint.OtherSlot, checkpoint.TimelineBack, checkpoint.TimelineForked, checkpoint.ServerBehind,
		checkpoint.SlotMissing, checkpoint.SlotLost, checkpoint.SlotAhead, checkpoint.OtherTables, checkpoint.OtherPublication, checkpoint.PublicationChanged,
	}
)

func gapOf(reason checkpoint.Reason) *checkpoint.Refusal {
	return &checkpoint.Refusal{
		Reason: reason, Token: "t", Changes: []checkpoint.Change{{How: checkpoint.Replaced}},
		Record: &checkpoint.Record{Name: "shop.walpost", Slot: "walpost", Published: &checkpoint.Published{Published: seen}},
		Found:  cdc.Identity{Slot: "walpost", Published: seen, SlotFound: cdc.SlotState{Exists: true}},
	}
}

// Only the token accepts a gap, and it is the last thing that is said. Whatever recover can publish is said before.
func TestEachGapOfASlotHasItsCommands(t *testing.T) {
	for _, reason := range reasons {
		text, offers := of(t, gapOf(reason))
		if !strings.HasSuffix(text, "walpost run --accept-gap=t") || !slices.Contains(offers, "run --accept-gap=t") {
			t.Errorf("%s: %s", reason, text)
		}
		if strings.Contains(text, "pg_current_wal_lsn") {
			t.Errorf("%s has a statement that fails on a standby: %s", reason, text)
		}
		closes := []checkpoint.Reason{checkpoint.SlotMissing, checkpoint.SlotLost, checkpoint.SlotAhead, checkpoint.PublicationChanged}
		if recovers := slices.Contains(offers, "recover"); recovers != slices.Contains(closes, reason) {
			t.Errorf("%s: recover is offered: %t", reason, recovers)
		}
		gap := gapOf(reason)
		gap.Found.SlotFound = cdc.SlotState{}
		if _, offers = of(t, gap); gap.NeedsSlot() && !slices.Contains(offers, "recover") && !slices.Contains(offers, "recover --close-gap=t") {
			t.Errorf("%s without a slot: neither recover nor verify finds the rows: %q", reason, offers)
		}
		// Without a table, recover refuses.
		if gap.Found.Tableless = true; reason == checkpoint.OtherTables {
			continue
		}
		if text, _ = of(t, gap); strings.Contains(text, "recover") {
			t.Errorf("%s without a table: %s", reason, text)
		}
	}
}

func TestAnUnfinishedCopyIsPartOfTheGap(t *testing.T) {
	for origin, gives := range map[string]string{checkpoint.OriginSnapshot: "To continue with the snapshot", checkpoint.OriginRecover: "give up the unfinished walpost recover"} {
		for _, reason := range []checkpoint.Reason{checkpoint.SlotMissing, checkpoint.SlotLost, checkpoint.OtherSystem} {
			gap := gapOf(reason)
			gap.Record.Copy = &checkpoint.Copy{Origin: origin}
			if text, offers := of(t, gap); !strings.Contains(text, gives) || slices.Contains(offers, "recover") != (reason != checkpoint.OtherSystem) {
				t.Errorf("%s, %s: %s", origin, reason, text)
			}
		}
	}
}

// The advice depends on who knows which rows are delivered: the position, or the table.
func TestTheAdviceAboutAPolledTable(t *testing.T) {
	verify, accept, closes := "verify", "run --accept-gap=t", "recover --close-gap=t"
	for name, c := range map[string]struct {
		reason  checkpoint.Reason
		was, is string // the strategy
		claims  bool
		offers  []string
		says    string
		givesUp string
	}{
		"a failover, cursor":           {reason: checkpoint.ServerBehind, was: "cursor", is: "cursor", offers: []string{verify, accept, closes}, says: "assigned the ids"},
		"a failover, claim":            {reason: checkpoint.ServerBehind, was: "claim", is: "claim", claims: true, offers: []string{accept}, givesUp: "twice"},
		"another server":               {reason: checkpoint.OtherSystem, was: "cursor", is: "cursor", offers: []string{verify, accept, closes}, says: "source.dsn"},
		"an old primary":               {reason: checkpoint.TimelineBack, was: "cursor", is: "cursor", offers: []string{verify, accept, closes}, says: "current primary"},
		"another table":                {reason: checkpoint.TableReplaced, was: "cursor", is: "cursor", offers: []string{verify, accept, closes}, says: "continues at its position"},
		"another table, claim":         {reason: checkpoint.TableReplaced, was: "claim", is: "claim", claims: true, offers: []string{accept}, givesUp: "the former table"},
		"another strategy":             {reason: checkpoint.OtherSource, was: "cursor", is: "claim", claims: true, offers: []string{"recover"}, says: "stop every walpost process"},
		"another strategy, failover":   {reason: checkpoint.ServerBehind, was: "cursor", is: "claim", claims: true, says: "source.poll.xid_column back"},
		"from polling to a slot":       {reason: checkpoint.OtherSource, was: "cursor", offers: []string{"recover", verify, accept, closes}, says: "position of the slot"},
		"from a slot to polling":       {reason: checkpoint.OtherSource, is: "cursor", offers: []string{"recover", verify, accept, closes}, says: "open at that moment"},
		"from a slot, and a failover":  {reason: checkpoint.ServerBehind, is: "cursor", offers: []string{verify, accept, closes}, says: "source.poll.xid_column back"},
		"from polling, and a failover": {reason: checkpoint.TimelineForked, was: "cursor", offers: []string{verify, accept, closes}, says: "can no longer start"},
	} {
		gap := gapOf(c.reason)
		if c.was != "" {
			gap.Record.Slot, gap.Record.Polled = "", &cdc.Polled{Strategy: c.was, Table: "public.outbox"}
		}
		if c.is != "" {
			gap.Found.Slot, gap.Found.Polled = "", &cdc.Polled{Strategy: c.is, Table: "public.outbox", Claims: c.claims}
		}
		text, offers := of(t, gap)
		if !slices.Equal(offers, c.offers) || !strings.Contains(text, c.says) || c.claims && strings.Contains(text, "replay") || slices.Contains(offers, verify) != strings.Contains(text, "until verify lists none as missing or not_confirmed") {
			t.Errorf("%s: offers %q, must be %q: %s", name, offers, c.offers, text)
		}
		for _, a := range fault.Commands(Of(gap)) {
			if strings.Contains(a.Command, "--accept-gap") && !strings.Contains(a.GivesUp, c.givesUp) {
				t.Errorf("%s: gives up %q", name, a.GivesUp)
			}
		}
	}
}

func TestAnErrorWithoutAGapStaysAsItIs(t *testing.T) {
	plain, hinted := fmt.Errorf("lost"), fault.Config(gapOf(checkpoint.SlotLost), "another hint")
	if Of(nil) != nil || fault.Hint(Of(plain)) != "" || fault.Hint(Of(hinted)) != "another hint" {
		t.Error("it got advice")
	}
	waits := fault.Retry(fmt.Errorf("in recovery: %w", gapOf(checkpoint.ServerBehind)))
	if err := Of(waits); !fault.Retryable(err) || fault.NeedsPerson(err) || fault.Hint(err) == "" {
		t.Errorf("an error that passes: %v", err)
	}
	rec := &checkpoint.Record{Slot: "walpost", Copy: &checkpoint.Copy{Rows: 3}}
	if err := Of(rec.Unfinished()); !fault.NeedsPerson(err) || !strings.Contains(fault.Hint(err), "walpost recover continues it") ||
		!strings.Contains(fault.Hint(err), Close(rec.Unfinished().Token)) || !strings.HasSuffix(fault.Hint(err), "run --accept-gap="+rec.Unfinished().Token) {
		t.Errorf("%v: %s", err, fault.Hint(err))
	}
	rec.Copy.Former = &checkpoint.Record{Polled: &cdc.Polled{Strategy: "claim"}}
	if err := Of(rec.Unfinished()); !strings.Contains(err.Error(), `from the table, with source.poll.strategy claim to slot "walpost"`) || !strings.Contains(fault.Hint(err), `If the configuration names slot "walpost", recover finishes`) {
		t.Errorf("%v: %s", err, fault.Hint(err))
	}
}
