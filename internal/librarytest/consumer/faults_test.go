//go:build linux || darwin

package consumer_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/librarytest/process"
)

// plan has each fault as often as it happens before they begin again. leader, coordinator and all are brokers that are killed.
var plan = strings.Fields("kill kill kill kill kill stop stop join join join join leader leader coordinator all freeze cut")

// A fault happens while the deliveries of its turn are handled.
type fault struct {
	what  string
	after float64       // the part of the turn's first events that have their effects before
	which int           // a member or a partition
	pause time.Duration // how long a broker is down, or a member is frozen
	more  bool          // a member is killed while the broker is down
}

func (f fault) String() string {
	switch f.what {
	case "leader", "coordinator", "all":
		return fmt.Sprintf("%s (%d) for %s, and a kill: %t", f.what, f.which, f.pause, f.more)
	case "freeze":
		return fmt.Sprintf("%s (%d) for %s", f.what, f.which, frozen+f.pause)
	}
	return fmt.Sprintf("%s (%d)", f.what, f.which)
}

func schedule(r *rand.Rand, n int) (all []fault) {
	for len(all) < n {
		for _, i := range r.Perm(len(plan)) {
			all = append(all, fault{plan[i], r.Float64(), r.IntN(1 << 10), time.Duration(r.IntN(5000)) * time.Millisecond, r.IntN(2) == 0})
		}
	}
	return all[:n]
}

// A group has its members in processes.
type group struct {
	*world
	pool    *pgxpool.Pool
	cfg     memberConfig
	members []*memberProcess

	mu    sync.Mutex
	did   map[string]int
	known map[record]int // how often a record was delivered whose event was processed before
}

type record struct {
	partition int32
	offset    int64
}

type memberProcess struct {
	*process.Process
	open int // calls of its handler that have written effects; under the group's mu
}

const (
	minMembers, maxMembers = 3, 6
	frozen                 = 4 * time.Second // at least
)

func (g *group) note(what string, times int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.did[what] += times
}

func (g *group) join() {
	g.t.Helper()
	g.cfg.Batches = g.cfg.Number%2 == 1
	g.cfg.Number++
	m := &memberProcess{}
	m.Process = process.Start(g.t, g.cfg, func(line string) { g.heard(m, line) })
	g.members = append(g.members, m)
}

func (g *group) heard(m *memberProcess, line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var at record
	switch what, _, _ := strings.Cut(line, " "); what {
	case "begin":
		m.open++
	case "end":
		m.open--
	case "known":
		if _, err := fmt.Sscanf(line, "known %d %d", &at.partition, &at.offset); err != nil {
			g.t.Errorf("a member says %q: %v", line, err)
		}
		g.known[at]++
	default:
		g.did[line]++
	}
}

// stop ends a member in good order.
func (g *group) stop(which int) {
	g.t.Helper()
	if killed, err := g.leave(which).End(syscall.SIGTERM); err != nil || killed {
		g.t.Errorf("a member that was asked to stop: %v", err)
	}
}

// kill kills a member, if possible while it is in a handler.
func (g *group) kill(which int) {
	g.t.Helper()
	for limit := time.Now().Add(time.Second); !g.inHandler(g.members[which%len(g.members)]) && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		which++
	}
	m := g.leave(which)
	if killed, err := m.End(syscall.SIGKILL); !killed {
		g.t.Errorf("a member ended by itself: %v", err)
	}
	g.note("kill", 1)
	if g.inHandler(m) { // all of its lines are heard
		g.note("kill in a handler", 1)
	}
}

func (g *group) inHandler(m *memberProcess) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return m.open > 0
}

func (g *group) leave(which int) *memberProcess {
	i := which % len(g.members)
	m := g.members[i]
	g.members = slices.Delete(g.members, i, i+1)
	return m
}

// fault lets a fault happen, and undoes what would last.
func (g *group) fault(f fault) {
	g.t.Helper()
	switch f.what {
	case "kill":
		g.kill(f.which)
	case "stop":
		g.stop(f.which)
		g.note("stop", 1)
	case "join":
		if len(g.members) < maxMembers {
			g.join()
			g.note("join", 1)
		}
	case "leader", "coordinator":
		g.outage(f, g.broker(f))
	case "all":
		g.outage(f)
	case "freeze": // longer than its session
		m := g.members[f.which%len(g.members)]
		m.Signal(syscall.SIGSTOP)
		time.Sleep(frozen + f.pause)
		m.Signal(syscall.SIGCONT)
		g.note("freeze", 1)
	case "cut":
		done, err := g.pool.Exec(g.t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'member'")
		if err != nil {
			g.t.Fatal(err)
		}
		g.note("connection cut", int(done.RowsAffected()))
	}
	for len(g.members) < minMembers {
		g.join()
	}
}

// broker is the node that leads a partition, or the coordinator of the group.
func (g *group) broker(f fault) (node int) {
	g.t.Helper()
	g.ask(func(adm *kadm.Client) error {
		if f.what == "coordinator" {
			found := adm.FindGroupCoordinators(g.t.Context(), g.name)
			node = int(found[g.name].NodeID)
			return found.Error()
		}
		topics, err := adm.ListTopics(g.t.Context(), g.topic)
		partitions := topics[g.topic].Partitions
		if err != nil || len(partitions) == 0 {
			return errors.Join(err, topics.Error(), errors.New("no partition is known"))
		}
		if node = int(partitions[int32(f.which%len(partitions))].Leader); node < 1 {
			return errors.New("the partition has no leader")
		}
		return nil
	})
	return node
}

// outage kills brokers, all if there are no numbers, and starts them again.
func (g *group) outage(f fault, nodes ...int) {
	g.t.Helper()
	if err := g.k.Kill(nodes...); err != nil {
		g.t.Fatal(err)
	}
	time.Sleep(f.pause / 2)
	if f.more {
		g.kill(f.which)
	}
	time.Sleep(f.pause / 2)
	g.k.Start(g.t, nodes...)
	g.note("restart of "+f.what, 1)
}

// required is what each run must have had, so that a test that reaches nothing does not pass.
var required = []string{
	"kill in a handler", "stop", "join", "rebalance", "restart of leader", "restart of coordinator", "restart of all", "freeze", "connection cut",
	"panic", "error", "slow", "hang",
	"generation began", "marks removed", "partition moved", "redelivery recognised",
}

// report logs what the run had, and fails if something is missing.
func (g *group) report() {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(g.did)) {
		all = append(all, fmt.Sprintf("%s: %d", what, g.did[what]))
	}
	g.t.Logf("%s", strings.Join(all, ", "))
	for _, what := range required {
		if g.did[what] == 0 {
			g.t.Errorf("the run had no %s, so it does not test it", what)
		}
	}
}
