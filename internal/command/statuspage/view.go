package statuspage

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/service"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

// A View is /api/status. It is walpost.Status under the names of its tags, and what JSON says in another
// form. Positions are LSNs as Postgres prints them, or transaction ids if the table is polled; what
// cannot be told is null.
type View struct {
	walpost.Status

	Version    string  `json:"version"`
	Runbook    string  `json:"runbook"`     // the page of the documentation for the state; "" if events flow
	NowSeconds float64 `json:"now_seconds"` // of this machine's clock, for rates

	Halt *Halt `json:"halt"` // the event that the relay is halted by; null where there is none

	Source struct {
		Database string `json:"database"`
		SystemID string `json:"system_identifier"`
		Timeline uint32 `json:"timeline"`
	} `json:"source"`

	AcceptedGaps []AcceptedGap `json:"accepted_gaps"` // not closed yet, oldest first; the cleanup removes nothing

	Position struct {
		Received   string `json:"received"`
		Safe       string `json:"safe"`
		Checkpoint string `json:"checkpoint"`
		Confirmed  string `json:"confirmed"`
	} `json:"position"`

	Window struct {
		Events int     `json:"events"`
		Bytes  int64   `json:"bytes"`
		Full   float64 `json:"full_seconds"`
	} `json:"window"`

	Slot Slot  `json:"slot"` // empty if the table is polled
	Poll *Poll `json:"poll"` // null if the WAL is read

	Undelivered string      `json:"undelivered"`       // how many events are dead or parked now, in words; "" for none
	DeadLetters *uint64     `json:"dead_letters"`      // since the start; null where there are none and delivery.on_poison is halt
	OpenDead    *int        `json:"open_dead_letters"` // neither retried nor dropped; null while that is not known
	OpenDeadErr string      `json:"open_dead_letters_error"`
	NewestDead  []deadView  `json:"newest_dead_letters"` // newest first
	Parked      *parkedView `json:"parked"`              // null where nothing is parked and no policy is park_key
	DeadList    string      `json:"dead_list_command"`   // lists all events that were put aside

	ReloadError  string    `json:"reload_error"` // why the newest reload of the configuration was refused; "" if it was not
	LastError    string    `json:"last_error"`
	LastErrorAgo age.Since `json:"last_error_seconds_ago"`
}

// An AcceptedGap is a gap that a person has accepted and not closed.
type AcceptedGap struct {
	Token   string  `json:"token"`
	Gap     string  `json:"gap"` // what may be missing
	Age     float64 `json:"seconds_ago"`
	Command string  `json:"command"` // that closes it
}

func acceptedGapsOf(s *walpost.Status, now time.Time) []AcceptedGap {
	all := []AcceptedGap{}
	for _, a := range s.Accepted {
		all = append(all, AcceptedGap{a.Token, a.Gap, max(0, now.Sub(a.Time).Seconds()), advice.Close(a.Token)})
	}
	return all
}

// deadView is an event that went to the dead letter topic.
type deadView struct {
	relay.DeadLetter
	Commands []string `json:"commands"` // that show the event, and deliver it after a repair
}

// parkedView is what is parked.
type parkedView struct {
	Keys   int             `json:"keys"`
	Events int             `json:"events"`
	Age    *float64        `json:"oldest_seconds"` // null where nothing is parked
	Oldest []parkedKeyView `json:"oldest_keys"`    // oldest first
}

// parkedKeyView is a parked key. The token and the reason are those of the event that the others wait for.
type parkedKeyView struct {
	Table  string  `json:"table"`
	Key    string  `json:"key"`
	Events int     `json:"events"`
	Token  string  `json:"token"`
	Reason string  `json:"reason"`
	Tries  int     `json:"attempts"`
	Age    float64 `json:"oldest_seconds"`

	Commands []string `json:"commands"` // that show the event, and have the key released after a repair
}

func parkedViewOf(s *walpost.Status, now time.Time) *parkedView {
	if !s.Park && s.Parked.Keys == 0 {
		return nil
	}
	v := &parkedView{Keys: s.Parked.Keys, Events: s.Parked.Events, Age: ago(parking.Since(s.OldestParked), now), Oldest: []parkedKeyView{}}
	for _, p := range s.OldestParked {
		v.Oldest = append(v.Oldest, parkedKeyView{
			Table: p.Key.Table, Key: p.Key.Key, Events: p.Events, Token: p.First.Token, Reason: string(p.First.Reason), Tries: p.First.Attempts,
			Age: max(0, now.Sub(p.First.CommitTime).Seconds()), Commands: deadCommands(p.First.Token),
		})
	}
	return v
}

// undelivered says how many events are dead or parked.
func undelivered(dead *int, keys, events int) string {
	counted := func(n int, what string) string {
		if n != 1 {
			what += "s"
		}
		return fmt.Sprint(n, " ", what)
	}
	var parts []string
	all := events
	if dead != nil && *dead > 0 {
		parts = append(parts, counted(*dead, "dead letter"))
		all += *dead
	}
	if events > 0 {
		parts = append(parts, counted(events, "parked event")+" of "+counted(keys, "key"))
	}
	switch all {
	case 0:
		return ""
	case 1:
		return parts[0] + " is not delivered"
	}
	return strings.Join(parts, " and ") + " are not delivered"
}

// deadCommands are the commands for an event that was put aside. The token names a parked key better than its text, which can be
// anything.
func deadCommands(token string) []string {
	return []string{fault.Command("dead", "show", token), fault.Command("dead", "retry", token)}
}

// A Halt is the event that a relay is halted by, and what it still delivers.
type Halt struct {
	EventID  string          `json:"event_id"`
	Table    string          `json:"table"`      // "" for a message
	Commit   string          `json:"commit_lsn"` // of its transaction; 0/0 for a row that was read from the table
	Row      int             `json:"row"`        // its number in the transaction, from 1
	Token    string          `json:"token"`      // for walpost skip; "" for a row that was read from the table
	Topic    string          `json:"topic"`      // that refused it; "" where it cannot be routed
	Error    string          `json:"error"`
	Hint     string          `json:"hint"`
	Repair   string          `json:"repair"`   // the part of the hint that passes over no event
	Commands []fault.Advice  `json:"commands"` // of the hint
	Waiting  []relay.Waiting `json:"waiting"`  // what was in flight and is not delivered, by topic
}

// positionText is a position, 0/0 for none.
func positionText(p cdc.Position) string {
	if p == 0 {
		return cdc.LSN(0).String()
	}
	return p.String()
}

func haltOf(s walpost.Status) *Halt {
	bad := s.Bad
	if bad == nil {
		return nil
	}
	v := &Halt{
		EventID: bad.EventID, Table: bad.Table.String(), Commit: positionText(bad.Commit), Row: bad.Row, Token: bad.Token, Topic: bad.Topic,
		Error: bad.Reason(), Hint: bad.Hint(), Repair: bad.Repair(), Commands: bad.Commands(), Waiting: append([]relay.Waiting{}, s.Waiting...),
	}
	return v
}

// A Slot is the slot, in /api/status and in walpost status --json: slot.Status, and what JSON says in another form.
type Slot struct {
	slot.Status

	Retained    *int64   `json:"retained_bytes"`
	Unconfirmed *int64   `json:"unconfirmed_bytes"`
	SafeWAL     *int64   `json:"safe_wal_bytes"`
	Keep        *int64   `json:"max_slot_wal_keep_bytes"`
	Exhaustion  *float64 `json:"exhaustion_seconds"`
	Left        *int64   `json:"left_bytes"` // of Limit
	WALRate     *float64 `json:"wal_write_bytes_per_second"`
	Inactive    *float64 `json:"inactive_seconds"`
	ClockSkew   float64  `json:"clock_skew_seconds"` // the database's clock minus ours
	CheckedAgo  *float64 `json:"checked_seconds_ago"`

	Blocker     string       `json:"blocker"`
	BlockerEnd  string       `json:"blocker_end"` // the SQL that ends it
	BlockerFull *blockerView `json:"blocker_detail"`
}

type blockerView struct {
	*slot.Blocker
	Age      float64 `json:"age_seconds"`
	QueryAge float64 `json:"query_age_seconds"`
}

func viewOf(s walpost.Status, version string, now time.Time) View {
	v := View{
		Status: s, Version: version, Runbook: runbook(&s), NowSeconds: float64(now.UnixMilli()) / 1000,
		Halt:         haltOf(s),
		AcceptedGaps: acceptedGapsOf(&s, now),
		Slot:         SlotOf(s.Slot, now),
		Poll:         PollOf(s.Poll, now),
		NewestDead:   []deadView{},
		Parked:       parkedViewOf(&s, now), DeadList: fault.Command("dead", "list"),
	}
	if v.Troubles = append([]relay.Trouble{}, s.Troubles...); len(s.Troubles) > 0 { // never null
		v.LastError, v.LastErrorAgo = s.Troubles[0].Text, s.Troubles[0].At
	}
	for _, counts := range []*map[string]uint64{&v.Topics, &v.Sessions} {
		if *counts == nil {
			*counts = map[string]uint64{}
		}
	}
	if v.Recent == nil {
		v.Recent = map[string][]relay.Sent{}
	}
	v.Source.Database, v.Source.SystemID, v.Source.Timeline = s.Slot.Database, s.Identity.SystemID, s.Identity.Timeline
	if s.Poll != nil {
		v.Source.Database = s.Identity.Database
	}
	position := positionText
	if s.Poll != nil {
		position = cdc.Position.String
	}
	v.Position.Received, v.Position.Safe = position(s.Received), position(s.Safe)
	v.Position.Checkpoint, v.Position.Confirmed = position(s.Checkpoint), position(s.Confirmed)
	v.Window.Events, v.Window.Bytes, v.Window.Full = s.Window.Events, int64(s.Window.Bytes), s.WindowFull.Seconds()
	for _, d := range s.NewestDead {
		v.NewestDead = append(v.NewestDead, deadView{d, deadCommands(d.Token)})
	}
	if s.Bury || len(s.DeadLetters) > 0 { // walpost skip writes dead letters, too
		n := uint64(0)
		for _, count := range s.DeadLetters {
			n += count
		}
		v.DeadLetters = &n
	}
	if dead := s.OpenDeadLetters; dead != nil && dead.Err != nil {
		v.OpenDeadErr = dead.Err.Error()
	} else if dead != nil {
		v.OpenDead = &dead.Open
	}
	v.Undelivered = undelivered(v.OpenDead, s.Parked.Keys, s.Parked.Events)
	return v
}

const notReady = "runbooks/WalpostRelayNotReady.md"

// runbooks are the pages for the states in which a person may have to act.
var runbooks = map[relay.State]string{
	relay.Halted: "runbooks/WalpostRelayHalted.md", relay.Stopped: notReady, relay.Hung: notReady, relay.Stalled: notReady, relay.NoCheckpoint: notReady,
	relay.Connecting: notReady, relay.SlotAtRisk: "runbooks/WalpostSlotRetainedHigh.md", relay.Standby: notReady, relay.CopyingRows: "backfill.md",
}

func runbook(s *walpost.Status) string {
	page := runbooks[s.State]
	switch halted := s.State == relay.Halted; {
	case halted && s.Bad != nil:
		page += "#a-bad-event"
	case s.Breaker != nil && s.Breaker.State != slot.BreakerArmed && (halted && s.Breaker.Action == slot.BreakerDrop || s.State == relay.SlotAtRisk):
		page = "runbooks/WalpostBreakerTripped.md"
	case !halted && s.State != relay.SlotAtRisk || !s.Slot.Known:
	case !s.Slot.Exists:
		page = "runbooks/WalpostSlotMissing.md"
	case s.Slot.Limit == slot.ByRemoval:
		page = "runbooks/WalpostSlotLost.md"
	case s.Slot.WALStatus == "unreserved" && !halted:
		page = "runbooks/WalpostSlotUnreserved.md"
	}
	if page == "" {
		return ""
	}
	return "https://github.com/walpost/walpost/blob/main/docs/" + page
}

// SlotOf is what is known of a slot now.
func SlotOf(s slot.Status, now time.Time) Slot {
	v := Slot{
		Status:   s,
		Retained: known(s.RetainedBytes, s.Exists && s.RetainedBytes >= 0), Unconfirmed: known(s.UnconfirmedBytes, s.Exists && s.UnconfirmedBytes >= 0),
		SafeWAL: known(s.SafeBytes, s.SafeKnown), Keep: known(s.KeepBytes, s.KeepBytes >= 0 && !s.At.IsZero()),
		Exhaustion: known(s.Exhaustion, !math.IsInf(s.Exhaustion, 1)), Left: known(s.Left, s.Limit == slot.ByKeep || s.Limit == slot.ByDisk),
		WALRate: known(s.WALRate, s.WALRate >= 0), Inactive: known(s.InactiveFor.Seconds(), s.Exists && !s.Active),
		ClockSkew: s.ClockSkew.Seconds(), CheckedAgo: ago(s.At, now),
	}
	v.Reasons = append([]string{}, s.Reasons...) // never null
	if b := s.Blocker; b != nil {
		v.Blocker, v.BlockerEnd, v.BlockerFull = b.String(), b.End, &blockerView{b, b.Age.Seconds(), b.QueryAge.Seconds()}
	}
	return v
}

// known is a number, or nil if it is not known.
func known[T int64 | float64](n T, ok bool) *T {
	if !ok {
		return nil
	}
	return &n
}

// ago is the age of a time, or nil for one that has not come.
func ago(t, now time.Time) *float64 {
	if t.IsZero() {
		return nil
	}
	age := max(0, now.Sub(t).Seconds())
	return &age
}

// stuckLimit is how long the loop may take for one turn. It publishes its state four times a second, and the longest
// thing that it ever waits for at one place is some seconds of a last Confirm and Close.
const stuckLimit = time.Minute

// stuckFor is how long the relay's loop has not turned, or 0 where that is as it should be. A halted relay lives: its halt
// is for readiness to tell, and a restart would not help.
func stuckFor(s walpost.Status, now time.Time) time.Duration {
	if slices.Contains([]relay.State{relay.Starting, relay.Halted, relay.Stopped}, s.State) {
		return 0
	}
	if still := now.Sub(s.Turned); !s.Turned.IsZero() && still > stuckLimit {
		return still
	}
	return 0
}

// seen is the relay's status with one correction: a relay whose loop hangs is not ready, whatever it published last.
func seen(r Relay, now time.Time) walpost.Status {
	s := r.Status()
	if stuck := stuckFor(s, now); stuck > 0 {
		s.State, s.Ready, s.Reason = relay.Hung, false, fmt.Sprintf("the relay has made no progress for %s", stuck.Round(time.Second))
	}
	return s
}

// readyFor reports whether the relay is ready. With standbyOK it is also ready while it waits for another relay to end.
func readyFor(s walpost.Status, standbyOK bool) bool {
	return s.Ready || standbyOK && s.State == relay.Standby
}

// Service is what systemd is told about the relay: the answer of /livez, and the state with its reason.
func Service(r Relay) service.Report {
	now := time.Now()
	s := seen(r, now)
	text := string(s.State)
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return service.Report{Alive: stuckFor(r.Status(), now) == 0, Text: text}
}
