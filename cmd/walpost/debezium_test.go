package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	goflag "flag" // the package has a flag of its own
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/convert"
	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

var updateDebezium = goflag.Bool("update-debezium", false, "write what convert gives to testdata/debezium, for reading it")

// A conversionCase is one file of testdata/debezium: args, the input, what must not be in the
// output, and the output.
type conversionCase struct {
	name    string
	archive *txtar.Archive
	args    []string
	input   []byte // the first file behind args
	secrets []string
	want    map[string]string
}

func conversionCases(t testing.TB) []conversionCase {
	var cases []conversionCase
	names, err := filepath.Glob("testdata/debezium/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name, err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
		a, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		c := conversionCase{name: name, archive: a, want: map[string]string{}}
		for _, f := range a.Files {
			switch f.Name {
			case "args":
				c.args = strings.Fields(string(f.Data))
			case "secrets":
				c.secrets = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
			case "stdout", "stderr", "exit":
				c.want[f.Name] = string(f.Data)
			default:
				if c.input == nil {
					c.input = f.Data
				}
			}
		}
		cases = append(cases, c)
	}
	if len(cases) < 40 {
		t.Fatalf("%d cases in testdata/debezium", len(cases))
	}
	return cases
}

// standIn makes PEM files that stand for every file that a configuration names: one with a
// certificate and its key, one with the key.
func standIn(t *testing.T) (both, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	both, key = filepath.Join(t.TempDir(), "both.pem"), filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(both, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	return both, key
}

var (
	fileKey = regexp.MustCompile(`((?:_file: |sslrootcert=|sslcert=)"?)[^"\s,}&]+`)
	sslKey  = regexp.MustCompile(`(sslkey=)[^"\s&]+`)
)

// accepted loads a configuration as run does, with a file and an environment for everything that it
// names.
func accepted(t *testing.T, doc, both, key string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(name, []byte(sslKey.ReplaceAllString(fileKey.ReplaceAllString(doc, "${1}"+both), "${1}"+key)), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) {
		if strings.HasSuffix(name, "BROKERS") {
			return "kafka-1:9092,kafka-2:9092", true
		}
		return "5432", true // a host, a user, a password, and a port too
	}
	cfg, err := loadConfig(name, env, nil, nil, (*walpost.Config).Validate)
	if strings.Contains(doc, "pay$$load") && cfg.Router.Payload+cfg.Records.UnavailableValue != "pay$load${x}$$" {
		t.Errorf("dollar signs: %q, %q", cfg.Router.Payload, cfg.Records.UnavailableValue)
	}
	if err != nil {
		t.Fatalf("walpost does not accept it:\n%v\n%s", err, doc)
	}
	if cfg.Source.Create && !strings.Contains(doc, "has never run") {
		t.Errorf("the configuration would make a slot that Debezium's was")
	}
}

func TestDebeziumConfigurationsAreConverted(t *testing.T) {
	both, key := standIn(t)
	for _, c := range conversionCases(t) {
		t.Run(strings.TrimSuffix(filepath.Base(c.name), ".txtar"), func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range c.archive.Files {
				if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			var stdout, stderr bytes.Buffer
			code := convertWith(c.args, c.input, &stdout, &stderr)
			got := map[string]string{"stdout": stdout.String(), "stderr": stderr.String(), "exit": fmt.Sprintf("%d\n", code)}
			if code == exitOK {
				accepted(t, got["stdout"], both, key)
			}
			if code == exitUsage && got["stdout"] != "" {
				t.Errorf("exit 2 with a configuration")
			}
			if strings.Contains(got["stderr"], "unsupported  ") != (code == exitFailed) {
				t.Errorf("exit %d does not fit the report", code)
			}
			for _, s := range c.secrets {
				if strings.Contains(got["stdout"]+got["stderr"], s) {
					t.Errorf("the secret %q is in the output", s)
				}
			}
			if *updateDebezium {
				c.update(t, got)
				return
			}
			for _, part := range []string{"exit", "stderr", "stdout"} {
				if got[part] != c.want[part] {
					t.Errorf("%s differs: got\n%s\nwant\n%s", part, got[part], c.want[part])
				}
			}
		})
	}
}

func convertWith(args []string, stdin []byte, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(append([]string{"debezium", "convert"}, args...))
	root.SetIn(bytes.NewReader(stdin))
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err != nil {
		printError(stderr, err)
	}
	return exitCode(err)
}

// update writes what was got into the case's file.
func (c *conversionCase) update(t *testing.T, got map[string]string) {
	kept := c.archive.Files[:0:0]
	for _, f := range c.archive.Files {
		if _, output := got[f.Name]; !output {
			kept = append(kept, f)
		}
	}
	for _, part := range []string{"stdout", "stderr", "exit"} {
		kept = append(kept, txtar.File{Name: part, Data: []byte(got[part])})
	}
	c.archive.Files = kept
	if err := os.WriteFile(c.name, txtar.Format(c.archive), 0o600); err != nil {
		t.Fatal(err)
	}
}

// cutStep is how far apart the places are at which an input is cut. The race detector has nothing to find in a conversion, and makes it
// twenty times slower.
var cutStep = short.Raced(1, 13)

// A secret stays out of the output wherever the input breaks off, too: an error must not quote what
// it cannot read.
func TestNoSecretIsWrittenWhereverTheInputEnds(t *testing.T) {
	for _, c := range conversionCases(t) {
		var worker []byte
		for _, f := range c.archive.Files {
			if f.Name == "worker.properties" {
				worker = f.Data
			}
		}
		whole := string(c.input) + string(worker)
		for _, s := range c.secrets {
			if !strings.Contains(strings.ReplaceAll(whole, `\\`, `\`), s) {
				t.Fatalf("%s: the secret %q is not in the input, so nothing is tested", c.name, s)
			}
		}
		for end := 0; end < len(c.input); end += short.Pick(cutStep, 101) {
			for _, format := range []input.Format{input.Auto, input.Connect, input.Server, input.Strimzi} {
				out := everything(t, c.input[:end], convert.Options{Format: format, Worker: worker, Tables: []string{"public.outbox"}})
				for _, s := range c.secrets {
					if strings.Contains(out, s) {
						t.Fatalf("%s: cut at %d and read as %s, the secret %q is in\n%s", c.name, end, format, s, out)
					}
				}
			}
		}
	}
}

// everything is all that a conversion says. Each objection that walpost has to the configuration belongs to a field, so the rest can be read.
func everything(t *testing.T, text []byte, o convert.Options) string {
	r, err := convert.Convert(text, o)
	if err != nil {
		return err.Error()
	}
	refuse(r)
	for _, f := range r.Report {
		if f.Option == "" {
			t.Fatalf("not even YAML: %s\n%s", f.Text, r.YAML)
		}
	}
	var b strings.Builder
	printReport(&b, r)
	return b.String() + string(r.YAML)
}

// cloudEventsConnector has a converter that walpost does not have. Without it, records would be written as
// text.
const cloudEventsConnector = `{"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput",
 "database.hostname": "db", "database.user": "u", "database.dbname": "shop", "topic.prefix": "shop", "table.include.list": "public.outbox",
 "key.converter": "org.apache.kafka.connect.storage.StringConverter", "value.converter": "io.debezium.converters.CloudEventsConverter",
 "producer.override.bootstrap.servers": "kafka:9092",
 "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"}`

func TestEveryCommandRefusesAConversionThatIsNotComplete(t *testing.T) {
	name := filepath.Join(t.TempDir(), "walpost.yaml")
	var doc, report bytes.Buffer
	if code := convertWith([]string{"-"}, []byte(cloudEventsConnector), &doc, &report); code != exitFailed {
		t.Fatalf("exit %d\n%s", code, &report)
	}
	if err := os.WriteFile(name, doc.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	needs := map[string][]string{"explain": {"--last", "1"}, "skip": {"1"}, "replay": {"--all"}, "show": {"1"}, "retry": {"1"}, "drop": {"1", "--reason", "a test"}}
	commands := 0
	for _, cmd := range leafCommands(rootCommand()) {
		if cmd.Flags().Lookup("config") == nil {
			continue
		}
		commands++
		path := strings.Fields(cmd.CommandPath())[1:]
		args := append(append(path, "--config", name), needs[path[len(path)-1]]...)
		var stdout, stderr bytes.Buffer
		root := rootCommand()
		root.SetArgs(args)
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		ended, end := context.WithCancel(t.Context()) // a command that accepts the file ends at once
		end()
		err := root.ExecuteContext(ended)
		if exitCode(err) != exitUsage || !strings.Contains(fmt.Sprint(err), "walpost.yaml:6:5: unsupported[0]: value.converter: io.debezium.converters.CloudEventsConverter") {
			t.Errorf("%s: exit %d: %v", strings.Join(args, " "), exitCode(err), err)
		}
	}
	if commands < 6 {
		t.Errorf("only %d commands read walpost.yaml", commands)
	}
	// The user decides: the entry goes, and the file is accepted.
	decided := regexp.MustCompile(`(?s)unsupported:.*?\n\n`).ReplaceAllString(doc.String(), "\n")
	both, key := standIn(t)
	accepted(t, decided, both, key)
}

func leafCommands(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var all []*cobra.Command
	for _, sub := range cmd.Commands() {
		all = append(all, leafCommands(sub)...)
	}
	return all
}

// The tables of a shop: two outboxes, one of them partitioned, a heartbeat table, and another
// program's tables.
var shopTables = []string{
	`CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)`,
	`CREATE TABLE public."Events" (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, at timestamptz) PARTITION BY RANGE (at)`,
	`CREATE TABLE public.events_1 PARTITION OF public."Events" FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')`,
	`CREATE TABLE public.heartbeat (id int PRIMARY KEY, at timestamptz)`,
	`CREATE SCHEMA sales`, `CREATE TABLE sales.orders (id int PRIMARY KEY)`,
}

func TestConvertAsksTheServerWhichTablesTheConnectorCaptures(t *testing.T) {
	dsn := testenv.Postgres(t, "").Database(t)
	pg := testenv.Postgres(t, "")
	pg.Exec(t, dsn, append(shopTables, `CREATE PUBLICATION only_outbox FOR TABLE public.outbox, public.heartbeat`)...)
	for _, c := range []struct{ options, want, report string }{
		{`"table.include.list": "public.out.*"`, "table: public.outbox\n", ""},
		{`"table.include.list": " PUBLIC\\.OUTBOX ,public.heartbeat, public.gone "`, "table: public.outbox\n", "public.heartbeat has no column aggregatetype"},
		{`"table.include.list": "public.events_[0-9]+"`, `table: "public.\"Events\""` + "\n", ""},
		{`"publication.name": "only_outbox"`, "table: public.outbox\n", ""},
		{`"publication.name": "only_outbox", "transforms.outbox.route.by.field": "kind"`, "", "an outbox table has the columns kind, payload, aggregateid, id"},
		{`"schema.include.list": "public", "table.exclude.list": "public.events.*"`, "table: public.outbox\n", ""},
		{`"schema.exclude.list": "sales"`, `tables: ["public.\"Events\"", public.outbox]` + "\n", ""},
		{`"table.include.list": "sales.*"`, "", "sales.orders has no column aggregatetype"},
		{`"table.include.list": "public.(?!x).*"`, "", `"(?!" is not supported`},
	} {
		input := strings.Replace(cloudEventsConnector, `"table.include.list": "public.outbox"`, c.options, 1)
		input = strings.Replace(input, "io.debezium.converters.CloudEventsConverter", "org.apache.kafka.connect.storage.StringConverter", 1)
		var stdout, stderr bytes.Buffer
		code := convertWith([]string{"-", "--dsn", dsn}, []byte(input), &stdout, &stderr)
		if (code == exitOK) != (c.want != "") || !strings.Contains(stdout.String(), c.want) || !strings.Contains(stderr.String(), c.report) {
			t.Errorf("%s: exit %d, want %q and %q\n%s%s", c.options, code, c.want, c.report, &stdout, &stderr)
		}
	}
}

// Debezium's default is a publication for all tables. If the query read it once for each of 3,000
// tables, it would take longer than the limit for a statement.
func TestConvertReadsEachPublicationOnce(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, append(shopTables, "CREATE PUBLICATION dbz_publication FOR ALL TABLES")...)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, _ := conn.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+convert.CatalogQuery)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`Function Scan on pg_get_publication_tables.*loops=1\)`)
	if text := strings.Join(plan, "\n"); len(read.FindAllString(text, -1)) != 1 || strings.Count(text, "pg_get_publication_tables") != 1 {
		t.Error(text)
	}
}

// The shapes of configurations that are published in documentation, blogs and repositories. Each
// one converts, or its refusal is one of few that name the next step.
func TestPublishedConfigurationsConvertOrNameTheNextStep(t *testing.T) {
	steps := regexp.MustCompile(`set plugin\.name=pgoutput with a new slot|curl http://connect:8083/connectors/<name>/config|--worker worker\.properties|` +
		`convert again with --dsn postgres://\S+, or name the outbox with --table schema\.table|write each one as an option of application\.properties|` +
		`keep Debezium Server for this sink|keep a connector with its own slot|[Ll]eave the option out|set it to \w+ here and in the consumers|walpost supports StringConverter, JsonConverter|` +
		`oc process --local|is required$`)
	shapes, converted := 0, 0
	for _, c := range conversionCases(t) {
		name := strings.TrimSuffix(filepath.Base(c.name), ".txtar")
		if !regexp.MustCompile(`^(public|cloud|openshift|kubectl)_?`).MatchString(name) {
			continue
		}
		shapes++
		if c.want["exit"] == "0\n" {
			converted++
			continue
		}
		for line := range strings.Lines(c.want["stderr"]) {
			line = strings.TrimRight(line, "\n")
			if (strings.HasPrefix(line, "unsupported  ") || strings.HasPrefix(line, "walpost: ")) && !steps.MatchString(line) {
				t.Errorf("%s: no next step in %q", name, line)
			}
		}
	}
	if shapes < 20 || converted < 8 {
		t.Errorf("%d shapes, of which %d convert", shapes, converted)
	}
}
