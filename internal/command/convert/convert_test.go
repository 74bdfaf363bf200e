package convert

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/testenv/short"
)

const connector = `{"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput",
 "database.hostname": "db", "database.user": "u", "database.dbname": "shop", "topic.prefix": "shop", "table.include.list": "public.outbox",
 "key.converter": "org.apache.kafka.connect.storage.StringConverter", "value.converter": "org.apache.kafka.connect.storage.StringConverter",
 "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"`

func convertJSON(t *testing.T, more string) *Result {
	t.Helper()
	r, err := Convert([]byte(connector+more+"}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func finding(r *Result, option string) *Finding {
	for i, f := range r.Report {
		if f.Option == option && !f.Default {
			return &r.Report[i]
		}
	}
	return nil
}

func debeziumOptions(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, line := range strings.Split(string(text), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	if len(all) < 150 {
		t.Fatalf("%d options", len(all))
	}
	return all
}

// Every option that Debezium 3.6.1 has in its source is known here: none is called unknown, or
// misspelt.
func TestEveryOptionOfDebeziumIsKnown(t *testing.T) {
	for _, option := range debeziumOptions(t) {
		if option == "table.exclude.list" { // contradicts the list of the connector here
			continue
		}
		text := connector
		if before, after, ok := strings.Cut(text, fmt.Sprintf("%q:", option)); ok { // it has this one
			_, after, _ = strings.Cut(after, `"`)
			_, after, _ = strings.Cut(after, `"`)
			text = before + fmt.Sprintf("%q: %q", option, "x") + after
		} else {
			text += fmt.Sprintf(", %q: %q", option, "x")
		}
		r, err := Convert([]byte(text+"}"), Options{})
		if err != nil {
			t.Fatalf("%s: %v", option, err)
		}
		f := finding(r, strings.Replace(option, "with.salt.x", "with.salt.(secret)", 1))
		if f == nil {
			t.Errorf("%s: not reported", option)
		} else if strings.Contains(f.Text, "have none of this name") || strings.Contains(f.Text, "has none of this name") || strings.Contains(f.Text, "JDBC driver") {
			t.Errorf("%s: %s", option, f.Text)
		}
	}
}

func TestEveryRuleIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules() {
		if len(r.Options) == 0 || r.Why == "" && r.Bad == "" || r.Fine != nil && (r.Why == "" || r.Bad+r.Differs == "") {
			t.Errorf("%+v", r)
		}
		for _, option := range r.Options {
			if seen[option] {
				t.Errorf("%s has two rules", option)
			}
			seen[option] = true
		}
	}
	if len(seen) < 150 {
		t.Errorf("only %d options have a rule", len(seen))
	}
}

// docs/debezium.md says what becomes of each.
func TestEveryOptionOfDebeziumIsInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/debezium.md")
	if err != nil {
		t.Fatal(err)
	}
	families := []string{"internal.", "openlineage.", "signal.", "notification.", "column.mask.", "column.truncate.", "incremental.snapshot.", "snapshot.", "legacy.snapshot."}
	for _, option := range debeziumOptions(t) {
		name := strings.TrimPrefix(option, "transforms.outbox.")
		known := strings.Contains(string(text), "`"+name+"`")
		for _, family := range families {
			known = known || strings.HasPrefix(name, family) && strings.Contains(string(text), "`"+family+"*`")
		}
		if !known {
			t.Errorf("%s is not in docs/debezium.md", option)
		}
	}
}

// Brokers create topics for Debezium, and walpost waits for a missing topic, unless Connect was told how to create topics.
func TestMissingTopicsAreADifference(t *testing.T) {
	for more, want := range map[string]bool{"": true, `, "topic.creation.default.partitions": "6", "topic.creation.default.replication.factor": "3"`: false} {
		told := slices.ContainsFunc(convertJSON(t, more).Report, func(f Finding) bool {
			return f.Verdict == Differs && strings.Contains(f.Text, "set kafka.topics.create: true")
		})
		if told != want {
			t.Errorf("%s: told %t", more, told)
		}
	}
}

// Whatever is in the input has a line, however odd its name; a name is never a terminal's command.
func TestEveryOptionOfTheInputIsReported(t *testing.T) {
	odd := []string{
		"", "a b", "transforms.", "transforms.outbox.", "transforms.outbox.x", "predicates.", "predicates.x.type", "database.", "producer.override.", "producer.override.zzz",
		"topic.creation.", "key.converter.", "value.converter.x", "header.converter.x", "\u001b[31mred", "über", "debezium.source.slot.name", "SLOT", "%dev.x", "(around) x", "(worker) x", "column.mask.", "errors.",
	}
	for _, name := range odd {
		quoted := strings.ReplaceAll(fmt.Sprintf("%q", name), `\x1b`, `\u001b`)
		r := convertJSON(t, fmt.Sprintf(", %s: \"value-that-is-set\"", quoted))
		found := false
		for _, f := range r.Report {
			found = found || f.Option == input.Printable(name)
			if strings.Contains(f.Option+f.Text, "\x1b") {
				t.Errorf("%q: a control character in the report", name)
			}
			if strings.Contains(f.Option+f.Text, "value-that-is-set") {
				t.Errorf("%q: the value of an unknown option is in the report: %s", name, f.Text)
			}
		}
		if !found {
			t.Errorf("%q is not reported", name)
		}
	}
}

func TestAListOfExpressionsEndsAtACommaThatIsNotEscaped(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil, " , ": nil, "a, b,": {"a", "b"}, `a\,b,c`: {"a,b", "c"}, `a\\,b`: {`a\\`, "b"},
	} {
		if got := expressions(text); !slices.Equal(got, want) {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestLiteralTablesAreToldFromRegularExpressions(t *testing.T) {
	for re, want := range map[string]string{
		`public.outbox`: "public.outbox", `public\.outbox`: "public.outbox", `^public\.outbox$`: "public.outbox", `public[.]outbox`: "public.outbox",
		`\Qpublic.outbox\E`: "public.outbox", `public\.(outbox)`: "public.outbox", `(public).(outbox)`: "public.outbox", `public\.out\-box`: "public.out-box", `public\.out\$box`: "public.out$box",
		`public\.outbox.*`: "", `public\..*`: "", `public\.outbox|public\.x`: "", `public\.(a|b)`: "", `public\.out[a-z]+`: "", `public\.outbox?`: "", `public\.outbox{2}`: "",
		`(?i)public\.outbox`: "", `public\.\w+`: "", `public\.outbox\`: "", `.*`: "", `(public\.outbox)?`: "", `public\.o(ut)*box`: "", `public\.outbox\d`: "", `public.[ab]`: "", `public\.a\b`: "",
		`\Qpublic.outbox`: "public.outbox", `public\.[a]`: "public.a",
	} {
		names, ok := literalNames(re)
		got := ""
		if ok {
			got = strings.Join(names, ".")
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", re, got, want)
		}
	}
}

// What takes over a slot never makes one, whatever else the connector says.
func TestATakeoverNeverMakesASlot(t *testing.T) {
	for _, mode := range []string{"", "initial", "when_needed", "no_data", "never", "always", "custom", "nonsense"} {
		r := convertJSON(t, fmt.Sprintf(`, "snapshot.mode": %q`, mode))
		if !strings.Contains(string(r.YAML), "\n  create: false") || !strings.Contains(string(r.YAML), "\n  snapshot: never\n") {
			t.Errorf("snapshot.mode %q:\n%s", mode, r.YAML)
		}
	}
}

// A login that is written wrongly has its password where the name should be, and the name is
// written.
func TestABrokenLoginIsNotTakenApart(t *testing.T) {
	for _, login := range []string{
		`username= password=\"hidden-1\";`, `username=password='hidden-1';`, `username=\"u\" password=\"hidden-1`, `password=hidden-1`, `username=\"u\" password=hidden-1=x;`,
		`username=password=\"hidden-1\" password=\"x\";`, `username=\"u password=\"hidden-1\";`,
	} {
		r := convertJSON(t, `, "producer.override.security.protocol": "SASL_SSL", "producer.override.sasl.mechanism": "PLAIN", "producer.override.sasl.jaas.config": "M required `+login+`"`)
		all := string(r.YAML)
		for _, f := range r.Report {
			all += f.Text
		}
		if strings.Contains(all, "hidden-1") {
			t.Errorf("%s: the password is in\n%s", login, all)
		}
	}
}

// A table may be named with any character: what is written is read back as it was.
func TestEveryCharacterIsReadBack(t *testing.T) {
	names := []string{"a\xffb"} // no UTF-8
	for r := rune(1); r <= unicode.MaxRune; r += short.Pick[rune](1, 13) {
		// The rest are letters of one kind, characters for private use, and nothing. Each plane ends with two that are no characters.
		if r < 0x3000 || r > 0xd7f0 && r < 0x10010 || r > 0xe0000 && r < 0xe0200 || r&0xfffe == 0xfffe {
			names = append(names, string([]rune{'a', r, 'b'}))
		}
	}
	for _, name := range names {
		var back []string
		if err := yaml.Unmarshal([]byte(scalar(name)+"\n"), new(string)); err != nil {
			t.Fatalf("%+q is written as %s: %v", name, scalar(name), err)
		}
		if err := yaml.Unmarshal([]byte(list([]string{name, "c"})+"\n"), &back); err != nil || len(back) != 2 || back[0] != strings.ToValidUTF8(name, "\uFFFD") {
			t.Fatalf("%+q is written as %s and read as %q: %v", name, list([]string{name, "c"}), back, err)
		}
	}
}

// Whose keys are used is not a detail: another role has other rights.
func TestALoginOfAWSWithOptionsIsRefused(t *testing.T) {
	const module = "software.amazon.msk.auth.iam.IAMLoginModule required"
	for login, want := range map[string]Verdict{
		module: NotNeeded, module + ";": NotNeeded, module + " ; ": NotNeeded,
		module + ` awsRoleArn=\"arn:aws:iam::123456789012:role/outbox\";`: Unsupported, module + ` awsProfileName=dev;`: Unsupported,
		module + ` ${file:/login.properties:options};`: Unsupported, `${env:LOGIN}`: Unsupported,
	} {
		r := convertJSON(t, `, "producer.override.security.protocol": "SASL_SSL", "producer.override.sasl.mechanism": "AWS_MSK_IAM", "producer.override.sasl.jaas.config": "`+login+`"`)
		if f := finding(r, "producer.override.sasl.jaas.config"); f == nil || f.Verdict != want {
			t.Errorf("%s: got %+v, want %s", login, f, want)
		}
	}
}

// The empty value of one option of TLS turns a check off. The class of a callback handler is Java
// code unless it is AWS's own.
func TestARuleJudgesTheValue(t *testing.T) {
	const check, handler = "producer.override.ssl.endpoint.identification.algorithm", "producer.override.sasl.client.callback.handler.class"
	for _, c := range []struct {
		option, value string
		want          Verdict
	}{
		{check, "", Unsupported},
		{check, "HTTPS", NotNeeded},
		{check, "x", Unsupported},
		{check, "${env:X}", Unsupported},
		{handler, "", NotNeeded},
		{handler, "software.amazon.msk.auth.iam.IAMClientCallbackHandler", NotNeeded},
		{handler, "com.example.Handler", Unsupported},
	} {
		r := convertJSON(t, fmt.Sprintf(`, "producer.override.security.protocol": "SASL_SSL", %q: %q`, c.option, c.value))
		if f := finding(r, c.option); f == nil || f.Verdict != c.want {
			t.Errorf("%s=%q: got %+v, want %s", c.option, c.value, f, c.want)
		}
	}
}

func TestATableIsReadAsSQLReadsIt(t *testing.T) {
	for text, want := range map[string]string{
		"public.outbox": "public.outbox", " Public.OutBox ": "public.outbox", `"Public".outBox`: `"Public".outbox`, `public."a.b""c"`: `public."a.b""c"`,
		"outbox": "", "a.b.c": "", `public."outbox`: "", `public.""`: "", ".outbox": "", `public."a"b`: "",
	} {
		table, ok := parseTable(text)
		got := ""
		if ok {
			got = table.sql()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// What stands in the input is what walpost reads: a dollar sign is no variable, a blank belongs
// to a replacement, and a column has its case.
func TestDollarsBlanksAndCaseAreKept(t *testing.T) {
	r := convertJSON(t, `, "transforms.outbox.route.topic.replacement": "x$1 ", "transforms.outbox.table.field.event.id": "$id", "transforms.outbox.table.field.event.payload": "Payload"`)
	for _, want := range []string{`route.topic.replacement: "x$1 "`, "table.field.event.id: $$id\n", "table.field.event.payload: Payload\n"} {
		if !strings.Contains(string(r.YAML), want) {
			t.Errorf("no %s in\n%s", want, r.YAML)
		}
	}
	text := strings.Replace(connector, "public.outbox", `public\\.out\\$box`, 1) + "}"
	r, err := Convert([]byte(text), Options{})
	if err != nil || !strings.Contains(string(r.YAML), `table: public.out$$box`) {
		t.Errorf("%v\n%s", err, r.YAML)
	}
}

// Only the server knows what a regular expression selects, or a list of schemas. The report asks for it in one line.
func TestUnresolvedTablesAskForTheServer(t *testing.T) {
	for _, list := range []string{`"table.include.list": "public.out.*"`, `"table.include.list": "public.outbox_p[0-9]+"`, `"schema.include.list": "public"`, `"table.exclude.list": "public.x"`} {
		text := strings.Replace(connector, `"table.include.list": "public.outbox"`, list, 1) + "}"
		r, err := Convert([]byte(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var asks []string
		for _, f := range r.Report {
			if f.Verdict == Unsupported {
				asks = append(asks, f.Option+": "+f.Text)
			}
		}
		if len(asks) != 1 || !strings.Contains(asks[0], include) || !strings.Contains(asks[0], "--dsn postgres://") {
			t.Errorf("%s: %q", list, asks)
		}
	}
}

// Debezium ignores an entry that selects no table. So does convert, when the server says so.
func TestATableThatDoesNotExistIsLeftOut(t *testing.T) {
	columns := []string{"id", "aggregatetype", "aggregateid", "payload"}
	catalog := []CatalogTable{
		{Schema: "public", Name: "outbox_1", RootSchema: "public", RootName: "outbox", Columns: columns},
		{Schema: "public", Name: "outbox_2", RootSchema: "public", RootName: "outbox", Columns: columns},
		{Schema: "public", Name: "orders", RootSchema: "public", RootName: "orders", Columns: []string{"id"}},
	}
	for list, want := range map[string]string{
		" public.outbox_1 , public.gone , ": "table: public.outbox", "public.outbox_[12]": "table: public.outbox", "public.outbox_1,public.outbox_2": "table: public.outbox", "public.out.*": "table: public.outbox",
	} {
		r, err := Convert([]byte(strings.Replace(connector, "public.outbox", list, 1)+"}"), Options{Catalog: catalog})
		if err != nil {
			t.Fatal(err)
		}
		f := finding(r, include)
		if r.Unsupported() || !strings.Contains(string(r.YAML), want+"\n") || f == nil || strings.Contains(f.Text, "public.gone") != strings.Contains(list, "gone") {
			t.Errorf("%s: %+v\n%s", list, f, r.YAML)
		}
	}
}
