package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/walpost/walpost/internal/testenv"
)

// The page of a real relay: without a limit of the slot, with Kafka down, and halted by a bad event. In each state it must say
// what is wrong, and what to do.
func TestStatusPageOfARealRelay(t *testing.T) {
	browser := browse(t)
	kafka := testenv.KafkaPrivate(t, 1, nil)
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, strings.Replace(outboxTable, "aggregate_type text NOT NULL", "aggregate_type text", 1))
	pg.Exec(t, dsn, "CREATE SEQUENCE ids")
	orders := kafka.Topic(t, 3, nil)
	config := t.TempDir() + "/walpost.yaml"
	write(t, config, `
source: {dsn: "`+dsn+`", table: outbox}
router: {route.topic.replacement: "${routedByValue}"}
kafka: {brokers: "`+strings.Join(kafka.Brokers(), ",")+`"}
checkpoint: {topic: `+kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})+`}
monitor: {interval: 1s}
halt_linger: forever
`)
	p := start(t, "run", "--config", config)
	p.until("ready", func(v *view) bool { return v.Ready })

	// A service writes all the time. It ends with the test, and before the database does.
	insert := func(kind string) {
		pg.Exec(t, dsn, "INSERT INTO outbox SELECT nextval('ids'), "+kind+", 'k' || g % 7, 'made', '{\"a\": 1}' FROM generate_series(1, 1 + (random() * 40)::int) g")
	}
	ctx, stop := context.WithCancel(t.Context())
	var service sync.WaitGroup
	service.Go(func() {
		for ctx.Err() == nil {
			insert("'" + orders + "'")
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Cleanup(service.Wait)
	t.Cleanup(stop)

	tab, cancel := context.WithTimeout(browser, 5*time.Minute)
	t.Cleanup(cancel)
	v := &visit{t: t, ctx: tab}
	v.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(p.page+"/"))
	phone := func(name string) {
		t.Helper()
		v.do(chromedp.EmulateViewport(390, 844), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
		v.fits(name)
		var end float64
		v.do(chromedp.Evaluate("document.getElementById('now').getBoundingClientRect().bottom + scrollY", &end))
		if end > 844 {
			t.Errorf("%s: what is wrong and what to do takes %g pixels of a phone's 844", name, end)
		}
		v.shot(name + "-phone")
		v.do(chromedp.EmulateViewport(1280, 900), emulation.SetEmulatedMedia().WithFeatures(nil))
	}

	p.until("some history", func(v *view) bool { return v.Events > 5000 })
	v.sees("Streaming")
	v.sees("no limit known") // max_slot_wal_keep_size is -1
	v.sees("Kafka acknowledged the newest one 0 s ago")
	v.shot("real-streaming")

	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	v.sees("Waiting for Kafka")
	v.sees("connection refused")
	v.sees("events wait in walpost, the oldest for")
	v.sees("Events per second\n0/s")
	phone("kafka-down")
	v.shot("kafka-down")
	var said string
	v.do(chromedp.Text("#errors", &said))
	if !strings.Contains(said, "ago") {
		t.Errorf("Kafka is down, and the errors are %q", said)
	}
	v.do(chromedp.Text("#topics", &said))
	if strings.Contains(said, "\n0 s ago") {
		t.Errorf("Kafka is down, and the newest events are new:\n%s", said)
	}
	if code, body := p.get("/readyz"); code != 503 || !strings.HasPrefix(body, "stalled: delivery waits: ") {
		t.Errorf("/readyz: %d %s", code, body)
	}

	kafka.Start(t)
	v.sees("Streaming")
	insert("NULL")
	v.sees("Halted")
	v.sees("An event cannot be routed")
	v.sees("walpost skip ")
	phone("halted")
	v.shot("halted")
	var once, copied, event, href string
	v.do(chromedp.Text("#now", &once), chromedp.Text("#remedy pre", &copied), chromedp.Text("#event-id", &event), chromedp.AttributeValue("#runbook", "href", &href, nil))
	var halt struct{ Halt haltView }
	p.until("halted", func(v *view) bool { halt.Halt = *v.Halt; return true })
	h := &halt.Halt
	if copied != h.Commands[0] || !strings.Contains(copied, h.Token) || event != h.EventID || !strings.HasSuffix(href, "/docs/runbooks/WalpostRelayHalted.md#a-bad-event") {
		t.Errorf("event %q, command %q, runbook %q of %+v", event, copied, href, h)
	}
	for _, text := range []string{h.Error, h.Token} {
		if strings.Count(once, text) != 1 {
			t.Errorf("%q is said %d times in\n%s", text, strings.Count(once, text), once)
		}
	}
	// The command can be copied, also where the browser has no clipboard (http on another host than localhost).
	v.do(chromedp.Evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})", nil), chromedp.Click("#remedy button"))
	var selected string
	v.do(chromedp.Evaluate("getSelection().toString()", &selected))
	if strings.TrimSpace(selected) != copied {
		t.Errorf("Copy selects %q, want %q", selected, copied)
	}
	stop()
	service.Wait()
	if code := p.stop(); code != exitPerson {
		t.Errorf("exit code %d", code)
	}
	if code, out := command(t, strings.Fields(copied)[1:]...); code != exitOK {
		t.Errorf("%s: exit code %d\n%s", copied, code, out)
	}
}
