package statuspage

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/latency"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/testenv/browser"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

// strictest is a policy that a proxy in front of the page may set; two policies hold both.
const strictest = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"

// A live is the relay of a shop that a test changes while a browser looks.
type live struct {
	t       *testing.T
	mu      sync.Mutex
	changes []func(*walpost.Status)
}

func (l *live) Status() walpost.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := shopStatus(l.t, 0)
	for _, f := range l.changes {
		f(&s)
	}
	return s
}

func (l *live) change(f func(*walpost.Status)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = append(l.changes, f)
}

// burst is when, before now, the shop wrote a batch of events.
const burst = 3 * time.Minute

// shopStatus is the status of a relay at a moment before now: one that has run for an hour, for a shop with a steady load and one
// batch. All its figures follow from how many events were written until then.
func shopStatus(t *testing.T, ago time.Duration) walpost.Status {
	t.Helper()
	now := time.Now().Truncate(historyEvery).Add(-ago)
	since := time.Now().Truncate(historyEvery).Add(-time.Hour)
	written := func(at time.Time) uint64 {
		seconds := at.Sub(since).Seconds()
		n := 480*seconds + 700*math.Sin(seconds/18)
		if at.After(since.Add(time.Hour - burst)) {
			n += 25_600
		}
		return uint64(n)
	}
	lsn := func(at time.Time) cdc.LSN { return 0x16_00000000 + cdc.LSN(1500*written(at)) }
	confirmed := now.Add(-time.Second)
	h := slot.Health{
		Slot: "walpost", Database: "shop", At: now, Exists: true, Active: true, ActivePID: 4711, WALStatus: "reserved", ServerVersion: 170_002,
		Server: lsn(now), Confirmed: lsn(confirmed), Restart: lsn(confirmed.Add(-(confirmed.Sub(since) % (15 * time.Second)))), KeepBytes: 1 << 30, SafeKnown: true,
	}
	h.RetainedBytes, h.UnconfirmedBytes = int64(h.Server-h.Restart), int64(h.Server-h.Confirmed)
	h.SafeBytes = h.KeepBytes - h.RetainedBytes
	s := walpost.Status{Name: "shop.walpost", Slot: judged(t, h), Window: relay.Window{Events: 50_000, Bytes: 64 << 20}}
	s.Slot.WALRate = 720_000
	s.Status = relay.Status{
		State: relay.Streaming, Ready: true, InStream: true, Since: age.Since{Time: since}, Opened: since, Turned: now, Epoch: 4, Sessions: map[string]uint64{},
		Identity: cdc.Identity{SystemID: "7439870194857", Timeline: 1}, LastEvent: age.Since{Time: now}, LastAck: age.Since{Time: now},
		InFlight: relay.InFlight{Events: 12, Bytes: 12 << 10, Oldest: age.Since{Time: now.Add(-20 * time.Millisecond)}},
		Received: lsn(now).Position(), Safe: lsn(now.Add(-25 * time.Millisecond)).Position(), Checkpoint: lsn(confirmed).Position(), Confirmed: lsn(confirmed).Position(),
		Events: written(now), Transactions: written(now) * 3 / 4,
	}
	for at := since.Add(historyEvery); !at.After(now); at = at.Add(historyEvery) { // two of a hundred take longer than the others
		n, slow := written(at)-written(at.Add(-historyEvery)), 4+int(at.Sub(since)/(44*time.Second))%3
		s.Latency.Counts[slow] += n / 50
		s.Latency.Counts[slow-1] += n - n/50
	}
	s.Latency.Max = latency.Bounds[6]
	customers := s.Events / 15
	s.Topics = map[string]uint64{"outbox.event.order": s.Events - customers, "outbox.event.customer": customers}
	s.Breaker = &slot.BreakerStatus{Action: slot.BreakerDrop, State: slot.BreakerArmed, Since: age.Since{Time: since}}
	s.Recent = map[string][]relay.Sent{
		"outbox.event.order":    {{EventID: "0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11", At: age.Since{Time: now}}, {EventID: "0198c5a2-7d0c-7a41-8a62-11d0a9e2c3b4", At: age.Since{Time: now}}},
		"outbox.event.customer": {{EventID: "0198c5a2-6f00-7b1e-b111-5a0e1d2c3b4a", At: age.Since{Time: now}}},
	}
	return s
}

// A look is a read of the slot.
type look slot.Health

func (l look) Read(context.Context, bool) (slot.Health, error) { return slot.Health(l), nil }
func (look) Close()                                            {}

// judged is what the program says of a slot. A look of the past is judged as it was then.
func judged(t *testing.T, h slot.Health) slot.Status {
	t.Helper()
	at := h.At
	h.At = time.Now()
	s, err := slot.Once(context.Background(), slot.DefaultConfig(), h.Slot, h.Database, look(h), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.At = at
	return s
}

// charts checks what the charts show: a line that one spike does not flatten, axes, the span and the maximum, and the value
// under the pointer.
func charts(t *testing.T, v *browser.Visit) {
	t.Helper()
	v.Sees("Last 5 min, maximum 13K/s (above the scale)")
	v.Sees("MiB (above the scale)")
	for _, name := range []string{"rate", "latency", "retained"} {
		// How many of the canvas' rows, in the plot's upper half, have the line's colour.
		var rows int
		v.Do(chromedp.Evaluate(fmt.Sprintf(`(() => {
			const c = document.querySelector("#chart-%s canvas"), g = c.getContext("2d").getImageData(0, 0, c.width, c.height / 2).data;
			const probe = document.createElement("canvas").getContext("2d");
			probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--link").trim();
			probe.fillRect(0, 0, 1, 1);
			const want = probe.getImageData(0, 0, 1, 1).data, rows = new Set();
			for (let i = 0; i < g.length; i += 4) if (g[i+3] > 200 && [0, 1, 2].every((k) => Math.abs(g[i+k] - want[k]) < 24)) rows.add(Math.floor(i / 4 / c.width));
			return rows.size; })()`, name), &rows))
		if rows < 10 {
			t.Errorf("chart %s: the line is in %d rows of the upper half", name, rows)
		}
		var x, y float64
		v.Do(chromedp.Evaluate(fmt.Sprintf(`(() => { const e = document.querySelector("#chart-%s"); e.scrollIntoView(); return e.getBoundingClientRect().left + e.clientWidth * 0.6; })()`, name), &x),
			chromedp.Evaluate(fmt.Sprintf(`document.querySelector("#chart-%s").getBoundingClientRect().top + 60`, name), &y))
		v.Do(chromedp.MouseEvent("mouseMoved", x, y))
		var ok bool
		v.Do(chromedp.Poll(fmt.Sprintf(`/^\d\d:\d\d:\d\d: (p99 )?[\d.]+\s?(K?\/s|ms|MiB)/.test(document.querySelector("#span-%s").innerText)`, name), &ok, chromedp.WithPollingTimeout(2*time.Minute)))
	}
	v.Do(chromedp.MouseEvent("mouseMoved", 1, 1), chromedp.Evaluate("scrollTo(0, 0)", nil))
}

// ends checks that the value above a chart is the end of its line: the value under the pointer at the right edge.
func ends(t *testing.T, v *browser.Visit, name string) {
	t.Helper()
	var same bool
	v.Do(chromedp.Poll(fmt.Sprintf(`(() => {
		const over = document.querySelector("#chart-%[1]s .u-over"), r = over.getBoundingClientRect();
		over.dispatchEvent(new MouseEvent("mousemove", { clientX: r.right - 1, clientY: r.top + 9, bubbles: true }));
		return document.getElementById("span-%[1]s").innerText.endsWith(": " + document.getElementById("%[1]s").innerText); })()`, name), &same, chromedp.WithPollingTimeout(time.Minute)))
	v.Do(chromedp.Evaluate(fmt.Sprintf(`document.querySelector("#chart-%s .u-over").dispatchEvent(new MouseEvent("mouseleave"))`, name), nil))
}

func TestStatusPageInABrowser(t *testing.T) {
	chromium := browser.Start(t)
	if err := chromedp.Run(chromium); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		width  int64
		height int64
		scheme string
		ground string // of the page
	}{
		{"desktop-light", 1280, 900, "light", "rgb(246, 247, 249)"},
		{"desktop-dark", 1280, 900, "dark", "rgb(17, 22, 28)"},
		{"phone-light", 390, 844, "light", "rgb(246, 247, 249)"},
		{"phone-dark", 390, 844, "dark", "rgb(17, 22, 28)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &live{t: t}
			past := &history{}
			for i := range 140 { // some minutes of history
				ago := time.Duration(139-i) * historyEvery
				past.sample(shopStatus(t, ago), time.Now().Add(-ago))
			}
			address := serve(t, "127.0.0.1:0", r, past)

			tab, endTab := chromedp.NewContext(chromium)
			defer endTab()
			tab, cancel := context.WithTimeout(tab, 10*time.Minute)
			defer cancel()
			v := browser.NewVisit(t, tab)
			v.Listen()
			v.Do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: c.scheme}}),
				chromedp.EmulateViewport(c.width, c.height), chromedp.Navigate("http://"+address+"/"))
			v.Sees("0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11")
			v.Sees("Streaming")
			v.Sees("far from its limit")
			v.Sees("12 of 50,000 events, 12 KiB of 64 MiB in flight")
			v.Sees("armed: stop_and_drop_slot")
			v.Sees("none") // dead letters
			v.Fits(c.name)
			var ground string
			v.Do(chromedp.Evaluate("getComputedStyle(document.body).backgroundColor", &ground))
			if ground != c.ground {
				t.Errorf("the page is %s in %s", ground, c.scheme)
			}
			charts(t, v)
			v.Sees("Other holders of WAL\nnone")
			ends(t, v, "retained")
			v.Shot("streaming-" + c.name)

			// Live, without a reload.
			r.change(func(s *walpost.Status) {
				s.Topics["outbox.event.refund"] = 1
				s.Recent = map[string][]relay.Sent{"outbox.event.refund": {{EventID: "fresh-event", At: age.Since{Time: time.Now()}}}}
			})
			v.Sees("fresh-event")

			// Events flow, but not all.
			r.change(func(s *walpost.Status) {
				s.OpenDeadLetters, s.Parked.Keys, s.Parked.Events = &badevents.Count{Open: 2}, 3, 9
			})
			v.Sees("Not all events are delivered")
			v.Sees("2 dead letters and 9 parked events of 3 keys are not delivered. The other events flow.")
			v.Sees("walpost dead list")
			v.Fits(c.name + " with bad events")
			v.Shot("undelivered-" + c.name)

			// What others have chosen is text and nothing else.
			evil := `<img src=x onerror=alert(1)><script>document.title="owned"</script>`
			r.change(func(s *walpost.Status) {
				s.Name, s.Slot.Slot, s.Slot.Reasons = evil+"name", evil+"slot", []string{evil + "finding"}
				s.Topics = map[string]uint64{evil + "topic": 2}
				s.Recent = map[string][]relay.Sent{evil + "topic": {{EventID: evil + "id", At: age.Since{Time: time.Now()}}}}
				s.NewestDead = []relay.DeadLetter{{Token: evil + "token", Text: evil + "dead", At: age.Since{Time: time.Now()}}}
				s.Parked.Keys = 1
				s.OldestParked = []parking.Parked{{Key: parking.Key{Table: "public.outbox", Key: evil + "key"}, First: parking.Entry{Token: evil + "parked"}}}
				s.Troubles = []relay.Trouble{{Text: evil + "error", Hint: evil + "hint", At: age.Since{Time: time.Now()}}}
				s.Slot.Blocker = &slot.Blocker{Kind: slot.BlockedByPrepared, Name: evil + "gid", End: evil + "sql"}
				s.Breaker = &slot.BreakerStatus{Action: slot.BreakerAlert, State: slot.BreakerTripped, Reason: evil + "breaker", Since: age.Since{Time: time.Now()}}
			})
			for _, what := range []string{"breaker", "name", "slot", "finding", "topic", "id", "error", "hint", "gid", "sql", "dead", "token", "key", "parked"} {
				v.Sees(evil + what)
			}
			var found string
			v.Do(chromedp.Evaluate("`${document.querySelectorAll('img').length} ${document.scripts.length} ${document.title.includes('owned') && !document.title.includes('<')}`", &found))
			if found != "0 2 false" {
				t.Errorf("images, scripts, title taken: %s", found)
			}
			v.Fits(c.name + " with long words")

			// Kafka is down for so long that the slot is in danger: the page must not say that nothing is lost, and says how
			// long a person may take.
			stalled := shopStatus(t, 0)
			stalled.State, stalled.Ready, stalled.Reason, stalled.InFlight.Events = relay.Stalled, false, "delivery waits: connection refused", 1234
			r.change(func(s *walpost.Status) {
				*s = shopStatus(t, 0)
				s.State, s.Ready, s.Reason, s.InFlight.Events = stalled.State, stalled.Ready, stalled.Reason, stalled.InFlight.Events
				s.Slot.WALRate, s.Slot.Exhaustion = 1<<20, 1e6 // the forecast still has the time before in it
			})
			v.Sees("1,234 events wait in walpost")
			v.Sees("Kafka does not acknowledge events. Repair Kafka: walpost continues by itself.")
			v.Sees("Kafka acknowledged the newest event 0 s ago. Nothing is lost: walpost delivers them in order.")
			v.Sees("Time left: about 17 min at this rate. The slot holds ")
			v.Sees(" more Postgres removes WAL that walpost has not read, and events are missing then (max_slot_wal_keep_size).")
			v.Sees("Used up in, at this rate\n17 min")
			h := stalled.Slot.Health
			h.RetainedBytes, h.SafeBytes, h.KeepBytes = 12<<30, 28<<30, 40<<30
			r.change(func(s *walpost.Status) { s.Slot = judged(t, h) })
			v.Sees("s ago. The slot is in danger: the slot holds 12.0 GiB of WAL (monitor.retained_critical is 10GiB).")
			var said string
			if v.Do(chromedp.Text("#now", &said)); strings.Contains(said, "Nothing is lost") {
				t.Errorf("the slot is in danger, and the page says:\n%s", said)
			}
			h.WALStatus, h.SafeBytes = "unreserved", -1<<30
			r.change(func(s *walpost.Status) { s.Slot = judged(t, h) })
			v.Sees("Time left: none. The slot holds 12 GiB of WAL. At its next checkpoint Postgres removes WAL that walpost has not read, and events are missing then (max_slot_wal_keep_size).")
			h.WALStatus, h.KeepBytes, h.SafeKnown, h.RetainedBytes = "extended", -1, false, 1<<20
			r.change(func(s *walpost.Status) { s.Slot = judged(t, h); s.Slot.WALRate = 720_000 })
			v.Sees("Time left: until the disk of the database is full. The slot holds 1 MiB of WAL and grows by 703 KiB/s, without a limit (max_slot_wal_keep_size is -1). Watch that disk.")
			v.Sees("Set a limit that is larger than what the slot holds now")
			r.change(func(s *walpost.Status) { s.Slot = slot.Status{Err: "connection refused", Severity: slot.Unknown} })
			v.Sees("Time left: unknown, because walpost cannot look at the slot: connection refused")

			// An error that is over says so, and offers no remedy any more.
			lost := relay.Trouble{Text: "session lost", Hint: "Look at the server.", At: age.Since{Time: time.Now().Add(-time.Minute)}, Times: 2}
			r.change(func(s *walpost.Status) { *s = shopStatus(t, 0); s.Troubles = []relay.Trouble{lost} })
			v.Sees("session lost\n\nLook at the server.")
			lost.Over.Time = time.Now().Truncate(time.Second).Add(-30*time.Second + 500*time.Millisecond) // far from the next second and the last
			r.change(func(s *walpost.Status) { s.Troubles = []relay.Trouble{lost} })
			v.Sees("(2 times) over since " + lost.Over.Format("15:04:05") + "\n\nsession lost")
			if v.Do(chromedp.Text("#errors", &said)); strings.Contains(said, "Look at the server") {
				t.Errorf("the error is over, and the page says:\n%s", said)
			}
			v.Clean()
		})
	}
}

// A page that stays open while the relay restarts says so, and goes on.
func TestStatusPageSurvivesARestart(t *testing.T) {
	tab, cancel := context.WithTimeout(browser.Start(t), 5*time.Minute)
	t.Cleanup(cancel)
	v := browser.NewVisit(t, tab)

	var address string
	t.Run("first life", func(t *testing.T) {
		address = serve(t, "127.0.0.1:0", &live{t: t}, &history{})
		v.Do(chromedp.Navigate("http://" + address + "/"))
		v.Sees("0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11")
	})
	v.Sees("Disconnected")
	v.Sees("The values below are old")
	v.Shot("disconnected")
	again := &live{t: t}
	again.change(func(s *walpost.Status) { s.Recent["outbox.event.order"][0].EventID = "after-the-restart" })
	serve(t, address, again, &history{})
	v.Sees("after-the-restart")
	var text string
	v.Do(chromedp.Text("#state", &text))
	if text != "Streaming" {
		t.Errorf("the state is %q", text)
	}
}

// serve shows r until the test's end, under the strictest policy beside our own.
func serve(t *testing.T, address string, r Relay, past *history) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	for end := time.Now().Add(2 * time.Minute); err != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		l, err = net.Listen("tcp", address) // a connection of another program may have the port for a while
	}
	if err != nil {
		t.Fatal(err)
	}
	inner := testServer(t, r, nil).handler(r, past)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Add("Content-Security-Policy", strictest)
		inner.ServeHTTP(extra{w}, req)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // it ends by Close
	}()
	t.Cleanup(func() {
		_ = server.Close() // the test is over
		<-done
	})
	return l.Addr().String()
}

// extra keeps a policy that was there when another is set.
type extra struct{ http.ResponseWriter }

func (e extra) WriteHeader(code int) {
	if all := e.Header().Values("Content-Security-Policy"); len(all) == 1 && all[0] != strictest {
		e.Header().Add("Content-Security-Policy", strictest)
	}
	e.ResponseWriter.WriteHeader(code)
}

func (e extra) Write(b []byte) (int, error) {
	if all := e.Header().Values("Content-Security-Policy"); len(all) == 1 && all[0] != strictest {
		e.Header().Add("Content-Security-Policy", strictest)
	}
	return e.ResponseWriter.Write(b)
}
