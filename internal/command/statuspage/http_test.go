package statuspage

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

func ask(t *testing.T, relay Relay, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:9640"
	testServer(t, relay, nil).handler(relay, &history{}).ServeHTTP(w, r)
	return w
}

// A page of another site can have its name resolve to this host (DNS rebinding), and would then read what is shown here.
func TestOnlyKnownNamesAreAnswered(t *testing.T) {
	relay := busy()
	relay.status.Turned = time.Now()
	h := testServer(t, relay, []string{"walpost.internal", "Relay-1.Example.COM."}).handler(relay, &history{})
	for host, known := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:9640": true, "10.1.2.3:80": true, "[::1]": true, "[::1]:9640": true, "[fe80::1]:9640": true, "[fe80::1%25eth0]:9640": true,
		"localhost": true, "localhost:9640": true, "LocalHost.": true, "localhost.:9640": true,
		"walpost.internal": true, "WALPOST.Internal.:9640": true, "relay-1.example.com": true,
		"": false, ":9640": false, "evil.example": false, "evil.example:9640": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false,
		"a.walpost.internal": false, "walpost.internal.evil.example": false, "localhost..": false, "[::1": false, "[localhost]:1": false, "2130706433": false, "127.1": false,
	} {
		for _, path := range []string{"/", "/status.js", "/status.css", "/api/status", "/api/history", "/nothing"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if refused := w.Code == http.StatusMisdirectedRequest; refused == known {
				t.Errorf("GET %s of host %q: %d %s", path, host, w.Code, w.Body)
			}
			if !known && (!strings.Contains(w.Body.String(), "http.hosts") || strings.Contains(w.Body.String(), "database")) {
				t.Errorf("GET %s of host %q says %q", path, host, w.Body)
			}
		}
		for _, path := range []string{"/livez", "/readyz", "/metrics"} { // a kubelet and Prometheus send what they like
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Errorf("GET %s of host %q: %d %s", path, host, w.Code, w.Body)
			}
		}
	}
}

func TestReadinessGivesTheReason(t *testing.T) {
	r := busy()
	r.status.Turned = time.Now().Add(-2 * stuckLimit)
	if w := ask(t, r, "GET", "/readyz"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "hung: the relay has made no progress for 2m") {
		t.Errorf("a relay that hangs: %d %s", w.Code, w.Body)
	}
	r.status.Turned = time.Now()
	if w := ask(t, r, "GET", "/readyz"); w.Code != http.StatusOK {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	r.status.State, r.status.Ready, r.status.Reason = relay.Halted, false, "the slot is lost"
	if w := ask(t, r, "GET", "/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "halted: the slot is lost\n" {
		t.Errorf("halted: %d %s", w.Code, w.Body)
	}
	if w := ask(t, r, "GET", "/livez"); w.Code != http.StatusOK {
		t.Errorf("a halted relay lives: %d %s", w.Code, w.Body)
	}
	if w := ask(t, r, "GET", "/readyz?standby=ok"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a halted relay is no standby: %d %s", w.Code, w.Body)
	}
	r.status.State, r.status.Reason = relay.Standby, "slot walpost is in use"
	for path, code := range map[string]int{"/readyz": http.StatusServiceUnavailable, "/readyz?standby=no": http.StatusServiceUnavailable, "/readyz?standby=ok": http.StatusOK} {
		if w := ask(t, r, "GET", path); w.Code != code {
			t.Errorf("a hot standby at %s: %d %s", path, w.Code, w.Body)
		}
	}
	r.status.Turned = time.Now().Add(-2 * stuckLimit)
	if w := ask(t, r, "GET", "/readyz?standby=ok"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a standby that hangs: %d %s", w.Code, w.Body)
	}
}

func TestLivenessIsWhetherTheLoopTurns(t *testing.T) {
	for _, c := range []struct {
		state relay.State
		still time.Duration
		stuck bool
	}{
		{relay.Streaming, 59 * time.Second, false},
		{relay.Streaming, 61 * time.Second, true},
		{relay.Connecting, 61 * time.Second, true},
		{relay.Draining, 61 * time.Second, true},
		{relay.Halted, time.Hour, false},
		{relay.Stopped, time.Hour, false},
		{relay.Starting, time.Hour, false},
	} {
		s := busy().status
		s.State, s.Turned = c.state, noon.Add(-c.still)
		if got := stuckFor(s, noon) > 0; got != c.stuck {
			t.Errorf("%s, still for %s: stuck %v, want %v", c.state, c.still, got, c.stuck)
		}
	}
}

// The page must work under the policy that it is served with: nothing from elsewhere, nothing inline.
func TestPageNeedsNothingFromElsewhere(t *testing.T) {
	r := busy()
	for path, kind := range map[string]string{
		"/": "text/html", "/status.js": "text/javascript", "/status.css": "text/css",
		"/uplot.js": "text/javascript", "/uplot.css": "text/css",
	} {
		w := ask(t, r, "GET", path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %s", path, csp)
		}
		body := strings.Replace(w.Body.String(), "/*! https://github.com/leeoniya/uPlot (v", "", 1)                                  // its first line
		body = strings.ReplaceAll(body, `<a rel="noreferrer" href="https://github.com/walpost/walpost/blob/main/docs/runbooks/`, "") // asks for nothing until it is clicked
		if found := regexp.MustCompile(`https?://|style="|onclick|<style|@import|innerHTML`).FindString(body); found != "" {
			t.Errorf("%s has %s in it", path, found)
		}
	}
	html, script := ask(t, r, "GET", "/").Body.String(), ask(t, r, "GET", "/status.js").Body.String()
	for _, id := range regexp.MustCompile(`(?:set|el|badge|show|fill)\("([a-z-]+)"`).FindAllStringSubmatch(script, -1) {
		if !strings.Contains(html, `id="`+id[1]+`"`) {
			t.Errorf("the script shows %s, which the page has not", id[1])
		}
	}
}

// The script reads what the status has: a field that is renamed on one side only would show as a dash for ever.
func TestScriptReadsFieldsOfTheStatus(t *testing.T) {
	keys := map[string]bool{}
	var walk func(reflect.Type)
	walk = func(x reflect.Type) {
		for i := range x.NumField() {
			keys[x.Field(i).Tag.Get("json")] = true
			inner := x.Field(i).Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(inner)
			}
		}
	}
	walk(reflect.TypeFor[View]())
	var v map[string]map[string]any
	_ = json.Unmarshal(ask(t, busy(), "GET", "/api/status").Body.Bytes(), &v) // the error is of what is no object
	for key := range v["latency"] {
		keys[key] = true
	}
	script := ask(t, busy(), "GET", "/status.js").Body.String()
	for _, m := range regexp.MustCompile(`\b(?:s|slot|breaker|s\.in_flight|s\.window|s\.latency|s\.source|s\.position)\.([a-z_0-9]+)\b`).FindAllStringSubmatch(script, -1) {
		if !keys[m[1]] && m[1] != "length" && m[1] != "toFixed" {
			t.Errorf("the script reads %s, which is no field of the status", m[0])
		}
	}
}

func TestStatusIsJSON(t *testing.T) {
	r := busy()
	r.status.Turned = time.Now()
	w := ask(t, r, "GET", "/api/status")
	var got struct {
		Name  string
		Ready bool
		Slot  struct {
			Retained int64 `json:"retained_bytes"`
			Blocker  string
		}
		Latency struct{ Count int }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "shop.walpost" || !got.Ready || got.Slot.Retained != 1000 || got.Slot.Blocker != "transaction of pid 42 in crm, idle in transaction, for 1m0s" || got.Latency.Count != 7 {
		t.Errorf("got %+v from %s", got, w.Body)
	}
}

// There are no dead letters as long as a bad event halts: a 0 would look like a queue that is empty.
func TestStatusDoesNotPretendToHaveDeadLetters(t *testing.T) {
	r := busy()
	r.status.Breaker = &slot.BreakerStatus{Action: slot.BreakerAlert, State: slot.BreakerTripped, Reason: "slot walpost holds 9.0 GiB", Since: age.Since{Time: time.Now().Add(-time.Hour)}}
	var got map[string]any
	if err := json.Unmarshal(ask(t, r, "GET", "/api/status").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if dead, told := got["dead_letters"]; !told || dead != nil {
		t.Errorf("dead_letters: %v, told %t; want null", dead, told)
	}
	r.status.Bury, r.status.DeadLetters = true, map[cdc.Reason]uint64{cdc.TooLarge: 2, cdc.Unroutable: 1}
	r.status.NewestDead = []relay.DeadLetter{{Token: "0-5-1-ab", EventID: "u", Reason: cdc.TooLarge, Topic: "t", At: age.Since{Time: time.Now()}}}
	var with struct {
		Dead   int              `json:"dead_letters"`
		Newest []map[string]any `json:"newest_dead_letters"`
	}
	if err := json.Unmarshal(ask(t, r, "GET", "/api/status").Body.Bytes(), &with); err != nil || with.Dead != 3 || len(with.Newest) != 1 || with.Newest[0]["token"] != "0-5-1-ab" {
		t.Errorf("%+v, %v", with, err)
	}
	if want := []any{"walpost dead show 0-5-1-ab", "walpost dead retry 0-5-1-ab"}; len(with.Newest) == 1 && !reflect.DeepEqual(with.Newest[0]["commands"], want) {
		t.Errorf("%v", with.Newest[0]["commands"])
	}
	breaker, _ := got["breaker"].(map[string]any)
	if since, _ := breaker["since_seconds"].(float64); breaker["action"] != "alert" || breaker["state"] != "tripped" || breaker["reason"] != "slot walpost holds 9.0 GiB" || since < 3600 {
		t.Errorf("breaker: %v", got["breaker"])
	}
}

// What is parked is told whatever the policy is now, because a key stays parked.
func TestStatusTellsWhatIsParked(t *testing.T) {
	r := busy()
	parked := func() (is *parkedView) {
		var got struct{ Parked *parkedView }
		if err := json.Unmarshal(ask(t, r, "GET", "/api/status").Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		return got.Parked
	}
	if is := parked(); is != nil {
		t.Errorf("parked: %+v; want null", is)
	}
	r.status.Park = true
	if is := parked(); is == nil || is.Keys != 0 || is.Age != nil || is.Oldest == nil {
		t.Errorf("nothing is parked: %+v", is)
	}
	r.status.Park, r.status.Parked = false, parking.Counts{Keys: 2, Events: 9}
	r.status.OldestParked = []parking.Parked{{
		Key: parking.Key{Table: "public.outbox", Key: "<k>"}, Events: 8,
		First: parking.Entry{Token: "0-5-1-ab", Reason: cdc.TooLarge, Attempts: 2, CommitTime: time.Now().Add(-time.Hour)},
	}}
	is := parked()
	if is == nil || is.Keys != 2 || is.Events != 9 || is.Age == nil || *is.Age < 3600 || len(is.Oldest) != 1 {
		t.Fatalf("%+v", is)
	}
	if k := is.Oldest[0]; k.Key != "<k>" || k.Table != "public.outbox" || k.Events != 8 || k.Reason != "too_large" || k.Tries != 2 || k.Age < 3600 ||
		!slices.Equal(k.Commands, []string{"walpost dead show 0-5-1-ab", "walpost dead retry 0-5-1-ab"}) {
		t.Errorf("%+v", k)
	}
}

// Events that are not delivered are never hidden behind a state in which the others flow.
func TestStatusTellsWhatIsNotDelivered(t *testing.T) {
	for _, c := range []struct {
		dead         badevents.Count
		keys, events int
		open         any // the number in /api/status
		want         string
	}{
		{badevents.Count{}, 0, 0, 0.0, ""},
		{badevents.Count{Open: 1}, 0, 0, 1.0, "1 dead letter is not delivered"},
		{badevents.Count{Open: 1200}, 0, 0, 1200.0, "1200 dead letters are not delivered"},
		{badevents.Count{}, 1, 1, 0.0, "1 parked event of 1 key is not delivered"},
		{badevents.Count{Open: 2}, 3, 9, 2.0, "2 dead letters and 9 parked events of 3 keys are not delivered"},
		{badevents.Count{Err: errors.New("denied")}, 2, 2, nil, "2 parked events of 2 keys are not delivered"},
	} {
		r := busy()
		r.status.OpenDeadLetters, r.status.Parked = &c.dead, parking.Counts{Keys: c.keys, Events: c.events}
		var got map[string]any
		if err := json.Unmarshal(ask(t, r, "GET", "/api/status").Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if failed := c.dead.Err != nil; got["undelivered"] != c.want || !reflect.DeepEqual(got["open_dead_letters"], c.open) || (got["open_dead_letters_error"] != "") != failed {
			t.Errorf("%+v: %v, %v, %v", c, got["undelivered"], got["open_dead_letters"], got["open_dead_letters_error"])
		}
	}
	r := busy() // without topics
	var got map[string]any
	if err := json.Unmarshal(ask(t, r, "GET", "/api/status").Body.Bytes(), &got); err != nil || got["undelivered"] != "" || got["open_dead_letters"] != nil {
		t.Errorf("%v, %v, %v", got["undelivered"], got["open_dead_letters"], err)
	}
}

func TestHTTPOnlyShows(t *testing.T) {
	for _, path := range []string{"/", "/api/status", "/metrics", "/readyz"} {
		if w := ask(t, busy(), "POST", path); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, w.Code)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/page/index.html", "/../go.mod", "/nothing"} {
		if w := ask(t, busy(), "GET", path); w.Code == http.StatusOK {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
}

// A halted walpost keeps its address until halt_linger is over, and the hint of a halt says to start walpost again.
func TestAddressInUseIsSaid(t *testing.T) {
	addr, stop, err := New(Config{Listen: "127.0.0.1:0"}, Build{}).Serve(busy(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	_, _, err = New(Config{Listen: addr}, Build{}).Serve(busy(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "http.listen: ") || !strings.Contains(fault.Hint(err), "a halted walpost that waits for halt_linger: stop that process first") {
		t.Errorf("a second server on %s: %v: %q", addr, err, fault.Hint(err))
	}
	const elsewhere = "192.0.2.1:0" // no address of this machine
	if _, _, err = New(Config{Listen: elsewhere}, Build{}).Serve(busy(), slog.New(slog.DiscardHandler)); err == nil || fault.Hint(err) != "" {
		t.Errorf("a server on %s: %v: %q", elsewhere, err, fault.Hint(err))
	}
}

// Each state has its words on the page, and each page of the documentation that the status page links exists.
func TestEveryStateHasItsWordsAndItsRunbook(t *testing.T) {
	script := ask(t, busy(), "GET", "/status.js").Body.String()
	for _, state := range relay.States {
		if !strings.Contains(script, fmt.Sprintf("\n    %q: [", state)) {
			t.Errorf("the page has no words for %s", state)
		}
	}
	lost := slot.Health{Exists: true, WALStatus: "lost"}
	for _, s := range []walpost.Status{
		{Status: relay.Status{State: relay.Halted, Bad: &relay.BadEvent{}}},
		{Status: relay.Status{State: relay.Halted}, Breaker: &slot.BreakerStatus{Action: slot.BreakerDrop, State: slot.BreakerDropped}},
		{Status: relay.Status{State: relay.Halted}, Slot: slot.Status{Known: true}},
		{Status: relay.Status{State: relay.SlotAtRisk}, Slot: slot.Status{Known: true, Health: lost, Forecast: slot.Forecast{Limit: slot.ByRemoval}}},
		{Status: relay.Status{State: relay.SlotAtRisk}, Slot: slot.Status{Known: true, Health: slot.Health{Exists: true, WALStatus: "unreserved"}}},
		{Status: relay.Status{State: relay.SlotAtRisk}},
		{Status: relay.Status{State: relay.Halted}},
		{Status: relay.Status{State: relay.Hung}},
		{Status: relay.Status{State: relay.Stalled}},
		{Status: relay.Status{State: relay.CopyingRows}},
		{Status: relay.Status{State: relay.Standby}},
	} {
		page, ok := strings.CutPrefix(runbook(&s), "https://github.com/walpost/walpost/blob/main/")
		file, anchor, _ := strings.Cut(page, "#")
		text, err := os.ReadFile("../../../" + file)
		if !ok || err != nil || !strings.Contains(strings.ToLower(string(text)), "# "+strings.ReplaceAll(anchor, "-", " ")) {
			t.Errorf("%s: %q: %v", s.State, page, err)
		}
	}
	// A halt has the runbook of its own reason: the look at the slot is older, and a breaker that only alerts halts nothing.
	for _, s := range []walpost.Status{
		{Status: relay.Status{State: relay.Halted}, Slot: slot.Status{Known: true, Health: slot.Health{Exists: true, WALStatus: "unreserved"}}},
		{Status: relay.Status{State: relay.Halted}, Breaker: &slot.BreakerStatus{Action: slot.BreakerAlert, State: slot.BreakerTripped}},
	} {
		if page := runbook(&s); !strings.HasSuffix(page, "/WalpostRelayHalted.md") {
			t.Errorf("a halted relay beside %s %+v has the runbook %s", s.Slot.WALStatus, s.Breaker, page)
		}
	}
	if page := runbook(&busy().status); page != "" {
		t.Errorf("a healthy relay has the runbook %s", page)
	}
}
