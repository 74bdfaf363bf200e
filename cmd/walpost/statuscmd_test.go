package main

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

// What walpost status prints, whole, for each kind of slot.
func TestStatusPrintsWhatAPersonNeeds(t *testing.T) {
	const gib = 1 << 30
	const blocked, once = "blocked, and spilling", "looked at once"
	samples := map[string]string{blocked: "docs/troubleshooting.md", once: "docs/getting-started.md"} // with … for the lines left out
	fine := func() slot.Status {
		return slot.Status{
			Known: true, Severity: slot.OK, Forecast: slot.Forecast{Exhaustion: math.Inf(1), Limit: slot.ByKeep, Left: 3 * gib, WALRate: 1 << 20},
			Health: slot.Health{
				Slot: "walpost", Database: "shop", Exists: true, Active: true, ActivePID: 77, WALStatus: "reserved", WaitEvent: "WalSenderWaitForWAL",
				RetainedBytes: 16 << 20, UnconfirmedBytes: 2000, SafeBytes: 3 * gib, SafeKnown: true, KeepBytes: 4 * gib, CatalogXminAge: 12,
				Confirmed: 0x16B3748, Restart: 0x16B0000, Server: 0x16B4000, ClockSkew: 1500 * time.Microsecond,
			},
		}
	}
	for _, c := range []struct {
		name   string
		change func(s *slot.Status)
		want   string
	}{
		{"fine, and what is left does not shrink", func(*slot.Status) {}, `
state        ok
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         3.0 GiB before the slot can be lost
forecast     max_slot_wal_keep_size is not used up at this rate
WAL          1.0 MiB/s
waits for    WalSenderWaitForWAL
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"lost", func(s *slot.Status) {
			s.Severity, s.Reasons = slot.Critical, []string{"the slot is lost (wal_removed): its WAL is gone; walpost recover closes the gap"}
			s.WALStatus, s.Invalidation, s.Limit, s.Exhaustion, s.SafeKnown, s.Restart, s.RetainedBytes = "lost", "wal_removed", slot.ByRemoval, 0, false, 0, -1
			s.Active, s.InactiveFor, s.InactiveAtLeast, s.WaitEvent, s.CatalogXminAge, s.WALRate = false, 90*time.Second, true, "", 0, -1
		}, `
state        critical
             the slot is lost (wal_removed): its WAL is gone; walpost recover closes the gap
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       inactive for at least 1m30s
wal_status   lost
retained     unknown
unconfirmed  2.0 KiB
xmin age     0 transactions
confirmed    0/16B3748
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{blocked, func(s *slot.Status) {
			s.Severity, s.Reasons = slot.Warning, []string{"the slot holds 3.3 GiB of WAL (monitor.retained_warn is 1GiB)"}
			s.Exhaustion, s.WALStatus, s.SafeBytes, s.WaitEvent, s.WALRate = 17920.4, "extended", 700<<20, "", 40<<10
			s.RetainedBytes, s.Confirmed, s.Server = 4*gib-700<<20, 0xD5AAF830, 0xD5AB0000
			s.Decoding = slot.DecodingStats{SpillBytes: 5 << 30, SpillTxns: 3}
			s.Blocker = &slot.Blocker{
				Kind: slot.BlockedByTransaction, PID: 42, User: "report", Application: "nightly", Database: "crm", State: "idle in transaction",
				Age: 8 * time.Minute, QueryAge: 5 * time.Minute, End: "SELECT pg_terminate_backend(42);",
			}
		}, `
state        warning
             the slot holds 3.3 GiB of WAL (monitor.retained_warn is 1GiB)
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       active (pid 77)
wal_status   extended
retained     3.3 GiB
unconfirmed  2.0 KiB
left         700.0 MiB before the slot can be lost
forecast     max_slot_wal_keep_size is used up in 4h58m40s
WAL          40.0 KiB/s
xmin age     12 transactions
spilled      5.0 GiB by 3 transactions
confirmed    0/D5AAF830
restart      0/16B0000
server       0/D5AB0000
blocker      transaction of pid 42 (report, nightly) in crm, idle in transaction, for 8m0s, its newest statement began 5m0s ago
             to end it: SELECT pg_terminate_backend(42);
clock        the database's clock minus this machine's clock: 2ms
`},
		{"without a limit of the server's, bounded by the disk, and not allowed to see blockers", func(s *slot.Status) {
			s.SafeKnown, s.KeepBytes, s.Limit, s.Left, s.Exhaustion, s.WaitEvent = false, -1, slot.ByDisk, 20*gib, 7200, ""
			s.Hidden = "other sessions: GRANT pg_read_all_stats"
		}, `
state        ok
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         no limit (max_slot_wal_keep_size is -1): the disk is the limit
disk         20.0 GiB left of monitor.wal_disk_size
forecast     monitor.wal_disk_size is used up in 2h0m0s
WAL          1.0 MiB/s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
hidden       other sessions: GRANT pg_read_all_stats
clock        the database's clock minus this machine's clock: 2ms
`},
		{"without any limit", func(s *slot.Status) {
			s.SafeKnown, s.KeepBytes, s.Limit, s.WaitEvent = false, -1, slot.NoLimit, ""
		}, `
state        ok
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         no limit (max_slot_wal_keep_size is -1): the disk is the limit
forecast     none: no limit is known (set max_slot_wal_keep_size, or monitor.wal_disk_size)
WAL          1.0 MiB/s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{once, func(s *slot.Status) { s.WALRate, s.WaitEvent = -1, "" }, `
state        ok
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         3.0 GiB before the slot can be lost
forecast     needs two readings: add --watch 30s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"missing", func(s *slot.Status) {
			s.Exists, s.Severity, s.Reasons = false, slot.Critical, []string{"the slot does not exist"}
		}, `
state        critical
             the slot does not exist
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
`},
		{"not to be looked at", func(s *slot.Status) {
			s.Known, s.Severity, s.Reasons = false, slot.Unknown, []string{"monitor slot walpost: connect:\n\tconnection refused"}
		}, `
state        unknown
             monitor slot walpost: connect: connection refused
slot         walpost in shop
relay        streaming (127.0.0.1:9640)
`},
	} {
		s := fine()
		c.change(&s)
		if got := "\n" + show.Status(&s, askrelay.Answer{Address: "127.0.0.1:9640", State: relay.Streaming, Ready: true}); got != c.want {
			t.Errorf("%s:%s\nmust be%s", c.name, got, c.want)
		}
		if page := samples[c.name]; page != "" {
			_, sample, ok := strings.Cut(read(t, "../../"+page), "```text\nstate ")
			sample, _, _ = strings.Cut("\nstate "+sample, "```")
			rest := c.want
			for part := range strings.SplitSeq(sample, "…\n") {
				if ok {
					_, rest, ok = strings.Cut(rest, part)
				}
			}
			if !ok {
				t.Errorf("%s has another sample than%s", page, c.want)
			}
		}
	}
}

// The first line never says that all is well while events are dead or parked.
func TestStatusBeginsWithWhatIsNotDelivered(t *testing.T) {
	const undelivered = "2 dead letters and 9 parked events of 3 keys are not delivered"
	command := " (" + fault.Command("dead", "list") + ")\n"
	for severity, want := range map[slot.Severity]string{
		slot.OK:      "state        ok, but " + undelivered + command,
		slot.Warning: "state        warning, and " + undelivered + command,
	} {
		a := askrelay.Answer{Address: "127.0.0.1:9640", State: relay.Streaming, Ready: true, Undelivered: undelivered}
		for name, got := range map[string]string{
			"slot": show.Status(&slot.Status{Severity: severity}, a),
			"poll": show.PollStatus(&statuspage.Poll{Table: "public.outbox"}, a, nil, string(severity)),
		} {
			if !strings.HasPrefix(got, want) {
				t.Errorf("%s, %s: %s\nmust begin with %s", name, severity, got, want)
			}
		}
	}
}

// still is a relay that does not change.
type still struct{ status walpost.Status }

func (s *still) Status() walpost.Status { return s.status }

// Each state that a relay can be in when walpost status asks it, beside a slot that is well. Never is "ok" said of a relay
// that does not deliver.
func TestStatusAsksTheRelay(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(s *walpost.Status) // of a relay that streams
		severity slot.Severity
		relay    string // the line
		reason   string // the finding; "" for none
	}{
		{"streams", func(*walpost.Status) {}, slot.OK, "streaming (ADDR)", ""},
		{"starts", func(s *walpost.Status) {
			s.State, s.Ready, s.Reason, s.Slot = relay.Starting, false, "starting", slot.Status{Health: slot.Health{Slot: "walpost", Database: "shop"}}
		}, slot.Warning, "starting (ADDR)", "the relay is not ready (starting): starting"},
		{"copies", func(s *walpost.Status) {
			s.State, s.Ready, s.Reason = relay.CopyingRows, false, "publishing rows of the table (snapshot): 7 of about 70"
		}, slot.Warning, "copying (ADDR)", "the relay is not ready (copying): publishing rows of the table (snapshot): 7 of about 70"},
		{"is stalled", func(s *walpost.Status) {
			s.State, s.Ready, s.Reason = relay.Stalled, false, "delivery waits: connection refused"
		}, slot.Warning, "stalled (ADDR)", "the relay is not ready (stalled): delivery waits: connection refused"},
		{"cannot write its checkpoint", func(s *walpost.Status) {
			s.State, s.Ready, s.Reason = relay.NoCheckpoint, false, "checkpoint cannot be written: refused"
		}, slot.Warning, "no-checkpoint (ADDR)", "the relay is not ready (no-checkpoint): checkpoint cannot be written: refused"},
		{"was at risk when its monitor looked", func(s *walpost.Status) {
			s.State, s.Reason = relay.SlotAtRisk, "wal_status is unreserved"
		}, slot.OK, "slot-at-risk (ADDR)", ""},
		{"hangs", func(s *walpost.Status) {
			s.Turned = time.Now().Add(-2*time.Minute - time.Second)
		}, slot.Warning, "hung (ADDR)", "the relay is not ready (hung): the relay has made no progress for 2m1s"},
		{"is a standby", func(s *walpost.Status) {
			s.State, s.Ready, s.Reason = relay.Standby, false, "slot walpost is active for pid 77"
		}, slot.Warning, "standby (ADDR)", "the relay is not ready (standby): slot walpost is active for pid 77"},
		{
			"is halted", func(s *walpost.Status) { s.State, s.Ready, s.Reason = relay.Halted, false, "event 7: no topic" },
			slot.Critical, "halted (ADDR)", "the relay is not ready (halted): event 7: no topic",
		},
		{
			"has stopped", func(s *walpost.Status) { s.State, s.Ready, s.Reason = relay.Stopped, false, "" },
			slot.Warning, "stopped (ADDR)", "the relay is not ready (stopped)",
		},
		{
			"has another slot", func(s *walpost.Status) { s.Slot.Slot = "other" }, slot.Warning, "unknown (ADDR)",
			"the relay at ADDR reads slot other in shop: start walpost run, or pass the address of the relay with --http",
		},
		{
			"has another database", func(s *walpost.Status) { s.Slot.Database = "other" }, slot.Warning, "unknown (ADDR)",
			"the relay at ADDR reads slot walpost in other: start walpost run, or pass the address of the relay with --http",
		},
		{
			"has the same names on another server", func(s *walpost.Status) { s.Slot.ActivePID = 99 }, slot.Warning, "unknown (ADDR)",
			"the relay at ADDR reads a slot of this name on another server: start walpost run, or pass the address of the relay with --http",
		},
		{"has dead letters", func(s *walpost.Status) {
			s.OpenDeadLetters = &badevents.Count{Open: 1}
		}, slot.OK, "streaming (ADDR)", ""},
		{"has reconnected since its monitor looked", func(s *walpost.Status) {
			s.Slot.ActivePID, s.Since.Time, s.Slot.At = 99, time.Now().Add(-time.Second), time.Now().Add(-time.Minute)
		}, slot.OK, "streaming (ADDR)", ""},
	} {
		var s walpost.Status
		s.State, s.Ready, s.Turned, s.Since.Time = relay.Streaming, true, time.Now(), time.Now().Add(-time.Hour)
		s.Slot = slot.Status{Known: true, Health: slot.Health{Slot: "walpost", Database: "shop", At: time.Now(), ActivePID: 77}}
		c.change(&s)
		addr, stop, err := statuspage.New(statuspage.Config{Listen: "127.0.0.1:0"}, statuspage.Build{}).Serve(&still{s}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		statusSays(t, "a relay that "+c.name, addr, c.severity, c.relay, c.reason)
		stop()
	}

	// Nobody answers, or not a relay.
	const where = ": start walpost run, or pass the address of the relay with --http"
	refuses, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer refuses.Close()
	statusSays(t, "a process that stands still", refuses.Addr().String(), slot.Warning, "unknown (ADDR)", "no relay answers at ADDR (no answer within 3s)"+where)
	statusSays(t, "no process", "127.0.0.1:1", slot.Warning, "unknown (ADDR)", "no relay answers at ADDR (connection refused)"+where)
	for body, code := range map[string]int{"<html>": http.StatusOK, "{}": http.StatusOK, "[]": http.StatusNotFound} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}))
		statusSays(t, "a program that answers "+body, server.Listener.Addr().String(), slot.Warning, "unknown (ADDR)",
			fmt.Sprintf("no relay answers at ADDR (a program other than walpost answers: %d %s)", code, http.StatusText(code))+where)
		server.Close()
	}
	for _, listen := range []string{"off", "127.0.0.1:0"} {
		statusSays(t, "http.listen "+listen, listen, slot.OK, `unknown: http.listen is "`+listen+`", so the relay has no address to ask`, "")
	}
}

// statusSays asks the relay at listen beside a slot that is well, and compares what walpost status prints.
func statusSays(t *testing.T, name, listen string, severity slot.Severity, line, reason string) {
	t.Helper()
	s := slot.Status{Known: true, Severity: slot.OK, Health: slot.Health{Slot: "walpost", Database: "shop", Exists: true, Active: true, ActivePID: 77}}
	a := askrelay.ForSlot(t.Context(), statuspage.Config{Listen: listen}, &s)
	a.Judge(&s)
	text := regexp.MustCompile(`for 2m\d+s`).ReplaceAllString(show.Status(&s, a), "for 2m1s") // seconds may pass before the relay answers
	state := "state        " + string(severity)
	if name == "a relay that has dead letters" {
		state += ", but 1 dead letter is not delivered (" + fault.Command("dead", "list") + ")"
	}
	state += "\n"
	if a.Address == "" {
		state = "state        the slot is ok; whether events are delivered is not known\n"
	}
	if reason != "" {
		state += "             " + show.OneLine(strings.ReplaceAll(reason, "ADDR", listen)) + "\n"
	}
	want := state + "slot         walpost in shop\nrelay        " + strings.ReplaceAll(line, "ADDR", listen) + "\nreader "
	if !strings.HasPrefix(text, want) || s.Severity != severity {
		t.Errorf("%s: severity %s\n%s\nmust be %s\n%s", name, s.Severity, text, severity, want)
	}
}
