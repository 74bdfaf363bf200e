package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/doctest"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/testenv"
)

func pages(t *testing.T) []*doctest.Page {
	t.Helper()
	all, err := doctest.Pages("../..")
	if err != nil || len(all) < 60 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	return all
}

// Each piece of code in a page has a language, and each language has a test.
func TestEveryBlockOfThePagesIsChecked(t *testing.T) {
	byTest := map[string]string{
		"go":   "TestTheGoOfThePagesCompiles",
		"json": "TestTheJSONOfThePagesIsWhatAProgramPrints",
		"sh":   "TestTheCommandsInTheDocumentsExist",
		"sql":  "TestTheSQLOfThePagesRuns",
		"text": "TestTheOutputInThePagesHasATest",
		"yaml": "TestTheConfigurationsOfThePagesAreValid",
	}
	for _, p := range pages(t) {
		for _, wrong := range p.Wrong {
			t.Error(wrong)
		}
		for _, b := range p.Blocks {
			if byTest[b.Language] == "" {
				t.Errorf("%s:%d: no test checks the language %q", p.Name, b.Line, b.Language)
			}
		}
	}
}

// blocks calls f with each piece of code in a language. There are at least least of them.
func blocks(t *testing.T, language string, least int, f func(p *doctest.Page, b doctest.Block)) {
	t.Helper()
	n := 0
	for _, p := range pages(t) {
		for _, b := range p.Blocks {
			if b.Language == language {
				n++
				f(p, b)
			}
		}
	}
	if n < least {
		t.Errorf("only %d pieces of %s", n, language)
	}
}

// Go stands in a file that the compiler reads. Only the indentation may differ.
func TestTheGoOfThePagesCompiles(t *testing.T) {
	indent := regexp.MustCompile(`(?m)^[ \t]+`)
	flat := func(code string) string { return indent.ReplaceAllString(code, "") }
	var compiled strings.Builder
	for _, pattern := range []string{"example_test.go", "outbox/example_test.go", "outbox/outboxtest/*_test.go", "outbox/s3store/example_test.go", "inbox/example_test.go", "inbox/inboxtest/example_test.go", "walposttest/example_test.go", "inbox/consumer/example_test.go", "otel/example_test.go", "examples/*/*.go"} {
		for _, name := range files(t, "../../"+pattern) {
			compiled.WriteString(flat(read(t, name)))
		}
	}
	blocks(t, "go", 4, func(p *doctest.Page, b doctest.Block) {
		if !strings.Contains(compiled.String(), flat(b.Text)) {
			t.Errorf("%s:%d: no example has this code:\n%s", p.Name, b.Line, b.Text)
		}
	})
}

// JSON is what a command prints: its keys are those of the command.
func TestTheJSONOfThePagesIsWhatAProgramPrints(t *testing.T) {
	printed := map[string]any{"docs/check.md": &show.CheckReport{}}
	blocks(t, "json", 1, func(p *doctest.Page, b doctest.Block) {
		into := printed[p.Name]
		if into == nil {
			t.Errorf("%s:%d: the test does not know what prints this", p.Name, b.Line)
			return
		}
		dec := json.NewDecoder(strings.NewReader(b.Text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into); err != nil {
			t.Errorf("%s:%d: %v", p.Name, b.Line, err)
		}
	})
}

// otherYAML are files of other programs, by page and first line, with the test that checks them, or with the reason why none does.
var otherYAML = map[string]string{
	"docs/cloud-postgres.md: apiVersion: postgresql.cnpg.io/v1": "of CloudNativePG, whose schema is not here",
	"docs/cloud-postgres.md: postgresql:":                       "of Patroni, which has no schema",
	"docs/kubernetes.md":                                        "deploy/helm/kustomize_test.go",
}

var secretFile = regexp.MustCompile(`(/run/secrets|/etc/walpost)/[\w.-]+`)

// A part of walpost.yaml is valid together with what every configuration needs. The files that it names exist.
func TestTheConfigurationsOfThePagesAreValid(t *testing.T) {
	j := newJudge(t)
	used := map[string]bool{}
	secret := []byte(testenv.NewAuthority(t).File)
	blocks(t, "yaml", 7, func(p *doctest.Page, b doctest.Block) {
		for _, name := range []string{p.Name, p.Name + ": " + b.First()} {
			if by := otherYAML[name]; by != "" {
				used[name] = true
				checkedBy(t, p, by)
				if err := yaml.Unmarshal([]byte(b.Text), &doc{}); err != nil {
					t.Errorf("%s:%d: %v", p.Name, b.Line, err)
				}
				return
			}
		}
		var part doc
		if err := yaml.Unmarshal([]byte(b.Text), &part); err != nil {
			t.Errorf("%s:%d: %v", p.Name, b.Line, err)
			return
		}
		whole := doc{"source": doc{"dsn": "postgres://walpost@db.internal/shop"}, "kafka": doc{"brokers": []any{"kafka:9092"}}}
		merge(whole, part)
		source := whole["source"].(doc)
		if source["table"] == nil && source["tables"] == nil && source["messages"] == nil {
			source["table"] = "public.outbox"
		}
		text, err := yaml.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.bySchema(text); err != nil {
			t.Errorf("%s:%d: the schema refuses it: %v, in\n%s", p.Name, b.Line, err, text)
		}
		for _, problem := range j.byValidate(t, secretFile.ReplaceAll(text, secret), testEnv) {
			t.Errorf("%s:%d: %v, in\n%s", p.Name, b.Line, problem, text)
		}
	})
	for name := range otherYAML {
		if !used[name] {
			t.Errorf("there is no YAML %s", name)
		}
	}
}

func merge(into, from doc) {
	for key, value := range from {
		a, isA := into[key].(doc)
		if b, isB := value.(doc); isA && isB {
			merge(a, b)
			continue
		}
		into[key] = value
	}
}

// checkedBy fails unless by, which says who checks a piece of p, is a sentence, or a file that names the page.
func checkedBy(t *testing.T, p *doctest.Page, by string) {
	t.Helper()
	if strings.HasSuffix(by, "_test.go") && !strings.Contains(read(t, "../../"+by), path.Base(p.Name)) {
		t.Errorf("%s does not read %s", by, p.Name)
	}
}

// otherPrograms are what no test of a page runs or parses, with the reason.
var otherPrograms = map[string]string{
	"chronyc":                   "a program of the machine",
	"cosign":                    "needs a signed release",
	"curl":                      "needs a running relay, or Kafka Connect",
	"cd":                        "the shell's own",
	"date":                      "a program of the machine",
	"docker":                    "deploy/helm/compose_test.go reads docs/install.md; there is no daemon",
	"dpkg":                      "deploy/release/debian_test.go installs the package",
	"grep":                      "a program of the machine",
	"head":                      "a program of the machine",
	"helm":                      "deploy/helm/kustomize_test.go renders the values; there is no cluster",
	"createdb":                  "Postgres' own",
	"install":                   "deploy/release/debian_test.go lists the files and modes of the package",
	"kafka-configs.sh":          "Kafka's own; internal/testenv has no shell scripts of Kafka",
	"kafka-consumer-groups.sh":  "Kafka's own; inbox/consumer/exactly_test.go resets the offsets by a time",
	"kafka-console-consumer.sh": "Kafka's own; readme_test.go parses its flags in the quick start",
	"kubectl":                   "deploy/helm/kustomize_test.go checks what it is given; there is no cluster",
	"psql":                      "Postgres' own; examples/examples_test.go runs the files",
	"sha256sum":                 "needs a release",
	"journalctl":                "the relay logs to standard error, which systemd keeps",
	"systemctl":                 "deploy/systemd_test.go checks the unit",
	"useradd":                   "deploy/release/debian_test.go runs the package's own script",
}

var (
	paths    = regexp.MustCompile(`(?:^|\s)(\./[\w./-]+|\.ci/\w+|deploy/[\w./-]+|examples/[\w./-]+|scripts/[\w./-]+|docs/[\w./-]+)`)
	inner    = regexp.MustCompile(`(?:-- |exec (?:-it? |-T )?walpost )walpost `)
	ofRelay  = regexp.MustCompile(`127\.0\.0\.1:9640(/[a-z/]+)`)
	variable = regexp.MustCompile(`^(?:[A-Z_]+=\S*|sudo(?: -u \w+)?) `)
)

// Each command of walpost that a page gives exists, with its flags and its number of arguments. Each path of the repository
// in a command exists. Every other program is in the list.
func TestTheCommandsInTheDocumentsExist(t *testing.T) {
	ours, used, served := 0, map[string]bool{}, read(t, "../../internal/command/statuspage/http.go")
	blocks(t, "sh", 60, func(p *doctest.Page, b doctest.Block) {
		dir := "../.."
		for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
			line, _, _ = strings.Cut(" "+strings.TrimSpace(line), " #")
			for _, part := range regexp.MustCompile(` \| | && |; `).Split(strings.TrimSpace(line), -1) {
				command, _, _ := strings.Cut(part, " > ")
				command = variable.ReplaceAllString(strings.TrimSpace(command), "")
				if at := inner.FindStringIndex(command); at != nil {
					used[strings.Fields(command)[0]] = true
					command = command[at[1]-len("walpost "):]
				}
				words := strings.Fields(command)
				if len(words) == 0 {
					continue
				}
				if m := ofRelay.FindStringSubmatch(command); m != nil && !strings.Contains(served, `"GET `+m[1]+`"`) {
					t.Errorf("%s:%d: a relay does not answer %s", p.Name, b.Line, m[1])
				}
				for _, m := range paths.FindAllStringSubmatch(command, -1) {
					if _, err := os.Stat(filepath.Join(dir, strings.TrimSuffix(m[1], "..."))); err != nil && !strings.Contains(command, "-bench") {
						t.Errorf("%s:%d: %s: %v", p.Name, b.Line, command, err)
					}
				}
				switch words[0] {
				case "walpost":
					ours++
					if err := parses(words[1:], true); err != nil {
						t.Errorf("%s:%d: %s: %v", p.Name, b.Line, command, err)
					}
				case "go", "bash": // of this repository: its paths exist
				default:
					if otherPrograms[words[0]] == "" {
						t.Errorf("%s:%d: no test knows the program of %s", p.Name, b.Line, command)
					}
					used[words[0]] = true
				}
			}
		}
	})
	for name := range otherPrograms {
		if !used[name] {
			t.Errorf("no page uses %s", name)
		}
	}
	if ours < 70 {
		t.Errorf("only %d commands of walpost", ours)
	}
}

// parses returns why walpost refuses the words of a command.
func parses(words []string, arguments bool) error {
	cmd, args, err := rootCommand().Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if !arguments {
		return nil
	}
	if !cmd.Runnable() {
		return fmt.Errorf("needs one more word, such as %s", strings.Join(names(cmd), ", "))
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func names(cmd *cobra.Command) (all []string) {
	for _, sub := range cmd.Commands() {
		all = append(all, sub.Name())
	}
	return all
}

// The prose names commands too. A command in the prose may lack its arguments.
func TestTheCommandsInTheProseExist(t *testing.T) {
	n := 0
	for _, p := range pages(t) {
		if p.Name == "CHANGELOG.md" { // also of former versions
			continue
		}
		for _, span := range p.Spans {
			words := strings.Fields(strings.NewReplacer("…", "x", "[", "", "]", "").Replace(span))
			if len(words) < 2 || words[0] != "walpost" || !regexp.MustCompile(`^[a-z]+$`).MatchString(words[1]) {
				continue
			}
			n++
			err := parses(words[1:], false)
			if lacks := (*pflag.ValueRequiredError)(nil); err != nil && !errors.As(err, &lacks) && !errors.Is(err, pflag.ErrHelp) {
				t.Errorf("%s: %s: %v", p.Name, span, err)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d commands", n)
	}
}

// The pages name tests. Each of them exists.
func TestTheTestsThatThePagesNameExist(t *testing.T) {
	functions := map[string]bool{}
	err := filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, name), -1) {
				functions[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, p := range pages(t) {
		for _, span := range p.Spans {
			if regexp.MustCompile(`^Test[A-Z]\w+$`).MatchString(span) {
				named++
				if !functions[span] {
					t.Errorf("%s: there is no test %s", p.Name, span)
				}
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d tests", named)
	}
}

// texts are pictures and what programs print, by page and beginning, with the test that compares them, or with the reason why
// none does.
var texts = map[string]string{
	"docs/architecture.md: walsender":   "a picture",
	"docs/getting-started.md: state   ": "cmd/walpost/statuscmd_test.go",
	"docs/repair.md: $ walpost dead":    "internal/e2e/deadcmd_test.go",
	"docs/repair.md: {\"level\"":        "relay/internal/badevent/policy_test.go",
	"docs/schema-evolution.md: subject": "internal/registry/registry_test.go",
	"docs/troubleshooting.md: state   ": "cmd/walpost/statuscmd_test.go",
	"docs/verify.md: $ walpost verify":  "internal/e2e/verify_test.go",
}

func TestTheOutputInThePagesHasATest(t *testing.T) {
	used := map[string]bool{}
	blocks(t, "text", 8, func(p *doctest.Page, b doctest.Block) {
		if p.Name == "docs/command-line.md" { // which TestTheSchemaAndTheReferenceAreOfThisVersion writes
			return
		}
		for name, by := range texts {
			if strings.HasPrefix(p.Name+": "+b.Text, name) {
				used[name] = true
				checkedBy(t, p, by)
				return
			}
		}
		t.Errorf("%s:%d: no test compares this text:\n%s", p.Name, b.Line, b.Text)
	})
	for name := range texts {
		if !used[name] {
			t.Errorf("there is no text %s", name)
		}
	}
}

// sqlNeeds is what the SQL of a page needs before it runs.
var sqlNeeds = map[string][]string{
	"docs/write-events.md": {"CREATE TABLE orders (id text PRIMARY KEY, total numeric)"},
	"docs/cleanup.md": {
		"CREATE SCHEMA sales", "CREATE TABLE sales.outbox (LIKE public.outbox) PARTITION BY RANGE (created_at)",
		"CREATE TABLE sales.outbox_rest PARTITION OF sales.outbox DEFAULT",
	},
	"docs/debezium-differences.md": {"CREATE PUBLICATION dbz_publication FOR TABLE public.outbox"},
	"docs/polling.md":              {"ALTER TABLE public.outbox ADD finished_at timestamptz"},
	"docs/several-relays.md":       {"DROP TABLE public.outbox"},
}

// The SQL of the pages runs, each page in a database of its own, with the outbox table of walpost setup and the roles of walpost
// and of a service. deploy/runbooks_test.go runs the SQL of the runbooks.
func TestTheSQLOfThePagesRuns(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t, "18", testenv.Private())
	server.Exec(t, server.DSN("postgres"), "CREATE ROLE walpost LOGIN REPLICATION", "CREATE ROLE shop LOGIN")
	comment := regexp.MustCompile(`(?m)--.*$`)
	databases := map[string]*pgx.Conn{}
	blocks(t, "sql", 30, func(p *doctest.Page, b doctest.Block) {
		if path.Base(path.Dir(p.Name)) == "runbooks" {
			return
		}
		conn := databases[p.Name]
		if conn == nil {
			var err error
			dsn := server.Database(t)
			table := outboxtable.Table{Name: pgname.Table{Schema: "public", Name: "outbox"}}
			for _, step := range table.Steps() {
				server.Exec(t, dsn, step.SQL)
			}
			server.Exec(t, dsn, sqlNeeds[p.Name]...)
			if conn, err = pgx.Connect(t.Context(), dsn); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(t.Context()) })
			databases[p.Name] = conn
		}
		for _, statement := range regexp.MustCompile(`;\s*(?:\n|$)`).Split(strings.ReplaceAll(comment.ReplaceAllString(b.Text, ""), "<size>", "64GB"), -1) {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Errorf("%s:%d: %v\n%s", p.Name, b.Line, err, statement)
			}
		}
	})
	for name := range sqlNeeds {
		if databases[name] == nil {
			t.Errorf("%s has no SQL", name)
		}
	}
}

// Each page has a place in the navigation, from which docs/README.md and the site are made. The runbooks have an index of their own,
// and the site finds them by itself.
func TestEachPageIsInTheNavigation(t *testing.T) {
	listed := map[string]bool{"README.md": true}
	for _, sections := range readNavigation(t) {
		for _, pages := range sections {
			for _, page := range pages {
				for name := range page {
					listed[name] = true
				}
			}
		}
	}
	for _, name := range files(t, "../../docs/*.md") {
		if page := filepath.Base(name); !listed[page] {
			t.Errorf("docs/nav.yaml does not name %s", page)
		}
	}
}

const externalLinks = "testdata/external-links.txt"

// Each link goes to a file and to a heading that exist. The links to other sites are in a list, which a person can go through
// before a release: no test asks other people's servers.
func TestTheLinksOfThePagesExist(t *testing.T) {
	all := map[string]*doctest.Page{}
	for _, p := range pages(t) {
		all[p.Name] = p
	}
	external := map[string]bool{}
	inside := 0
	for _, p := range all {
		for _, link := range p.Links {
			if strings.HasPrefix(link, "https://") || strings.HasPrefix(link, "http://") {
				external[link] = true
				continue
			}
			inside++
			file, anchor, hasAnchor := strings.Cut(link, "#")
			target := p.Name
			if file != "" {
				target = path.Join(path.Dir(p.Name), file)
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			} else if path.Ext(target) == ".svg" {
				var picture struct {
					XMLName xml.Name `xml:"svg"`
					Title   string   `xml:"title"` // for those who cannot see the picture
				}
				if err := xml.Unmarshal([]byte(read(t, "../../"+target)), &picture); err != nil || picture.Title == "" {
					t.Errorf("%s: title %q, %v", target, picture.Title, err)
				}
			}
			if hasAnchor && (all[target] == nil || !all[target].Anchors[anchor]) {
				t.Errorf("%s: %s has no heading #%s", p.Name, target, anchor)
			}
		}
	}
	if inside < 150 {
		t.Errorf("only %d links", inside)
	}
	want := strings.Join(slices.Sorted(maps.Keys(external)), "\n") + "\n"
	if *update {
		write(t, externalLinks, want)
	} else if read(t, externalLinks) != want {
		t.Errorf("%s is not up to date: go test ./cmd/walpost -run TheLinksOfThePages -update; the pages have\n%s", externalLinks, want)
	}
}
