package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

// strictest is a policy that a proxy in front of the page may set; two policies hold both.
const strictest = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"

// chromium is a browser on this machine. Without one the test says so loudly, and fails where WALPOST_REQUIRE_BROWSER is 1.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("WALPOST_REQUIRE_BROWSER") == "1" {
		t.Fatal("no Chromium on this machine, and WALPOST_REQUIRE_BROWSER is 1")
	}
	fmt.Fprintln(os.Stderr, "walpost: THE STATUS PAGE IS NOT TESTED: no Chromium on this machine (apt-get install chromium)")
	t.Skip("no Chromium on this machine")
	return ""
}

// browse starts a browser, which ends with the test.
func browse(t *testing.T) context.Context {
	t.Helper()
	path := chromium(t)
	dir, err := os.MkdirTemp("", "walpost-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the browser's own children write into it for a moment after it has gone
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(dir))
	all, end := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(end)
	browser, endBrowser := chromedp.NewContext(all)
	t.Cleanup(endBrowser)
	return browser
}

// A live is a relay whose status a test changes while a browser looks.
type live struct {
	mu     sync.Mutex
	status walpost.Status
}

func (s *live) Status() walpost.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *live) change(f func(*walpost.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

// now is busy's status as of this moment.
func nowBusy() walpost.Status {
	s := busy().status
	now := time.Now()
	s.Since, s.Turned, s.OldestUnacked, s.Slot.At = now.Add(-time.Hour), now, now.Add(-20*time.Millisecond), now
	s.Slot.RetainedBytes, s.Slot.Limit, s.Slot.Left, s.Slot.Exhaustion = 96<<20, slot.ByKeep, 928<<20, 5400
	s.LastAck, s.LastEvent, s.Epoch, s.Events, s.Transactions = now.Add(-300*time.Millisecond), now, 4, 1_292_525, 960_211
	s.Received, s.Safe, s.Checkpoint, s.Confirmed = 0x16_B374D848, 0x16_B374C000, 0x16_B3700000, 0x16_B3700000
	s.Window, s.InFlightEvents, s.InFlightBytes, s.Identity.Timeline = relay.Window{Events: 50_000, Bytes: 64 << 20}, 1_234, 812<<10, 1
	s.Slot.Blocker.User, s.Slot.Blocker.Application = "report", "nightly"
	s.Slot.Blocker.End = "SELECT pg_terminate_backend(42);"
	s.Topics = map[string]uint64{"outbox.event.order": 1_204_311, "outbox.event.customer": 88_214}
	s.Breaker = &slot.BreakerStatus{Action: slot.BreakerDrop, State: slot.BreakerArmed, Since: s.Since}
	s.Recent = map[string][]relay.Sent{
		"outbox.event.order":    {{EventID: "0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11", At: now}, {EventID: "0198c5a2-7d0c-7a41-8a62-11d0a9e2c3b4", At: now.Add(-2 * time.Second)}},
		"outbox.event.customer": {{EventID: "0198c5a2-6f00-7b1e-b111-5a0e1d2c3b4a", At: now.Add(-40 * time.Second)}},
	}
	return s
}

func halt(s *walpost.Status) {
	s.State, s.Ready, s.Reason = relay.Halted, false, "slot walpost is invalidated (wal_removed): events after 0/16B3748 are missing"
	s.Troubles = []relay.Trouble{{
		Text: s.Reason, Hint: "The server has removed WAL that the slot needs. Run walpost recover --config walpost.yaml to see the gap.",
		Commands: []string{"walpost recover --config walpost.yaml"}, At: time.Now(), Times: 1,
	}}
	s.Slot.WALStatus, s.Slot.Invalidation, s.Slot.Active, s.Slot.InactiveFor = "lost", "wal_removed", false, 90*time.Second
	s.Slot.Limit, s.Slot.Exhaustion, s.Slot.RetainedBytes, s.Slot.SafeKnown, s.Slot.Blocker = slot.ByRemoval, 0, -1, false, nil
	s.Slot.Severity, s.Slot.Reasons = slot.Critical, []string{"the slot is lost (wal_removed): its WAL is gone; run walpost recover"}
	s.Breaker = &slot.BreakerStatus{Action: slot.BreakerDrop, State: slot.BreakerTripped, Reason: "slot walpost holds 9.0 GiB of WAL", Since: time.Now()}
}

// A visit is one tab on the page; whatever the browser complains of is an error of the test.
type visit struct {
	t    *testing.T
	ctx  context.Context
	mu   sync.Mutex
	said []string
}

func (v *visit) do(actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		v.t.Fatal(err)
	}
}

// sees waits until the page's text has a piece in it.
func (v *visit) sees(text string) {
	v.t.Helper()
	var ok bool
	if err := chromedp.Run(v.ctx, chromedp.Poll(fmt.Sprintf("document.body.innerText.includes(%q)", text), &ok, chromedp.WithPollingTimeout(2*time.Minute))); err != nil {
		var all string
		v.do(chromedp.Text("body", &all))
		v.shot("failed")
		v.t.Fatalf("the page does not say %q: %v\n%s\n%s", text, err, all, v.complaints())
	}
}

func (v *visit) complaints() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string{}, v.said...)
}

func (v *visit) clean() {
	v.t.Helper()
	for _, text := range v.complaints() {
		v.t.Errorf("the browser says: %s", text)
	}
}

func (v *visit) shot(name string) {
	v.t.Helper()
	dir := os.Getenv("WALPOST_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	v.do(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// charts checks what the charts show: a line that one spike does not flatten, axes, the span and the maximum, and the value
// under the pointer.
func (v *visit) charts() {
	v.t.Helper()
	v.sees("Last 4.6 min, maximum 101K/s (above the scale)")
	v.sees("Last 4.6 min, maximum 98 MiB")
	for _, name := range []string{"rate", "latency", "retained"} {
		// How many of the canvas' rows, in the plot's upper half, have the line's colour.
		var rows int
		v.do(chromedp.Evaluate(fmt.Sprintf(`(() => {
			const c = document.querySelector("#chart-%s canvas"), g = c.getContext("2d").getImageData(0, 0, c.width, c.height / 2).data;
			const probe = document.createElement("canvas").getContext("2d");
			probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--link").trim();
			probe.fillRect(0, 0, 1, 1);
			const want = probe.getImageData(0, 0, 1, 1).data, rows = new Set();
			for (let i = 0; i < g.length; i += 4) if (g[i+3] > 200 && [0, 1, 2].every((k) => Math.abs(g[i+k] - want[k]) < 24)) rows.add(Math.floor(i / 4 / c.width));
			return rows.size; })()`, name), &rows))
		if rows < 10 {
			v.t.Errorf("chart %s: the line is in %d rows of the upper half", name, rows)
		}
		var x, y float64
		v.do(chromedp.Evaluate(fmt.Sprintf(`(() => { const e = document.querySelector("#chart-%s"); e.scrollIntoView(); return e.getBoundingClientRect().left + e.clientWidth * 0.6; })()`, name), &x),
			chromedp.Evaluate(fmt.Sprintf(`document.querySelector("#chart-%s").getBoundingClientRect().top + 60`, name), &y))
		v.do(chromedp.MouseEvent("mouseMoved", x, y))
		var ok bool
		v.do(chromedp.Poll(fmt.Sprintf(`/^\d\d:\d\d:\d\d: (p99 )?[\d.]+ ?(K?\/s|ms|MiB)/.test(document.querySelector("#span-%s").innerText)`, name), &ok, chromedp.WithPollingTimeout(2*time.Minute)))
	}
	v.do(chromedp.MouseEvent("mouseMoved", 1, 1), chromedp.Evaluate("scrollTo(0, 0)", nil))
	v.sees("Last 4.6 min, maximum 98 MiB")
}

func TestStatusPageInABrowser(t *testing.T) {
	browser := browse(t)
	if err := chromedp.Run(browser); err != nil {
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
			r := &live{status: nowBusy()}
			past := &history{}
			for i := range 140 { // some minutes of history, with one spike
				s := nowBusy()
				s.Events, s.Slot.RetainedBytes = uint64(1000*i+int(700*math.Sin(float64(i)/9))), int64(60+i%20*2)<<20
				if i >= 70 {
					s.Events += 200_000
				}
				for n := range i {
					s.Latency.Counts[3+n/11%3] += 20
				}
				s.Latency.Max = 0.02
				past.sample(s, time.Now().Add(time.Duration(i-140)*historyEvery))
			}
			address := serve(t, "127.0.0.1:0", r, past)

			tab, endTab := chromedp.NewContext(browser)
			defer endTab()
			tab, cancel := context.WithTimeout(tab, 10*time.Minute)
			defer cancel()
			v := &visit{t: t, ctx: tab}
			chromedp.ListenTarget(tab, func(event any) {
				v.mu.Lock()
				defer v.mu.Unlock()
				switch e := event.(type) {
				case *log.EventEntryAdded:
					v.said = append(v.said, e.Entry.Text)
				case *cdpruntime.EventExceptionThrown:
					v.said = append(v.said, e.ExceptionDetails.Error())
				case *cdpruntime.EventConsoleAPICalled:
					v.said = append(v.said, fmt.Sprint(e.Type))
				case *cdppage.EventJavascriptDialogOpening:
					v.said = append(v.said, "dialog: "+e.Message)
				}
			})
			v.do(log.Enable(), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: c.scheme}}),
				chromedp.EmulateViewport(c.width, c.height), chromedp.Navigate("http://"+address+"/"))
			v.sees("0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11")
			v.sees("SELECT pg_terminate_backend(42);")
			v.sees("Streaming")
			v.sees("far from its limit")
			v.sees("1,234 of 50,000 events, 812 KiB of 64 MiB in flight")
			v.sees("armed: stop_and_drop_slot")
			v.sees("off: a bad event halts") // dead letters
			v.fits(c.name)
			var ground string
			v.do(chromedp.Evaluate("getComputedStyle(document.body).backgroundColor", &ground))
			if ground != c.ground {
				t.Errorf("the page is %s in %s", ground, c.scheme)
			}
			v.charts()
			r.change(func(s *walpost.Status) { s.Slot.Blocker = nil })
			v.sees("Other holders of WAL\nnone")
			v.shot("streaming-" + c.name)

			// Live, without a reload.
			r.change(func(s *walpost.Status) {
				s.Topics["outbox.event.refund"] = 1
				s.Recent = map[string][]relay.Sent{"outbox.event.refund": {{EventID: "fresh-event", At: time.Now()}}}
			})
			v.sees("fresh-event")

			// What others have chosen is text and nothing else.
			evil := `<img src=x onerror=alert(1)><script>document.title="owned"</script>`
			r.change(func(s *walpost.Status) {
				s.Name, s.Slot.Slot, s.Slot.Reasons = evil+"name", evil+"slot", []string{evil + "finding"}
				s.Topics = map[string]uint64{evil + "topic": 2}
				s.Recent = map[string][]relay.Sent{evil + "topic": {{EventID: evil + "id", At: time.Now()}}}
				s.Troubles = []relay.Trouble{{Text: evil + "error", Hint: evil + "hint", At: time.Now()}}
				s.Slot.Blocker = &slot.Blocker{Kind: slot.BlockedByPrepared, Name: evil + "gid", End: evil + "sql"}
				s.Breaker = &slot.BreakerStatus{Action: slot.BreakerAlert, State: slot.BreakerTripped, Reason: evil + "breaker", Since: time.Now()}
			})
			for _, what := range []string{"breaker", "name", "slot", "finding", "topic", "id", "error", "hint", "gid", "sql"} {
				v.sees(evil + what)
			}
			var found string
			v.do(chromedp.Evaluate("`${document.querySelectorAll('img').length} ${document.scripts.length} ${document.title.includes('owned') && !document.title.includes('<')}`", &found))
			if found != "0 2 false" {
				t.Errorf("images, scripts, title taken: %s", found)
			}
			v.fits(c.name + " with long words")

			// Kafka is down for so long that the slot is in danger: the page must not say that nothing is lost.
			r.change(func(s *walpost.Status) {
				*s = nowBusy()
				s.State, s.Ready, s.Reason = relay.Stalled, false, "delivery waits: connection refused"
			})
			v.sees("1,234 events wait in walpost")
			v.sees("Nothing is lost. Repair Kafka")
			r.change(func(s *walpost.Status) {
				s.Slot.Severity, s.Slot.Reasons = slot.Critical, []string{"the slot holds 12.0 GiB of WAL"}
			})
			v.sees("Repair Kafka, and walpost delivers them in order by itself. The slot is in danger: the slot holds 12.0 GiB of WAL.")
			var said string
			if v.do(chromedp.Text("#now", &said)); strings.Contains(said, "Nothing is lost") {
				t.Errorf("the slot is in danger, and the page says:\n%s", said)
			}

			r.change(func(s *walpost.Status) { *s = nowBusy(); halt(s) })
			v.sees("slot walpost is invalidated (wal_removed): events after 0/16B3748 are missing")
			v.sees("The slot is lost. A person must act")
			v.sees("slot walpost holds 9.0 GiB of WAL")
			v.fits(c.name + " halted")
			var left string
			v.do(chromedp.Evaluate("[...document.querySelectorAll('[hidden]')].filter((e) => e.offsetParent !== null).map((e) => e.id).join(' ')", &left))
			if left != "" {
				t.Errorf("hidden and to be seen: %s", left)
			}
			v.shot("slot-lost-" + c.name)
			v.clean()
		})
	}
}

// A page that stays open while the relay restarts says so, and goes on.
func TestStatusPageSurvivesARestart(t *testing.T) {
	tab, cancel := context.WithTimeout(browse(t), 2*time.Minute)
	t.Cleanup(cancel)
	v := &visit{t: t, ctx: tab}

	var address string
	t.Run("first life", func(t *testing.T) {
		address = serve(t, "127.0.0.1:0", &live{status: nowBusy()}, &history{})
		v.do(chromedp.Navigate("http://" + address + "/"))
		v.sees("0198c5a2-7d11-7d0e-9f5f-3c2b7f0e9a11")
	})
	v.sees("Disconnected")
	v.sees("What is below is old")
	v.shot("disconnected")
	again := nowBusy()
	again.Recent["outbox.event.order"][0].EventID = "after-the-restart"
	serve(t, address, &live{status: again}, &history{})
	v.sees("after-the-restart")
	var text string
	v.do(chromedp.Text("#state", &text))
	if text != "Streaming" {
		t.Errorf("the state is %q", text)
	}
}

// serve shows r until the test's end, under the strictest policy beside our own.
func serve(t *testing.T, address string, r watched, past *history) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	inner := handler(r, collected(t, r), past, nil)
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

// fits fails where the page must be scrolled sideways.
func (v *visit) fits(what string) {
	v.t.Helper()
	var over string
	v.do(chromedp.Evaluate(`(() => { const w = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= w) return "";
		return [...document.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > w + 1).map((e) => e.tagName + "#" + e.id).join(" ") || "page"; })()`, &over))
	if strings.TrimSpace(over) != "" {
		v.t.Errorf("%s: wider than the window: %s", what, over)
	}
}
