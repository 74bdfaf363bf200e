//go:build linux || darwin

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/wire"
)

const silenced = "because its client has been silent"

// A pair is a relay, its standby and what they deliver. The first one reaches Postgres through a wire.
type pair struct {
	*setting
	pg            *testenv.PG
	wire          *wire.Wire
	first, second *relay
	all           *watch
	work          *load
}

// newPair starts both on a server that does not end a walsender by itself for a long time, while events are written.
func newPair(t *testing.T, version string) *pair {
	t.Helper()
	pg, kafka := testenv.Postgres(t, version, testenv.Private(), testenv.Param("wal_sender_timeout", "1h")), testenv.Kafka(t)
	p := &pair{setting: newSetting(t, pg, pg.Database(t), kafka), pg: pg}
	p.wire = p.wired(pg)
	p.all = p.follow()
	p.first = p.startReady()
	p.through = ""
	p.second = p.standby()
	p.work = p.load(&shop.Shop{Writers: 2, MaxRows: 5, Seed: 11, Pause: 10 * time.Millisecond})
	p.all.more(t, time.Minute, 100)
	return p
}

// standby starts a relay, which has to wait for another one.
func (p *pair) standby() *relay {
	p.t.Helper()
	r := p.start()
	eventually(p.t, time.Minute, "it waits", func() bool { return strings.Contains(r.log.String(), "slot is in use; waiting for it") })
	eventually(p.t, time.Minute, "walpost status names the holder", func() bool {
		code, out := p.command("status", "--http", strings.TrimPrefix(r.page, "http://"))
		return code != 0 && strings.Contains(out, "relay        standby (") && strings.Contains(out, "in use by server process "+p.walsender(p.pg))
	})
	return r
}

// takesOver waits until the second delivers, and logs how long that took since what happened at from.
func (p *pair) takesOver(what string, from time.Time) {
	p.t.Helper()
	eventually(p.t, time.Minute, "the second takes over", p.second.ready)
	ready := time.Since(from)
	delivered := p.second.metric("walpost_events_total")
	eventually(p.t, time.Minute, "the second delivers", func() bool { return p.second.metric("walpost_events_total") > max(delivered, 0) })
	p.t.Logf("%s: the second was ready after %s, and had delivered after %s", what, ready.Round(10*time.Millisecond), time.Since(from).Round(10*time.Millisecond))
}

// keeps wants the second to hold the slot still, and without a break: a relay that takes the slot again has a later epoch.
func (p *pair) keeps(epoch uint64) {
	p.t.Helper()
	eventually(p.t, time.Minute, "the second is ready", p.second.ready)
	if v := p.second.view(); v.Epoch != epoch {
		p.t.Errorf("the second had epoch %d when it took over: %+v", epoch, v)
	}
}

// ends stops the writers, and returns how many events came twice. None may be missing, and each key has its order. What a former
// holder that lives had handed over to its Kafka client may arrive late, but only again and the same.
func (p *pair) ends() (duplicates int) {
	p.t.Helper()
	p.work.stop()
	rep := p.settle(p.all, time.Minute)
	if rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 || p.first.ended() && !rep.OK() {
		p.t.Errorf("broken promises: %s", &rep)
	}
	p.second.stopsClean()
	return rep.Duplicates
}

func TestAStandbyTakesOverFromACleanStop(t *testing.T) {
	t.Parallel()
	p := newPair(t, "15")
	from := time.Now()
	if err := p.first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.takesOver("SIGTERM", from)
	if code := p.first.wait(time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := p.ends(); n > 0 {
		t.Errorf("%d events came twice", n)
	}
}

// The machine is gone: no packet tells the server, which would keep the walsender for wal_sender_timeout.
func TestAStandbyTakesOverWhenTheServerDoesNotNoticeTheEnd(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, version)
			p.wire.Stand()
			from := time.Now()
			p.first.kill()
			p.takesOver("SIGKILL behind a dead network", from)
			if !strings.Contains(p.second.log.String(), silenced) {
				t.Errorf("something else ended the walsender:\n%s", p.second.log)
			}
			t.Logf("%d events came twice", p.ends())
		})
	}
}

// A frozen relay loses the slot, wakes up, and stands by. Whoever holds the slot then, nothing is lost or reordered.
func TestAFrozenRelayThatWakesUpDoesNoHarm(t *testing.T) {
	t.Parallel()
	p := newPair(t, "16")
	from := time.Now()
	if err := p.first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.first.cmd.Process.Signal(syscall.SIGCONT) }) // it could not be killed otherwise
	p.takesOver("SIGSTOP", from)
	epoch := p.second.view().Epoch
	p.all.more(t, time.Minute, 100)
	if err := p.first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the first stands by", func() bool {
		return strings.HasPrefix(p.first.view().State, "standby")
	})
	p.keeps(epoch)
	t.Logf("%d events came twice", p.ends())
	eventually(t, time.Minute, "the first takes over from the clean stop of the second", p.first.ready)
	p.first.stopsClean()
}

// The network to Postgres is split: the first relay lives, reaches Kafka, and cannot know that its walsender was ended.
func TestAStandbyTakesOverFromARelayBehindASplitNetwork(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17")
	from := time.Now()
	p.wire.Stand()
	p.takesOver("split network", from)
	epoch := p.second.view().Epoch
	p.all.more(t, time.Minute, 100)
	p.wire.Cut()
	p.wire.Move()
	eventually(t, time.Minute, "the first stands by", func() bool {
		return strings.HasPrefix(p.first.view().State, "standby")
	})
	p.keeps(epoch)
	t.Logf("%d events came twice", p.ends())
}

// A relay that loses its connection without the server's notice ends its own walsender.
func TestARelayComesBackToASlotThatItHolds(t *testing.T) {
	t.Parallel()
	p := newPair(t, "14")
	if err := p.second.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it must not be the one that helps
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.second.cmd.Process.Signal(syscall.SIGCONT) })
	p.wire.Lose()
	from := time.Now()
	eventually(t, time.Minute, "it comes back", func() bool {
		return strings.Contains(p.first.log.String(), "ended the server process of this relay's former session") && p.first.ready()
	})
	t.Logf("it was back after %s", time.Since(from).Round(10*time.Millisecond))
	p.work.stop()
	p.onceEach(p.all, time.Minute)
	p.first.stopsClean()
}
