package main

import (
	"bytes"
	"context"
	goflag "flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// A codeBlock is a piece of code of the README: SQL, YAML, or a command for a shell.
type codeBlock struct{ language, text string }

// quickStart returns the code of the README's quick start, in its order.
func quickStart(t *testing.T) (blocks []codeBlock) {
	t.Helper()
	text := read(t, "../../README.md")
	_, section, _ := strings.Cut(text, "\n## Quick start")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?ms)^```(sh|sql|yaml)\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		if m[1] != "sh" {
			blocks = append(blocks, codeBlock{m[1], m[2]})
			continue
		}
		for line := range strings.Lines(m[2]) {
			if !strings.HasPrefix(line, "#") {
				blocks = append(blocks, codeBlock{"sh", strings.TrimSpace(line)})
			}
		}
	}
	return blocks
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The quick start of the README, word for word, on a fresh Postgres and a fresh Kafka, which stand for those of
// docker-compose.yml at other ports. It ends with a consumed record, and nothing warns on the way.
func TestTheQuickStartOfTheREADMEEndsWithARecord(t *testing.T) {
	options := []testenv.PGOption{testenv.Private()}
	for _, set := range regexp.MustCompile(`-c, (\w+)=(\w+)`).FindAllStringSubmatch(read(t, "../../docker-compose.yml"), -1) {
		options = append(options, testenv.Param(set[1], set[2]))
	}
	if len(options) != 3 {
		t.Fatalf("docker-compose.yml sets %d parameters", len(options)-1)
	}
	pg := testenv.Postgres(t, "17", options...)
	pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop")
	kafka := testenv.KafkaPrivate(t, 1, map[string]string{"auto.create.topics.enable": "true"})
	dsn, err := pgAddress(pg.DSN("shop"))
	if err != nil {
		t.Fatal(err)
	}
	q := &reader{T: t, dir: t.TempDir(), bin: t.TempDir(), addresses: strings.NewReplacer("127.0.0.1:5432", dsn, "127.0.0.1:9092", kafka.Brokers()[0])}

	var record *kgo.Record
	for _, block := range quickStart(t) {
		switch code := q.addresses.Replace(block.text); {
		case block.language == "sql":
			pg.Exec(t, pg.DSN("shop"), code)
		case strings.HasPrefix(code, "walpost run "):
			q.start(code)
		case strings.HasPrefix(code, "kafka-console-consumer.sh "):
			record = q.consume(code)
			id := pg.Value(t, pg.DSN("shop"), "SELECT id::text FROM outbox")
			if string(record.Key) != "4711" || string(record.Value) != `{"total": 12.50}` || header(record, "id") != id || header(record, "eventType") != "OrderPlaced" {
				t.Errorf("record %s %s %v, want id %s", record.Key, record.Value, record.Headers, id)
			}
		default:
			out := q.command(code)
			if strings.HasPrefix(code, "walpost setup ") && !strings.HasSuffix(out, "\nEverything is there except slot walpost. If this relay has run before, run walpost check first.\n"+
				"Otherwise walpost run creates the slot, together with its first checkpoint.\n") {
				t.Errorf("setup: %s", out)
			}
			if strings.HasPrefix(code, "walpost check ") {
				if !strings.HasSuffix(out, "\nready to run\n") {
					t.Errorf("check: %s", out)
				}
				out = q.command(code + " --create-topics=false")
				if want := "warn  kafka: topics: rows go to topics such as outbox.event.*, "; !strings.Contains(out, want) || !strings.Contains(out, "does not use auto.create.topics.enable\n      fix: Set kafka.topics.create: true.") {
					t.Errorf("check without creating topics: no %q in\n%s", want, out)
				}
			}
		}
	}
	if record == nil {
		t.Error("the README's quick start is not complete")
	}
	q.stop()
}

// pgAddress is the host and the port of a DSN.
func pgAddress(dsn string) (string, error) {
	_, rest, _ := strings.Cut(dsn, "@")
	address, _, found := strings.Cut(rest, "/")
	if !found {
		return "", io.ErrUnexpectedEOF
	}
	return address, nil
}

// A reader does what the README says.
type reader struct {
	*testing.T
	dir, bin  string
	addresses *strings.Replacer
	running   *exec.Cmd
	log       *testenv.Output
}

func (q *reader) shell(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-ec", "exec "+line)
	cmd.Dir = q.dir
	// The port of the status page may be in use on the machine of the test.
	cmd.Env = append(os.Environ(), "PATH="+q.bin+":"+os.Getenv("PATH"), "GOBIN="+q.bin, "WALPOST_HTTP=127.0.0.1:0")
	if strings.HasPrefix(line, "go ") {
		cmd.Dir = "../.." // where a reader of the README is
	}
	return cmd
}

// command runs a command to its end. It must succeed, and write nothing to standard error. Only verify writes its progress there.
func (q *reader) command(line string) string {
	q.Helper()
	cmd := q.shell(line)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil || bad.Len() > 0 && !strings.HasPrefix(line, "go ") && !strings.HasPrefix(line, "walpost verify ") {
		q.Fatalf("%s: %v\n%s%s", line, err, &out, &bad)
	}
	return out.String()
}

// start runs a command that does not end, until it streams.
func (q *reader) start(line string) {
	q.Helper()
	q.running, q.log = q.shell(line), new(testenv.Output)
	q.running.Stderr = q.log
	if err := q.running.Start(); err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { _ = q.running.Process.Kill() }) // it has ended if the test has not failed
	q.log.Wait(q.T, `"message":"connected"`)
}

// stop ends the command that start began. It must have no reason to warn. A Kafka that has just started may take so long for the first
// record that the relay reports a stall, which is over when the record is consumed.
func (q *reader) stop() {
	q.Helper()
	if err := q.running.Process.Signal(os.Interrupt); err != nil {
		q.Fatal(err)
	}
	if err := q.running.Wait(); err != nil {
		q.Errorf("run: %v", err)
	}
	for line := range strings.Lines(q.log.String()) {
		warns := strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`)
		if warns && !strings.Contains(line, `"message":"delivery stalled"`) {
			q.Errorf("run warns: %s", line)
		}
	}
}

// consume reads what kafka-console-consumer.sh reads, which the jars of the test do not have: the first record.
func (q *reader) consume(line string) *kgo.Record {
	q.Helper()
	flags := goflag.NewFlagSet("kafka-console-consumer.sh", goflag.ContinueOnError)
	server, topic, begin := flags.String("bootstrap-server", "", ""), flags.String("topic", "", ""), flags.Bool("from-beginning", false, "")
	flags.Func("property", "", func(string) error { return nil })
	if err := flags.Parse(strings.Fields(line)[1:]); err != nil || !*begin {
		q.Fatalf("%s: %v", line, err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(*server), kgo.ConsumeTopics(*topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		q.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(q.Context(), time.Minute)
	defer cancel()
	for {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			q.Fatalf("no record: %v\n%s", err, q.log)
		}
		if records := fetches.Records(); len(records) > 0 {
			return records[0]
		}
	}
}

// The hints, fixes and examples of the program name only commands and flags that exist. The documents have a test of their own.
func TestHintsNameCommandsThatExist(t *testing.T) {
	named := regexp.MustCompile("(?:[rR]un |`  |\n  )walpost ([a-z]+(?: (?:convert|validate))?)((?: --[a-z-]+(?:[ =][^-` ]\\S*)?)*)|walpost ([a-z]+)((?: --[a-z-]+)+)|fault\\.Command\\(\"([a-z]+)\"((?:, \"--[a-z-]+)?)")
	root, seen := rootCommand(), map[string]int{}
	for _, pattern := range []string{"../../*.go", "../../replication/*.go", "../../doctor/*.go", "../../internal/*/*.go", "../../cleanup/*.go", "../../relay/*.go", "*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
				name, flags := m[1]+m[3]+m[5], m[2]+m[4]+m[6]
				cmd, rest, err := root.Find(strings.Fields(name))
				if err != nil || len(rest) > 0 || !cmd.HasParent() {
					t.Errorf("%s: there is no command walpost %s", file, name)
					continue
				}
				seen[name]++
				for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(flags, -1) {
					if cmd.Flags().Lookup(f[1]) == nil && f[1] != "help" {
						t.Errorf("%s: walpost %s has no flag %s", file, name, f[0])
					}
				}
			}
		}
	}
	for _, name := range []string{"setup", "run", "check", "recover", "skip", "init", "config validate"} {
		if seen[name] == 0 {
			t.Errorf("no hint and no example names walpost %s (seen: %v)", name, seen)
		}
	}
}
