// Package advice says what to do about a gap that a start refuses. Package checkpoint decides; the texts and the commands are here.
package advice

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// advised is an error with advice. It behaves as the error does.
type advised struct {
	error
	text     strings.Builder
	commands []fault.Advice
	last     []fault.Advice // commands for later
}

func (a *advised) Unwrap() error            { return a.error }
func (a *advised) Hint() string             { return a.text.String() }
func (a *advised) Commands() []fault.Advice { return append(a.commands, a.last...) }

// Of returns err with the advice about its *checkpoint.Refusal or *checkpoint.Unfinished. An err without one, or that has advice already, stays
// as it is.
func Of(err error) error {
	if fault.Hint(err) != "" {
		return err
	}
	a := &advised{error: err}
	if gap, ok := errors.AsType[*checkpoint.Refusal](err); ok {
		if gap.Polls() {
			a.polled(gap)
		} else {
			a.streamed(gap)
		}
		return a
	}
	if u, ok := errors.AsType[*checkpoint.Unfinished](err); ok {
		a.unfinished(u)
		return a
	}
	return err
}

// Close is the command that closes an accepted gap.
func Close(token string) string { return fault.Command("recover", "--close-gap="+token) }

// unfinished is about a recover that was interrupted.
func (a *advised) unfinished(u *checkpoint.Unfinished) {
	if u.From == "" {
		a.say("%s continues it.", a.recovers())
		if u.Token != "" {
			a.giveUp(u)
		}
		return
	}
	a.say("Run %s. If the configuration names %s, recover finishes the change. If it names %s as before, recover undoes the change, and the published rows are delivered again.",
		a.recovers(), u.To, u.From)
}

// giveUp says how to go on without the rows that an unfinished recover has not published.
func (a *advised) giveUp(u *checkpoint.Unfinished) {
	a.say("If you give up the unfinished walpost recover, the rows that it has not published stay missing.")
	a.afterwards(u.Token)
	a.say("To give it up, run %s", a.offer(lost, "run", "--accept-gap="+u.Token))
}

// say adds a sentence.
func (a *advised) say(format string, args ...any) {
	if a.text.Len() > 0 {
		a.text.WriteByte(' ')
	}
	fmt.Fprintf(&a.text, format, args...)
}

// offer is a command for a sentence, which a reader may copy.
func (a *advised) offer(givesUp string, words ...string) string {
	command := fault.Command(words...)
	a.commands = append(a.commands, fault.Advice{Command: command, GivesUp: givesUp})
	return command
}

func (a *advised) recovers() string { return a.offer("", "recover") }

// accept ends the advice with the command that accepts the gap.
func (a *advised) accept(gap *checkpoint.Refusal, sentence, givesUp string) {
	a.say("%s, run %s", sentence, a.offer(givesUp, "run", "--accept-gap="+gap.Token))
}

const (
	passes   = "note the position server in walpost status, and wait until walpost status shows a confirmed position after it. " // works on a standby, too
	onlyThis = "To accept this gap and no other"
	lost     = "the events of this gap: walpost never publishes them"
)

// afterwards says how rows are found that an accepted gap leaves out.
func (a *advised) afterwards(token string) {
	closes := Close(token)
	a.say("After the start, run %s to find these rows, and publish them with the command that verify prints, until verify lists none as missing or not_confirmed. The cleanup removes nothing until you run %s.", a.offer("", "verify"), closes)
	a.last = append(a.last, fault.Advice{Command: closes})
}

// streamed is about a gap of a slot.
func (a *advised) streamed(gap *checkpoint.Refusal) {
	gone := gap.Reason == checkpoint.SlotMissing || gap.Reason == checkpoint.SlotLost
	switch gap.Reason {
	case checkpoint.OtherTables:
		a.tables(gap)
		return
	case checkpoint.PublicationChanged:
		if !gap.Found.Tableless {
			a.publication(gap)
			return
		}
	case checkpoint.OtherPublication:
		was, is := gap.Record.Published.Publication, gap.Found.Published.Publication
		a.say("Set source.publication back to %s, start walpost, "+passes+
			"Then set source.publication to %s. If walpost still refuses, try again after a minute.", was, is)
	case checkpoint.SlotAhead:
		a.say("Find out which process uses or moved the slot, and stop it.")
		if !gap.Found.Tableless {
			a.say("If that process did not deliver the events to Kafka, drop the slot (SELECT pg_drop_replication_slot('%s');) and run %s to publish the missing events from the table.",
				gap.Found.Slot, a.recovers())
		}
	default:
		a.cause(gap)
	}
	switch record := gap.Record; {
	case gap.Found.Tableless: // recover refuses, because it has nothing to read
		a.say("The messages of this gap were only in the WAL, so no command can publish them again.")
		a.accept(gap, onlyThis, lost)
	case gap.Reason == checkpoint.OtherPublication:
		a.say("If you accept the gap, walpost reads the rest of the slot with the other publication.")
		a.accept(gap, onlyThis, lost)
	case record.Copies(checkpoint.OriginSnapshot):
		if gone {
			a.say("Run %s to create a new slot, and to publish the missing events from the table, with the rest of the snapshot.", a.recovers())
		}
		a.accept(gap, "To continue with the snapshot (it publishes some rows twice, and leaves out events of this gap whose rows are no longer in the table)", lost)
	case record.Copies(checkpoint.OriginRecover):
		if gone {
			a.say("Run %s to begin again with the original gap.", a.recovers())
		}
		if u := record.Unfinished(); u.Token != "" {
			a.giveUp(u) // the next start refuses this gap by itself
		} else {
			a.accept(gap, "To give up the unfinished change of the source and the rows that it has not published", lost)
		}
	case gone:
		a.commands = append(a.commands, fault.RecoverCommands(false)...)
		a.say("%s", fault.Recover(false))
		a.accept(gap, "To skip the events of this gap instead (and of no other gap)", lost)
	case gap.Complete():
		a.say("If this is the right server, accept the gap: walpost continues at %s, where the histories part, and skips nothing. Consumers keep the events that this server lacks.", gap.From)
		a.accept(gap, onlyThis, "no event of this server")
	case gap.NeedsSlot():
		a.say("If you accept the gap, walpost creates a new slot and starts there, so it delivers no row that was committed before.")
		a.afterwards(gap.Token)
		a.accept(gap, onlyThis, lost)
	default:
		a.say("If you accept the gap, walpost starts at the position of the slot.")
		a.accept(gap, onlyThis, lost)
	}
}

// cause is what to look at first.
func (a *advised) cause(gap *checkpoint.Refusal) {
	switch gap.Reason {
	case checkpoint.OtherSystem, checkpoint.OtherDatabase:
		a.say("If source.dsn names the wrong server or database, correct it.")
	case checkpoint.OtherSlot:
		a.say("If source.slot is wrong, correct it: it was %q.", gap.Record.Slot)
	case checkpoint.TimelineBack:
		a.say("Connect to the current primary, and remove the old primary from source.dsn.")
	case checkpoint.SlotMissing:
		a.say("If another server has the slot, connect to that server.")
	case checkpoint.SlotLost:
		a.say("Postgres has invalidated the slot, so the slot cannot be used again.")
	case checkpoint.TimelineForked, checkpoint.ServerBehind:
		reused := ""
		if gap.Polls() {
			reused = ", and the server may have assigned the ids of their transactions again"
		}
		a.say("Delivered events may no longer exist in this database%s: find out which server was restored or promoted, and to which time.", reused)
	default: // the others say it in their own way
	}
}

// publication is about a publication that was changed.
func (a *advised) publication(gap *checkpoint.Refusal) {
	recovers := a.recovers()
	a.say("Run %s to publish the missing events from the table; recover keeps the slot.", recovers)
	if c := gap.Changes[0]; c.Table == "" && c.How == checkpoint.Replaced {
		a.say("If walpost run then halts because the slot must still read WAL from a time when the publication did not exist, drop the slot and run %s once more.", recovers)
	}
	a.accept(gap, "To continue without these rows instead (the token accepts only this gap)", lost)
}

// tables is about a record that has none of the configured tables.
func (a *advised) tables(gap *checkpoint.Refusal) {
	names := func(p *cdc.Published) string {
		all := make([]string, len(p.Tables))
		for i := range p.Tables {
			all[i] = p.Tables[i].Name
		}
		return strings.Join(all, ", ")
	}
	was, is, also := &gap.Record.Published.Published, &gap.Found.Published, ""
	if was.Publication != is.Publication {
		also = " and source.publication to " + was.Publication
	}
	a.say("If another relay delivers %[1]s, set source.slot, source.publication and name to names that only this relay uses. "+
		"If this relay is to deliver %[2]s from now on, first set source.tables to [%[1]s, %[2]s]%[3]s, and start walpost. When no application writes to %[1]s, "+
		passes+"Then take %[1]s out of source.tables.", names(was), names(is), also)
	a.accept(gap, "To give up the rows of "+names(was)+" that the slot still holds (the token accepts only this gap)", lost)
}

// polled is about a gap where one of the two sources polls.
func (a *advised) polled(gap *checkpoint.Refusal) {
	switch gap.Reason {
	case checkpoint.OtherSource:
		a.say("If source.kind, source.poll.strategy or source.poll.xid_column is wrong, correct it.")
		if gap.OtherStrategy() {
			a.say("To change source.poll.strategy on purpose, stop every walpost process of this relay, and run %s: recover makes the table and the checkpoint agree, and then walpost run continues.", a.recovers())
			return
		}
		a.say("To change the source on purpose, run %s: recover publishes the rows that are not in Kafka, and then walpost run continues.", a.recovers())
	case checkpoint.TableReplaced:
		a.say("If source.table is wrong, or the table got this name by mistake, correct that. The former table may have undelivered rows.")
	default:
		a.cause(gap)
	}
	accepting := "If you accept the gap"
	if gap.ChangesSource() && gap.Reason != checkpoint.OtherSource {
		was, is := gap.Sources()
		a.say("The source also changes from %s to %s, but the checkpoint cannot say which rows of this server are delivered. "+
			"First set source.kind, source.poll.strategy and source.poll.xid_column back, start walpost run, and accept the gap that it reports. Then change the source.", was, is)
		if gap.OtherStrategy() {
			return
		}
		accepting = "If the former source can no longer start, and you accept the gap"
	}
	switch {
	case gap.Claims():
		a.say("%s, walpost delivers each row that is not finished, and leaves none out.", accepting)
		givesUp := "no event, but some may be delivered twice"
		if gap.Reason == checkpoint.TableReplaced {
			givesUp = "the rows of the former table that are not delivered"
		}
		a.accept(gap, onlyThis, givesUp)
		return
	case gap.Reason == checkpoint.TableReplaced:
		a.say("%s, walpost continues at its position, so it delivers no row of an older transaction.", accepting)
	case gap.Found.Polled == nil:
		a.say("%s, walpost starts at the position of the slot, so it delivers no row that was committed before.", accepting)
	default:
		a.say("%s, walpost starts with the transactions that are open at that moment, so it delivers no row that was committed before.", accepting)
	}
	a.afterwards(gap.Token)
	a.accept(gap, onlyThis, "the events of this gap: walpost does not publish them by itself")
}
