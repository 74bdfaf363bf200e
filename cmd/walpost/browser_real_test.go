package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/browser"
)

// The page of a real relay: on standby, without a limit of the slot, with Kafka down, halted by a bad event, and with a lost slot.
// In each state it must say what is wrong, what to do, and how long a person may take.
func TestStatusPageOfARealRelay(t *testing.T) {
	chromium := browser.Start(t)
	kafka := testenv.KafkaPrivate(t, 1, nil)
	pg := testenv.Postgres(t, "", testenv.Private(), testenv.Param("wal_keep_size", "0"), testenv.Param("max_wal_size", "32MB"))
	dsn := pg.Database(t)
	pg.Exec(t, dsn, strings.NewReplacer("id int PRIMARY KEY", "id uuid PRIMARY KEY DEFAULT gen_random_uuid()", "aggregate_type text NOT NULL", "aggregate_type text").Replace(outboxTable))
	kafka.CreateTopic(t, "outbox.event.order", 3, nil)
	kafka.CreateTopic(t, "outbox.event.customer", 3, nil)
	kafka.CreateTopic(t, "walpost", 1, map[string]string{"cleanup.policy": "compact"})
	t.Chdir(t.TempDir())
	write(t, "walpost.yaml", `
name: shop
source: {dsn: "`+dsn+`", table: outbox}
kafka: {brokers: "`+strings.Join(kafka.Brokers(), ",")+`"}
checkpoint: {topic: walpost}
monitor: {interval: 1s}
halt_linger: forever
http: {listen: "127.0.0.1:0"}
`)
	p := launch(t, "run", "--config", "walpost.yaml")
	p.until("ready", func(v *statuspage.View) bool { return v.Ready })

	// A service writes all the time. It ends with the test, and before the database does.
	insert := func(kind string) {
		pg.Exec(t, dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT "+kind+", 'k' || g % 7, '{\"a\": 1}' FROM generate_series(1, 1 + (random() * 40)::int) g")
	}
	ctx, stop := context.WithCancel(t.Context())
	var service sync.WaitGroup
	service.Go(func() {
		for ctx.Err() == nil {
			insert("CASE WHEN random() < 0.8 THEN 'order' ELSE 'customer' END")
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Cleanup(service.Wait)
	t.Cleanup(stop)

	tab, cancel := context.WithTimeout(chromium, 5*time.Minute)
	t.Cleanup(cancel)
	v := browser.NewVisit(t, tab)
	v.Do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(p.page+"/"))
	phone := func(name string) {
		t.Helper()
		v.Do(chromedp.EmulateViewport(390, 844), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
		v.Fits(name)
		var end float64
		v.Do(chromedp.Evaluate("document.getElementById('now').getBoundingClientRect().bottom + scrollY", &end))
		if end > 844 {
			t.Errorf("%s: what is wrong and what to do takes %g pixels of a phone's 844", name, end)
		}
		v.Shot(name + "-phone")
		v.Do(chromedp.EmulateViewport(1280, 900), emulation.SetEmulatedMedia().WithFeatures(nil))
	}

	second := launch(t, "run", "--config", "walpost.yaml")
	v.Do(chromedp.Navigate(second.page + "/"))
	v.Sees("Standby")
	v.Sees("Another process delivers the events.")
	v.Shot("standby")
	second.stop()
	v.Do(chromedp.Navigate(p.page + "/"))

	steps := 1
	if os.Getenv("WALPOST_SCREENSHOTS") != "" {
		steps = 5 // charts to look at
	}
	for i := range steps {
		p.until("some history", func(v *statuspage.View) bool { return v.Events > uint64(i+1)*1500 })
	}
	v.Sees("Streaming")
	v.Sees("Used up in, at this rate\nwhen the disk is full") // max_slot_wal_keep_size is -1
	v.Sees("max_slot_wal_keep_size is -1. If nobody reads the slot, WAL fills the disk of the database.")
	v.Sees("Kafka acknowledged the newest one 0 s ago")
	v.Shot("real-streaming")

	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	v.Sees("Waiting for Kafka")
	v.Sees("connection refused")
	v.Sees("events wait in walpost, the oldest for")
	v.Sees("Time left: until the disk of the database is full. The slot holds ")
	v.Sees("Events per second\n0/s")
	phone("kafka-down")
	v.Shot("kafka-down")
	var said string
	v.Do(chromedp.Text("#errors", &said))
	if !strings.Contains(said, " now\n") {
		t.Errorf("Kafka is down, and the errors are %q", said)
	}
	v.Do(chromedp.Text("#topics", &said))
	if strings.Contains(said, "\n0 s ago") {
		t.Errorf("Kafka is down, and the newest events are new:\n%s", said)
	}
	if code, body := p.get("/readyz"); code != 503 || !strings.HasPrefix(body, "stalled: delivery waits: ") {
		t.Errorf("/readyz: %d %s", code, body)
	}

	// A limit is set while walpost runs, as the page advises.
	pg.Exec(t, dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
	v.Sees("Postgres removes WAL that walpost has not read, and events are missing then (max_slot_wal_keep_size).")
	v.Sees("Time left: about")
	v.Shot("kafka-down-limit")

	kafka.Start(t)
	v.Sees("Streaming")
	v.Sees("over since")
	pg.Exec(t, dsn, "INSERT INTO outbox (aggregate_id) VALUES ('k')") // aggregate_type is NULL
	v.Sees("Halted")
	v.Sees("An event cannot be routed")
	v.Sees("walpost skip ")
	v.Sees("Gives up the delivery of exactly this event, which then goes to the dead letter topic.")
	v.Sees("Events have waited in Postgres since ")
	v.Sees(". Kafka acknowledged the newest event")
	v.Sees("Time left: about")
	phone("halted")
	v.Shot("halted")
	var whole bool // each word of the command that fits into a line is in one line
	v.Do(chromedp.EmulateViewport(390, 844), chromedp.Evaluate(`[...document.querySelectorAll("#remedy pre span")].every((e) => e.getClientRects().length === 1 && e.offsetHeight < 30)`, &whole), chromedp.EmulateViewport(1280, 900))
	if !whole {
		t.Error("a word of the command is broken on a phone")
	}
	var once, copied, event, href string
	v.Do(chromedp.Text("#now", &once), chromedp.Text("#remedy pre", &copied), chromedp.Text("#event-id", &event), chromedp.AttributeValue("#runbook", "href", &href, nil))
	var halt struct{ Halt statuspage.Halt }
	p.until("halted", func(v *statuspage.View) bool { halt.Halt = *v.Halt; return true })
	h := &halt.Halt
	if len(h.Commands) != 1 || copied != h.Commands[0].Command || !strings.Contains(copied, h.Token) || event != h.EventID || !strings.HasSuffix(href, "/docs/runbooks/WalpostRelayHalted.md#a-bad-event") {
		t.Errorf("event %q, command %q, runbook %q of %+v", event, copied, href, h)
	}
	for _, text := range []string{h.Error, h.Token} {
		if strings.Count(once, text) != 1 {
			t.Errorf("%q is said %d times in\n%s", text, strings.Count(once, text), once)
		}
	}
	var buttons int // what loses an event is not the thing that is easiest to copy
	if v.Do(chromedp.Evaluate(`document.querySelectorAll("#remedy button").length`, &buttons)); buttons > 0 {
		t.Errorf("%d buttons copy a command that gives up an event", buttons)
	}
	if cost, skip := strings.Index(once, h.Commands[0].GivesUp), strings.Index(once, copied); !strings.Contains(once, h.Repair) || strings.Index(once, h.Repair) > cost || cost > skip {
		t.Errorf("what repairs, what the skip costs, and the skip come in another order:\n%s", once)
	}
	stop()
	service.Wait()
	if code := p.stop(); code != exitPerson {
		t.Errorf("exit code %d", code)
	}
	if code, out := command(t, strings.Fields(copied)[1:]...); code != exitOK {
		t.Errorf("%s: exit code %d\n%s", copied, code, out)
	}

	// The slot is lost while Kafka is down.
	p = launch(t, "run", "--config", "walpost.yaml")
	v.Do(chromedp.Navigate(p.page + "/"))
	v.Sees("Not all events are delivered")
	v.Sees("1 dead letter is not delivered. The other events flow.")
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	insert("'order'")
	v.Sees("Waiting for Kafka")
	pg.Exec(t, dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
	pg.LoseSlot(t, dsn, "walpost")
	v.Sees("Halted")
	v.Sees("1 dead letter is not delivered.")
	v.Sees("The slot is lost. A person must act")
	v.Sees("First: stop whatever deletes rows of the outbox table, because walpost recover reads them.")
	var advised []string
	p.until("halted with a remedy", func(s *statuspage.View) bool {
		advised = nil
		for _, c := range s.Troubles[0].Commands {
			if advised = append(advised, c.Command); !strings.Contains(s.Troubles[0].Hint, c.Command) || c.GivesUp != "" {
				t.Errorf("%s gives up %q, and the hint is %q", c.Command, c.GivesUp, s.Troubles[0].Hint)
			}
		}
		return len(advised) > 0
	})
	var offered []string
	v.Do(chromedp.Evaluate(`[...document.querySelectorAll("#remedy pre")].map((e) => e.innerText)`, &offered))
	// The command can be copied, also where the browser has no clipboard (http on another host than localhost).
	var selected string
	v.Do(chromedp.Evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})", nil), chromedp.Click("#remedy button"),
		chromedp.Evaluate("getSelection().toString()", &selected))
	if len(offered) == 0 || strings.TrimSpace(selected) != offered[0] {
		t.Errorf("Copy selects %q of %q", selected, offered)
	}
	if !slices.Equal(offered, advised) {
		t.Errorf("the page offers %q, and the program advises %q", offered, advised)
	}
	var left string
	v.Do(chromedp.Evaluate("[...document.querySelectorAll('[hidden]')].filter((e) => e.offsetParent !== null).map((e) => e.id).join(' ')", &left))
	if left != "" {
		t.Errorf("hidden and to be seen: %s", left)
	}
	phone("lost-slot")
	v.Shot("lost-slot")
}
