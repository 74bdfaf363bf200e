package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/failpoint"
	"github.com/walpost/walpost/internal/testenv"
)

// only are those of walpost. Here a person or an outbox does what needs an answer, and what is only in walpost.
var only = []scenario{
	{"kill_at_each_step", afterCrash, true, true, nil, killsAtSteps},
	{"two_versions", afterCrash, false, true, []string{epochChange}, twoVersions},
	{"disk_hangs", afterCrash, false, true, []string{fullWindow}, diskHangs},
	{"slot_dropped", halts, false, true, nil, gap(func(r *run) { r.dropSlot() })},
	{"slot_recreated", halts, true, true, nil, gap(func(r *run) {
		r.dropSlot()
		r.pg.Exec(r, r.dsn, "SELECT pg_create_logical_replication_slot('"+r.name+"', 'pgoutput')")
	})},
	{"slot_advanced", halts, false, true, nil, gap(func(r *run) {
		r.pg.Exec(r, r.dsn, "SELECT pg_replication_slot_advance('"+r.name+"', pg_current_wal_lsn())")
	})},
	{"slot_lost", halts, false, true, nil, gap(func(r *run) {
		r.quiet()
		r.pg.Exec(r, r.dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
		r.pg.LoseSlot(r, r.dsn, r.name)
		r.pg.Exec(r, r.dsn, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
	})},
	{"publication_recreated", halts, false, true, nil, gap(func(r *run) {
		r.pg.Exec(r, r.dsn, "DROP PUBLICATION "+r.name)
		r.pause(500 * time.Millisecond)
		r.pg.Exec(r, r.dsn, "CREATE PUBLICATION "+r.name+" FOR TABLE outbox WITH (publish = 'insert')")
	})},
	{"checkpoint_damaged", refuses, false, true, nil, checkpointDamaged},
	{"snapshot", "publishes old rows, then streams", false, true, nil, snapshot},
	{"cleanup", "removes only delivered rows", false, true, nil, cleanup},
	{"dead_letters", "each row becomes a record or dead letter", true, true, nil, deadLetters},
	{"parked_keys", "a parked key keeps its order", false, true, []string{parkedKey}, parkedKeys},
	{"topic_recreated", "waits, then continues", false, true, nil, topicRecreated},
	{"principal_rotates", "waits, then continues", false, true, nil, principalRotates},
	{"dns_to_old_primary", "delivers nothing from the old primary", false, true, nil, dnsToOldPrimary},
	{"partitions_added", "loses nothing, but keys move", false, true, nil, partitionsAdded},
	{"polling", "repeats at most a window", false, true, nil, polling},
}

// killsAtSteps has a walpost with failpoints kill itself before and after each step that must be durable.
func killsAtSteps(r *run) {
	r.program = r.build(true)
	r.begin()
	points := []string{failpoint.Send, failpoint.Ack, failpoint.Save, failpoint.Saved, failpoint.Confirm, failpoint.Confirmed}
	p := r.relays[0]
	for _, i := range r.rnd.Perm(len(points)) {
		p.stop()
		p.env = []string{fmt.Sprintf("WALPOST_FAILPOINT=%s:%d", points[i], 1+r.rnd.IntN(3))}
		r.tell("%s", p.env[0])
		starts := p.started()
		p.start()
		r.waits("a kill at "+points[i], func() bool { return p.started() > starts+1 })
		r.crashed()
		r.recovers()
	}
}

// gap stops the relay, breaks what the stream rests on, while the writers go on, and wants the relay to refuse to continue. Then a
// person closes the gap.
func gap(breaks func(*run)) func(*run) {
	return func(r *run) {
		r.load.Wild = false // rows that are deleted again are in no table
		r.source = ", order_column: n, time_column: created_at"
		r.judge.FromTable = true
		r.begin()
		p := r.relays[0]
		if r.rnd.IntN(2) == 0 {
			r.tell("stop, then break")
			p.stop()
		} else {
			r.tell("kill, then break")
			r.crashed()
			p.end(syscall.SIGKILL)
		}
		r.pause(time.Second)
		r.gap.Store(true)
		breaks(r)
		r.pause(time.Second)
		was := r.still()
		p.start()
		r.waits("a halt", p.isHalted)
		if more := r.judge.Arrived() - was; more > 0 {
			r.Errorf("the relay delivered %d events before it halted", more)
		}
		r.quiet()
		if strings.Contains(p.tail(), "drop the slot") { // as its hint says
			r.dropSlot()
		}
		for try := 0; ; try++ {
			code, out := r.runs("recover", "--yes")
			r.tell("recover: code %d", code)
			if code == 0 {
				break
			}
			if try == 3 {
				r.Fatalf("recover: code %d\n%s", code, out)
			}
		}
		r.newSlot()
		r.gap.Store(false)
		p.start()
		r.recovers()
		r.write()
		r.flow()
	}
}

func (r *run) dropSlot() {
	r.pg.Exec(r, r.dsn, "SELECT pg_drop_replication_slot('"+r.name+"')")
}

// checkpointDamaged keeps the checkpoint in a file, of which bits are flipped or the end is missing.
func checkpointDamaged(r *run) {
	file := filepath.Join(r.dir, "checkpoint")
	r.extra = "checkpoint: {store: file, path: " + file + "}\n"
	r.begin()
	p := r.relays[0]
	for range 4 {
		p.stop()
		good, err := os.ReadFile(file)
		r.must(err)
		bad := bytes.Clone(good)
		at := r.rnd.IntN(len(bad))
		if r.rnd.IntN(2) == 0 {
			r.tell("flip a bit of byte %d of %d", at, len(bad))
			bad[at] ^= 1 << r.rnd.IntN(8)
		} else {
			r.tell("cut off after %d of %d bytes", at, len(bad))
			bad = bad[:at]
		}
		r.must(os.WriteFile(file, bad, 0o600))
		was, said := r.still(), len(p.text())
		p.start()
		refused := func() bool { return p.isHalted() || strings.Contains(p.text()[said:], file) }
		r.waits("a halt", func() bool { return refused() || r.judge.Arrived() > was+50 })
		if !refused() { // a space, or a letter's case
			r.tell("it is read as before")
			continue
		}
		p.end(syscall.SIGTERM)
		if more := r.judge.Arrived() - was; more > 0 {
			r.Errorf("the relay delivered %d events with a damaged checkpoint:\n%s", more, p.text()[said:])
		}
		r.must(os.WriteFile(file, good, 0o600))
		p.start()
		r.recovers()
	}
}

// snapshot kills the relay while it publishes the rows from before its first start.
func snapshot(r *run) {
	r.load.Wild = false
	r.judge.FromTable = true
	r.source = ", order_column: n, time_column: created_at, snapshot: initial"
	r.write()
	time.Sleep(3 * time.Second)
	p := r.launch()
	for range 3 {
		r.pause(time.Second)
		r.tell("kill after %d records", r.judge.Arrived())
		p.kill()
	}
	r.inUse()
	r.recovers() // with a row that only the stream gives, behind all of the table
	r.sample()
	r.flow()
}

// cleanup removes rows as soon as they are delivered, through kills.
func cleanup(r *run) {
	r.unverified = true // the rows are gone
	r.source = ", time_column: created_at"
	r.extra = "cleanup: {mode: delete, keep: 0s}\nmonitor: {interval: 1s}\n"
	r.begin()
	for range 3 {
		r.pause(2 * time.Second)
		r.tell("kill")
		r.relays[0].kill()
		r.flow()
	}
	r.recovers()
	r.quiet()
	r.waits("an empty table", func() bool { return r.pg.Value(r, r.dsn, "SELECT count(*) FROM outbox") == "0" })
}

// large is a JSON string of n bytes that no codec makes smaller.
func large(n int) string {
	return `"` + base64.StdEncoding.EncodeToString(testenv.Incompressible(n)) + `"`
}

func deadLetters(r *run) {
	r.delivery = ", on_poison: dead_letter, dead_letter_topic: " + r.prefix + "dead"
	r.kafka.CreateTopic(r, r.prefix+"dead", 1, nil)
	r.kafka.Configure(r, "max.message.bytes", "60000", r.topics...)
	r.follow([]string{r.prefix + "dead"}, func(rec *kgo.Record) {
		for _, h := range rec.Headers {
			if h.Key == "walpost.dead.id" {
				r.judge.Letter(string(h.Value))
			}
		}
	})
	r.begin()
	for i := range 4 {
		r.tell("a record that is too large")
		id := r.insert(fmt.Sprintf("large-%d", i), 1, large(80_000))
		if i%2 == 1 {
			r.pause(300 * time.Millisecond)
			r.tell("kill")
			r.relays[0].kill()
		}
		r.flow()
		r.waits("a letter", func() bool { r.judge.mu.Lock(); defer r.judge.mu.Unlock(); return r.judge.letters[id] })
	}
}

// parkedKeys parks keys behind a record that is too large, and releases them when the topic takes it.
func parkedKeys(r *run) {
	r.delivery = ", on_poison: park_key, parking_topic: " + r.prefix + "parked"
	r.kafka.CreateTopic(r, r.prefix+"parked", 1, nil)
	r.kafka.Configure(r, "max.message.bytes", "60000", r.topics...)
	r.follow([]string{r.prefix + "parked"}, func(*kgo.Record) { r.reach(parkedKey) })
	r.judge.FromTable = true // a released event has one header more
	r.begin()
	var ids []string
	for i := range 5 {
		key := fmt.Sprintf("park-%d", i)
		ids = append(ids, r.insert(key, 1, `"small"`), r.insert(key, 2, large(80_000)), r.insert(key, 3, `"behind"`))
		if i%2 == 1 {
			r.tell("kill")
			r.relays[0].kill()
		}
		r.flow()
	}
	r.kafka.Configure(r, "max.message.bytes", "1000000", r.topics...)
	r.tell("release")
	if code, out := r.runs("dead", "retry", "--all"); code != 0 {
		r.Fatalf("dead retry: code %d\n%s", code, out)
	}
	r.pause(time.Second)
	r.relays[0].kill()
	r.waits("the parked events", func() bool { return r.judge.ledger.Seen(ids...) == len(ids) })
}

func (r *run) admin() *kadm.Client { return kadm.NewClient(r.kafka.Client(r)) }

// topicRecreated deletes a topic that has no undelivered event, and makes it again.
func topicRecreated(r *run) {
	r.unverified = true // the first records are gone
	r.begin()
	r.quiet()
	r.waitDelivered()
	r.tell("delete %s", r.topics[0])
	r.consumers[0]() // it would wait for the former topic
	_, err := r.admin().DeleteTopic(r.Context(), r.topics[0])
	r.must(err)
	r.write()
	r.pause(3 * time.Second)
	r.kafka.CreateTopic(r, r.topics[0], 3, nil)
	r.follow(r.topics[:1], r.observe)
	r.flow()
}

// waitDelivered waits until everything that was committed has arrived.
func (r *run) waitDelivered() {
	r.Helper()
	r.truth()
	r.waits("all events", func() bool { return r.judge.Missing() == 0 })
}

func partitionsAdded(r *run) {
	r.judge.Moves, r.unverified = true, true
	r.begin()
	r.quiet()
	r.waitDelivered() // else the order of a key breaks, because Kafka moves it
	r.kafka.Grow(r, 5, r.topics...)
	time.Sleep(time.Second)
	r.write()
	r.flow()
	r.relays[0].kill()
	r.flow()
}

// polling reads the table without a slot, by workers that claim rows or by one with a cursor.
func polling(r *run) {
	r.load.Wild = false // a poll does not see what was deleted again
	r.judge.Late = true // a crash repeats the events of each key in order, and the keys in any order
	strategy := "cursor, xid_column: xid"
	if r.rnd.IntN(2) == 0 && !r.exactlyOnce { // which needs a cursor
		strategy, r.unverified = "claim, lease: 8s", true
	}
	r.tell("strategy %s", strategy)
	r.stream = "kind: poll, poll: {interval: 50ms, strategy: " + strategy + "}"
	r.source = ", order_column: n, time_column: created_at, snapshot: initial"
	if code, out := r.runs("setup", "--apply"); code != 0 {
		r.Fatalf("setup: code %d\n%s", code, out)
	}
	r.begin()
	for range 3 {
		r.pause(1500 * time.Millisecond)
		r.tell("kill")
		r.relays[0].kill()
		r.flow()
		r.stopPostgres("immediate")
		r.startPostgres()
	}
}

// twoVersions has an older build take over from this one, and this one from the older: after a stop, after a kill, and at random.
func twoVersions(r *run) {
	if r.older == "" {
		r.leftOut = "give an older build with -older"
		return
	}
	r.begin()
	r.program = r.older
	r.launch()
	for i := range 4 * r.times {
		p, other := r.relays[i%2], r.relays[1-i%2]
		r.crashed()
		if r.rnd.IntN(2) == 0 {
			r.tell("stop %d", p.number)
			p.stop()
		} else {
			r.tell("kill %d", p.number)
			p.end(syscall.SIGKILL)
		}
		r.recovers() // by the other one alone
		r.pause(time.Second)
		p.start()
		if r.rnd.IntN(2) == 0 {
			r.tell("kill %d, which has the slot", other.number)
			other.kill()
			r.flow()
		}
	}
}

// diskHangs hangs the disk of one broker for some seconds. With at_least_once, the checkpoint is a file on it.
func diskHangs(r *run) {
	if err := r.ownDisk(); err != nil {
		r.leftOut = "no disk that can hang: " + err.Error()
		return
	}
	if !r.exactlyOnce {
		r.extra = "checkpoint: {store: file, path: " + filepath.Join(r.disk, r.name) + "}\n"
	}
	r.begin()
	p := r.relays[0]
	for _, kill := range []bool{false, true, r.rnd.IntN(2) == 0} {
		seconds := 3 + r.rnd.IntN(6)
		r.tell("the disk hangs for %d s; kill: %t", seconds, kill)
		// It also ends without the suite.
		hang := exec.Command("sh", "-ec", `fsfreeze -f "$1"; sleep "$2"; fsfreeze -u "$1"`, "", r.disk, strconv.Itoa(seconds))
		r.must(hang.Start())
		if r.pause(2 * time.Second); kill {
			r.crashed()
			p.signal(syscall.SIGKILL) // a process that writes to the disk ends later
		}
		r.must(hang.Wait())
		r.recovers()
	}
}

// principalRotates has the relay's token name another principal, with the same rights or without the one to write to a topic. A
// broker accepts no other principal on a connection.
func principalRotates(r *run) {
	r.login = ", sasl: {mechanism: OAUTHBEARER, token_file: " + filepath.Join(r.dir, "token") + "}"
	allow := kadm.NewACLs().Topics("*").Groups("*").TransactionalIDs("*").Clusters().Allow("User:one", "User:two", "User:weak").AllowHosts("*").
		ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpAll)
	deny := kadm.NewACLs().Topics(r.topics[0]).Deny("User:weak").DenyHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite)
	for _, acl := range []*kadm.ACLBuilder{allow, deny} {
		made, err := r.admin().CreateACLs(r.Context(), acl)
		r.must(err)
		for _, m := range made {
			r.must(m.Err)
		}
	}
	rotate := func(to string) {
		r.tell("principal %s", to)
		r.must(os.WriteFile(filepath.Join(r.dir, "token"), []byte(testenv.Token(to, time.Hour)), 0o600))
	}
	rotate("one")
	r.begin()
	p := r.relays[0]
	for _, to := range []string{"two", "one"} {
		rotate("weak")
		said := len(p.text())
		r.waits("what the principal lacks", func() bool {
			return strings.Contains(p.text()[said:], "TOPIC_AUTHORIZATION_FAILED") && strings.Contains(p.text()[said:], r.topics[0])
		})
		if r.rnd.IntN(2) == 0 {
			r.tell("kill")
			p.kill()
			r.pause(2 * time.Second)
		}
		rotate(to)
		r.recovers()
		time.Sleep(6 * time.Second) // each connection has logged in anew
		r.flow()
	}
}

// dnsToOldPrimary has the name of the database point at the old primary, which has rows of its own, some time after a failover. The
// name is the address of a wire.
func dnsToOldPrimary(r *run) {
	r.always = true // it asks for a person, and is started again
	p := r.launch()
	r.inUse()
	r.recovers()
	p.stop()
	old, oldDSN := r.pg, r.dsn
	r.pg = old.Standby(r)
	r.pg.CatchUp(r, old)
	r.pg.Promote(r)
	r.Cleanup(func() {
		old.Exec(r, oldDSN, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active")
	})
	r.dsn = strings.Replace(r.dsn, fmt.Sprintf(":%d/", old.Port()), fmt.Sprintf(":%d/", r.pg.Port()), 1)
	r.load.DSN = r.dsn
	at := func(pg *testenv.PG) { r.toPG.Redirect(fmt.Sprintf("127.0.0.1:%d", pg.Port())); r.toPG.Cut() }
	at(r.pg)
	if code, out := r.runs("recover", "--yes"); code != 0 { // the slot was not copied
		r.Fatalf("recover: code %d\n%s", code, out)
	}
	p.start()
	r.begin()
	for range 3 {
		r.pause(2 * time.Second)
		old.Exec(r, oldDSN, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'stray', 'Changed', '{"n": 1}')`)
		for range 4 { // its WAL is longer than that of the new one
			old.Exec(r, oldDSN, "SELECT pg_logical_emit_message(true, '', '')", "SELECT pg_switch_wal()")
		}
		r.tell("the name points at the old primary")
		said := len(p.text())
		at(old)
		if r.rnd.IntN(2) == 0 {
			r.tell("kill")
			p.kill()
		}
		r.waits("a refusal", func() bool { return strings.Contains(p.text()[said:], "old primary") })
		r.pause(3 * time.Second)
		at(r.pg)
		r.recovers()
	}
}
