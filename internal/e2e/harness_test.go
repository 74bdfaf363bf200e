// Package e2e puts the program itself, as users run it, between real servers and makes them fail. It has tests only.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/internal/testenv/wire"
)

// program is the built walpost.
var program string

func TestMain(m *testing.M) {
	keeper.Init()
	short.SkipAll("servers and a build of walpost")
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "walpost-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
		program = filepath.Join(dir, "walpost")
		build := exec.Command("go", "build", "-o", program, "github.com/walpost/walpost/cmd/walpost")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build walpost: %v\n%s", err, out)
			return 1
		}
		atOnce()
		return testenv.Main(m)
	}())
}

// atOnce runs four tests at a time, unless -parallel says otherwise. They wait for servers for most of their time: with one for each of two
// cores, the cores are idle for 80 percent of it.
func atOnce() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "4") // the flag exists
	}
}

// A setting is one relay's surroundings: a database with the shop's tables, and its own topics.
type setting struct {
	t       *testing.T
	dsn     string
	brokers []string
	topics  []string      // of the shop's types, in their order
	prefix  string        // of the topics
	name    string        // of the checkpoint
	extra   string        // further lines of walpost.yaml
	router  string        // further options of its router, each behind a comma
	source  string        // further keys of its source, each behind a comma
	through string        // the dsn of walpost, where it is not dsn
	pause   time.Duration // of a writer of a crowd, in each transaction
	kept    bool          // the table kept.outbox has every row that was ever in the outbox
	yaml    string        // the whole of walpost.yaml but for extra, where it is not made of the above

	caged func(*exec.Cmd) // changes how walpost is started
}

// caging applies caged.
func (s *setting) caging(cmd *exec.Cmd) *exec.Cmd {
	if s.caged != nil {
		s.caged(cmd)
	}
	return cmd
}

// newSetting makes the shop's tables in the database and the topics, of three partitions.
func newSetting(t *testing.T, pg *testenv.PG, dsn string, kafka *testenv.KafkaCluster) *setting {
	t.Helper()
	pg.Exec(t, dsn, shop.Schema)
	s := &setting{t: t, dsn: dsn, brokers: kafka.Brokers(), name: unique("relay")}
	s.prefix = s.name + "."
	for _, typ := range shop.Types {
		s.topics = append(s.topics, s.prefix+typ)
		kafka.CreateTopic(t, s.prefix+typ, 3, nil)
	}
	return s
}

var (
	uniqueMu sync.Mutex
	uniqueN  int
)

func unique(prefix string) string {
	uniqueMu.Lock()
	defer uniqueMu.Unlock()
	uniqueN++
	return fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), uniqueN)
}

// wired has the relays reach the server through a wire.
func (s *setting) wired(pg *testenv.PG) *wire.Wire {
	s.t.Helper()
	server, link := fmt.Sprintf("127.0.0.1:%d", pg.Port()), wire.New(s.t)
	link.Serve(server)
	if s.through = strings.Replace(s.dsn, server, link.Address(), 1); s.through == s.dsn {
		s.t.Fatalf("%s is not in %s", server, s.dsn)
	}
	return link
}

// config writes walpost.yaml and returns its path.
func (s *setting) config() string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.outbox%s}
router: {route.topic.replacement: "%s${routedByValue}"%s}
kafka: {brokers: [%s]}
http: {listen: "127.0.0.1:0"}
%s
`, s.name, cmp.Or(s.through, s.dsn), s.source, s.prefix, s.router, strings.Join(s.brokers, ", "), s.extra)
	if s.yaml != "" {
		text = s.yaml + "\nhttp: {listen: \"127.0.0.1:0\"}\n" + s.extra
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// A relay is a running walpost.
type relay struct {
	t    *testing.T
	cmd  *exec.Cmd
	page string // http://host:port
	done chan struct{}
	log  *testenv.Output
}

// start runs "walpost run" and returns when its HTTP listens.
func (s *setting) start(args ...string) *relay {
	s.t.Helper()
	r := &relay{t: s.t, done: make(chan struct{}), log: new(testenv.Output)}
	r.cmd = s.caging(exec.Command(program, append([]string{"run", "--config", s.config()}, args...)...))
	out := r.log.File(s.t)
	r.cmd.Stdout, r.cmd.Stderr = out, out
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // ProcessState has the code
		close(r.done)
	}()
	s.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it may have ended
		<-r.done
		if s.t.Failed() {
			s.t.Logf("walpost %d wrote:\n%s", r.cmd.Process.Pid, r.log)
		}
	})
	eventually(s.t, 30*time.Second, "http listens", func() bool {
		r.page = r.log.Page()
		return r.page != "" || r.ended()
	})
	return r
}

// startReady starts and waits until events flow.
func (s *setting) startReady(args ...string) *relay {
	s.t.Helper()
	r := s.start(args...)
	eventually(s.t, 60*time.Second, "ready", func() bool { return r.ready() || r.ended() })
	if r.ended() {
		s.t.Fatalf("walpost ended with code %d", r.cmd.ProcessState.ExitCode())
	}
	return r
}

func (r *relay) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *relay) ready() bool {
	code, _ := r.get("/readyz")
	return code == http.StatusOK
}

// get asks HTTP; code 0 means that nobody answered.
func (r *relay) get(path string) (code int, body string) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(r.page + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// metric returns the value of the first sample whose line begins with name.
func (r *relay) metric(name string) float64 {
	_, body := r.get("/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			fields := strings.Fields(line)
			v, _ := strconv.ParseFloat(fields[len(fields)-1], 64) //nolint:errcheck // 0 is as good
			return v
		}
	}
	return -1
}

// rss is the resident memory in bytes; peak is the highest so far.
func (r *relay) rss() (now, peak int64) { return memory(r.cmd.Process.Pid) }

// memory is rss of a process. It is -1 if there is none. The kernel's ru_maxrss is of no use: it counts the memory of the process that
// started the other one.
func memory(pid int) (now, peak int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1, -1
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 3 && (f[0] == "VmRSS:" || f[0] == "VmHWM:") {
			kb, _ := strconv.ParseInt(f[1], 10, 64) //nolint:errcheck // the kernel wrote it
			if f[0] == "VmRSS:" {
				now = kb << 10
			} else {
				peak = kb << 10
			}
		}
	}
	return now, peak
}

// stop sends SIGTERM and returns the exit code.
func (r *relay) stop() int {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	return r.wait(90 * time.Second)
}

// signal sends a signal, unless walpost has ended.
func (r *relay) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Fatal(err)
	}
}

// lines counts the lines of the log that have all of the words.
func (r *relay) lines(words ...string) (n int) {
	for line := range strings.Lines(r.log.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			n++
		}
	}
	return n
}

// kill is kill -9.
func (r *relay) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
}

// wait returns the exit code.
func (r *relay) wait(limit time.Duration) int {
	r.t.Helper()
	limit = max(limit, patience)
	select {
	case <-r.done:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		r.t.Fatalf("walpost did not end in %s", limit)
		return 0
	}
}

// patience is the least time that a test waits for anything: no test is about how fast the machine is.
const patience = 3 * time.Minute

// eventually waits for an event, and fails the test when it does not come. A check that takes long, because it runs a command, is made less often.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	limit = max(limit, patience)
	for give := time.Now().Add(limit); ; {
		from := time.Now()
		if ok() {
			return
		}
		time.Sleep(min(max(20*time.Millisecond, time.Since(from)), time.Second))
		if time.Now().After(give) {
			t.Fatalf("not in %s: %s", limit, what)
		}
	}
}

// A watch is an independent consumer of a setting's topics.
type watch struct {
	ledger *ledger.Ledger
	mu     sync.Mutex
	wanted map[string]bool // keys that expect waits for
	stop   func()
}

// follow reads the topics from their start until the end of the test, or stop.
func (s *setting) follow() *watch {
	w := &watch{ledger: ledger.New()}
	w.stop = s.consume(s.topics, func(r *kgo.Record) {
		w.ledger.Observe(shop.Entry(r))
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.wanted, string(r.Key))
	})
	return w
}

// consume calls observe with each record of the topics from their start on, one by one, until the end of the test, or stop.
func (s *setting) consume(topics []string, observe func(*kgo.Record)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := shop.Follow(ctx, s.brokers, topics, observe); err != nil {
			s.t.Errorf("consumer: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// keepRows has the table kept.outbox keep every row that is ever in the outbox, because cleanup and workers remove rows. settle reads it.
func (s *setting) keepRows(pg *testenv.PG) {
	s.t.Helper()
	pg.Exec(s.t, s.dsn, "CREATE SCHEMA kept", "CREATE TABLE kept.outbox (id uuid, aggregate_id text, payload jsonb)",
		"CREATE FUNCTION kept.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO kept.outbox VALUES (NEW.id, NEW.aggregate_id, NEW.payload); RETURN NULL; END'",
		"CREATE TRIGGER keep AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION kept.keep()")
	s.kept = true
}

// settle waits until everything in the table has arrived and nothing more comes for a moment, and returns what the ledger says. It gives
// up when nothing has come for the limit: a slow machine may have much to deliver.
func (s *setting) settle(w *watch, limit time.Duration) ledger.Report {
	s.t.Helper()
	dsn := s.dsn
	if s.kept {
		dsn += "&search_path=kept"
	}
	if err := shop.Truth(s.t.Context(), dsn, w.ledger); err != nil {
		s.t.Fatalf("read the outbox: %v", err)
	}
	limit = max(limit, patience)
	for give, before := time.Now().Add(limit), -1; time.Now().Before(give); {
		missing := w.ledger.Missing()
		if missing == 0 {
			break
		}
		if missing != before {
			give, before = time.Now().Add(limit), missing
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(time.Second) // for what comes too much: longer than a fetch waits
	rep := w.ledger.Check()
	s.t.Logf("ledger: %s", &rep)
	return rep
}

// command runs walpost to its end.
func (s *setting) command(args ...string) (code int, out string) {
	s.t.Helper()
	cmd := s.caging(exec.Command(program, append(args, "--config", s.config())...))
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// numbers sets each number whose variable is in the environment.
func numbers(t *testing.T, all map[string]*int) {
	t.Helper()
	for name, to := range all {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			*to = n
		}
	}
}
