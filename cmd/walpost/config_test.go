package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/configkeys"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/sink"
)

// testEnv is the environment of the files in testdata/config.
func testEnv(name string) (string, bool) {
	value, ok := map[string]string{
		"VAR_DSN":     "postgres://walpost@db.internal/shop",
		"VAR_BROKERS": "kafka-1:9092, kafka-2:9092",
		"VAR_EVENTS":  "7",
		"VAR_EMPTY":   "",
	}[name]
	return value, ok
}

func TestBadFilesSayEverythingThatIsWrong(t *testing.T) {
	for _, name := range files(t, "testdata/config/*.bad.yaml") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, m := range regexp.MustCompile(`(?m)^# want: (.*)$`).FindAllStringSubmatch(string(text), -1) {
				if rest, ok := strings.CutPrefix(m[1], ": "); ok {
					want = append(want, name+": "+rest)
				} else {
					want = append(want, name+":"+m[1])
				}
			}
			_, err = loadConfig(name, testEnv, nil, nil, (*walpost.Config).Validate)
			if err == nil {
				t.Fatal("the file was accepted")
			}
			if !fault.Misconfigured(err) || exitCode(err) != exitUsage {
				t.Errorf("exit code %d, want %d", exitCode(err), exitUsage)
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			if strings.Contains(err.Error(), "topsecret") || strings.Contains(err.Error(), "hunter2") {
				t.Error("the message shows a secret")
			}
		})
	}
}

func TestGoodFilesAreRead(t *testing.T) {
	want := map[string]func(*fileConfig){
		"minimal.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table = "postgres://walpost@db.internal:5432/shop", "public.outbox"
			c.Kafka.Brokers = []string{"kafka-1:9092"}
		},
		"variables.good.yaml": func(c *fileConfig) {
			c.Name = "a$b-fallback"
			c.Source.DSN, c.Source.Tables = "postgres://walpost@db.internal/shop", []string{"public.outbox", "sales.outbox"}
			c.Router.TopicRegex, c.Router.TopicReplacement = "(?<routedByValue>.*)$", "events.${routedByValue}"
			c.Kafka.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}
			c.Delivery.Window = relay.Window{Events: 7, Bytes: 1 << 20}
			c.HaltLinger = walpost.Forever
		},
		"secrets.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table = "postgres://walpost@db.internal:5432/shop", "public.outbox"
			c.Source.PasswordFile = "testdata/config/secret"
			c.Kafka.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}
			c.Kafka.TLS = &kafka.TLS{}
			c.Kafka.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: "walpost", PasswordFile: "testdata/config/secret"}
			c.Kafka.Linger = sink.Linger(5 * time.Millisecond)
			c.HTTP.Listen = "off"
		},
		"cleanup.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table, c.Source.TimeColumn = "postgres://db/shop", "public.outbox", "created_at"
			c.Kafka.Brokers = []string{"k:9092"}
			c.Cleanup = cleanup.Config{Mode: "drop_partitions"}
		},
		"poison.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table = "postgres://db/shop", "public.outbox"
			c.Kafka.Brokers = []string{"k:9092"}
			c.Delivery.OnPoison = relay.Policies{"default": "dead_letter", "unroutable": "halt", "too_large": "park_key"}
			c.Delivery.DeadLetterTopic, c.Delivery.ParkingTopic = "shop.dead", "shop.parked"
			c.Delivery.ParkLimit = walpost.ParkLimit{Keys: 1, Events: 10_000_000}
		},
		"poisonword.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table = "postgres://db/shop", "public.outbox"
			c.Kafka.Brokers = []string{"k:9092"}
			c.Delivery.OnPoison = relay.Policies{"default": "park_key"}
		},
		"inert.good.yaml": func(c *fileConfig) {
			c.Source.DSN, c.Source.Table = "host=db.internal dbname=shop user=walpost", `public."Outbox"`
			c.Source.Snapshot, c.Source.Failover = "never", true
			c.Kafka.Brokers = []string{"k:9092"}
		},
	}
	names := files(t, "testdata/config/*.good.yaml")
	if len(names) != len(want) {
		t.Fatalf("%d files, %d expectations", len(names), len(want))
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			got, err := loadConfig(name, testEnv, nil, nil, (*walpost.Config).Validate)
			if err != nil {
				t.Fatal(err)
			}
			expected := defaultConfig()
			expected.file, expected.read = name, got.read
			want[filepath.Base(name)](&expected)
			if !reflect.DeepEqual(got, expected) {
				t.Errorf("got  %#v\nwant %#v", got, expected)
			}
		})
	}
}

// example is walpost.example.yaml with what it has commented out, too, where all is set.
const example = "../../walpost.example.yaml"

func TestExampleIsTheDefaults(t *testing.T) {
	got, err := loadConfig(example, testEnv, nil, nil, (*walpost.Config).Validate)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultConfig()
	want.file, want.read = example, got.read
	want.Source.DSN, want.Source.Table = "postgres://walpost@db.internal:5432/shop?sslmode=verify-full", "public.outbox"
	want.Kafka.Brokers = []string{"kafka-1:9092", "kafka-2:9092"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

func TestExampleHasEveryKey(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	// A key without a default, or with an alternative, stands behind "# ", in its place.
	all := regexp.MustCompile(`(?m)^( *)# ([a-z_.]+:( .*)?)$`).ReplaceAll(text, []byte("$1$2"))
	var root yaml.Node
	if err := yaml.Unmarshal(all, &root); err != nil {
		t.Fatalf("with all that is commented out: %v", err)
	}
	got := map[string]bool{}
	keysOf(root.Content[0], "", got)
	for _, key := range leaves(t) {
		if !got[key] {
			t.Errorf("%s is not in %s", key, filepath.Base(example))
		}
		delete(got, key)
	}
	for key := range got {
		if !strings.HasPrefix(key, "kafka.sasl.extensions.") {
			t.Errorf("%s is in %s and no key", key, filepath.Base(example))
		}
	}
}

// The pages name keys in backquotes.
func TestDocumentationHasTheKeys(t *testing.T) {
	keys := leaves(t)
	isKey := func(name string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return k == name || strings.HasPrefix(k, name+".") })
	}
	named := regexp.MustCompile("`((?:source|router|records|kafka|delivery|checkpoint|monitor|cleanup|http|log)(?:\\.[a-z_]+)+)[`:]")
	names := 0
	for _, page := range append(slices.Concat(files(t, "../../docs/*.md"), files(t, "../../docs/runbooks/*.md")), "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			names++
			switch m[1] {
			case "cleanup.policy", "kafka.sasl.extensions", "kafka.internal": // a setting of Kafka's topics, a mapping, an example
				continue
			case "source.sequence", "source.origin", "source.origin_lsn", "source.lsn": // in Debezium's records
				continue
			}
			if !isKey(m[1]) {
				t.Errorf("%s: %s is no key", page, m[1])
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names of keys are found: the pages look otherwise", names)
	}
}

func keysOf(n *yaml.Node, path string, into map[string]bool) {
	if n.Kind != yaml.MappingNode {
		into[path] = true
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		keysOf(n.Content[i+1], conf.Join(path, n.Content[i].Value), into)
	}
}

// leaves are the paths of the keys that have a value, without those of free mappings and of items.
func leaves(t *testing.T) (keys []string) {
	leavesOf(describe(t), nil, func(k *configkeys.Key, _ []string) {
		if k.Kind != configkeys.Mapping && !strings.Contains(k.Path, "[]") {
			keys = append(keys, k.Path)
		}
	})
	return keys
}

func TestFlagGoesOverVariableGoesOverFile(t *testing.T) {
	over := []override{
		{from: "WALPOST_SLOT", field: "source.slot", text: "from_env"},
		{from: "--slot", field: "source.slot", text: "from_flag"},
		{from: "--table", field: "source.tables", text: "public.one"},
		{from: "--route", field: "router.route.topic.replacement", text: "x.${routedByValue}"},
		{from: "--create-topics", field: "kafka.topics.create", text: "true"},
		{from: "WALPOST_HALT_LINGER", field: "halt_linger", text: "forever"},
	}
	cfg, err := loadConfig("testdata/config/variables.good.yaml", testEnv, over, nil, (*walpost.Config).Validate)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(cfg.Source.Slot, cfg.Source.Table, cfg.Source.Tables, cfg.Router.TopicReplacement, cfg.Kafka.Topics.Create, cfg.HaltLinger)
	if want := "from_flag  [public.one] x.${routedByValue} true forever\n"; got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

func TestFlagGoesOverVariable(t *testing.T) {
	cmd := runCommand()
	if err := cmd.Flags().Parse([]string{"--slot", "flag", "--create-topics", "--snapshot", ""}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"WALPOST_SLOT": "variable", "WALPOST_TABLE": "public.outbox", "WALPOST_NAME": "", "WALPOST_PORT": "tcp://10.0.0.1:80"}
	got := overrides(cmd.Flags(), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	want := []override{
		{from: "WALPOST_TABLE", field: "source.tables", text: "public.outbox"},
		{from: "--slot", field: "source.slot", text: "flag"},
		{from: "--snapshot", field: "source.snapshot", text: ""},
		{from: "--create-topics", field: "kafka.topics.create", text: "true"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A hint repeats how this program was told its configuration, so that a shell takes the command. A password is not repeated.
func TestAHintRepeatsTheOptions(t *testing.T) {
	for want, args := range map[string][]string{
		"":                           nil,
		"--config /etc/walpost.yaml": {"-c", "/etc/walpost.yaml", "--stdout"},
		`--config 'it'\''s $HOME.yaml' --slot=a --create=false --topic-replacement='x.${routedByValue}'`: {
			"--topic-replacement", "x.${routedByValue}", "--config", "it's $HOME.yaml", "--slot", "a", "--create=false",
		},
		`--dsn "$WALPOST_DSN" --table=public.outbox --brokers=kafka:9092`: {
			"--dsn", "postgres://u:secret@h/shop", "--table", "public.outbox", "--brokers", "kafka:9092",
		},
	} {
		cmd := runCommand()
		if err := cmd.Flags().Parse(args); err != nil {
			t.Fatal(err)
		}
		none := func(string) (string, bool) { return "", false }
		if got, _ := given(cmd.Flags(), cmd.Flag("config").Value.String(), none); got != want {
			t.Errorf("%q gives %q, must be %q", args, got, want)
		}
	}
}

// What an administrator runs has no DSN of walpost's role, and what the role runs has none of an administrator.
func TestAHintLeavesOutTheDSNOfAnotherRole(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	options := []string{"--dsn", "postgres://postgres@h/shop", "--table", "public.outbox"}
	check, setup := checkCommand(), setupCommand()
	if err := errors.Join(check.Flags().Parse(options), setup.Flags().Parse(append(options, "--role", "walpost"))); err != nil {
		t.Fatal(err)
	}
	const want = "--config w.yaml --table=public.outbox"
	if _, got := given(check.Flags(), "w.yaml", none); got != want {
		t.Errorf("check, for an administrator: %q, must be %q", got, want)
	}
	if got, admin := given(setup.Flags(), "w.yaml", none); got != want || admin != want {
		t.Errorf("setup --role: %q, and for an administrator %q, must be %q", got, admin, want)
	}
}

// A hint repeats which relay the environment names, because another shell does not have the variables of the unit. A flag goes
// before its variable. What can be secret, and what is the same for another relay, is left out.
func TestAHintRepeatsWhichRelayTheEnvironmentNames(t *testing.T) {
	for name, text := range map[string]string{
		"TABLE": "public.outbox", "SLOT": "walpost", "PUBLICATION": "", "NAME": "it's", "CHECKPOINT_STORE": "file",
		"CHECKPOINT_TOPIC": "checkpoints", "CHECKPOINT_PATH": "/var/lib/my position",
		"CONFIG": "/etc/walpost.yaml", "DSN": "postgres://u:secret@h/shop", "BROKERS": "kafka:9092", "LOG_LEVEL": "debug", "PORT": "tcp://10.0.0.1:80",
	} {
		t.Setenv("WALPOST_"+name, text)
	}
	cmd := recoverCommand()
	if err := cmd.Flags().Parse([]string{"--slot", "orders"}); err != nil {
		t.Fatal(err)
	}
	want := `--config /etc/walpost.yaml --table=public.outbox --slot=orders --name='it'\''s' ` +
		`--checkpoint-store=file --checkpoint-topic=checkpoints --checkpoint-path='/var/lib/my position'`
	if got, _ := given(cmd.Flags(), namedFile(cmd.Flags()), os.LookupEnv); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A password of the file is for the user of the file's DSN. It is not sent for another user.
func TestAnotherUsersDSNLeavesThePasswordUnused(t *testing.T) {
	t.Setenv("PGUSER", "me")
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	secret, dsnFile := write("secret", "geheim\n"), write("dsn", "postgres://walpost@db/shop\n")
	const (
		used   = `password "geheim"`
		unused = `password ""`
	)
	for _, c := range []struct{ file, dsn, want string }{
		{"dsn: postgres://db/shop", "postgres://postgres@db/shop", unused},
		{"dsn: postgres://db/shop", "postgres://me@db/shop", used},
		{"dsn: postgres://walpost@db/shop", "postgres://walpost@other/shop", used},
		{"dsn: postgres://walpost@db/shop", "host=other user='walpost' dbname=shop", used},
		{"dsn: postgres://walpost@db/shop", "postgres://postgres@db/shop", unused},
		{"dsn: postgres://walpost@db/shop", "host=db user=postgres dbname=shop", unused},
		{"dsn: postgres://walpost@db/shop", "postgres://db/shop", unused}, // the user is me
		{"dsn: postgres://walpost@db/shop", "postgres://postgres:own@db/shop", unused},
		{"dsn: postgres://walpost@db/shop", "postgres://walpost:own@db/shop", unused},
		{"dsn_file: " + dsnFile, "postgres://walpost@other/shop", used},
		{"dsn_file: " + dsnFile, "postgres://postgres@db/shop", unused},
		{"slot: walpost", "postgres://walpost@db/shop", used}, // the file has no DSN
		{"slot: walpost", "postgres://walpost:own@db/shop", unused},
		{"dsn: postgres://walpost:own@db/shop", "", "walpost.yaml:3:18: source.password_file: contradicts the password in source.dsn"},
	} {
		name := write("walpost.yaml", "source:\n  "+c.file+"\n  password_file: "+secret+"\n  table: public.outbox\nkafka:\n  brokers: [kafka:9092]\n")
		var over []override
		if c.dsn != "" {
			over = []override{{from: "--dsn", field: "source.dsn", text: c.dsn}}
		}
		cfg, err := loadConfig(name, testEnv, over, nil, (*walpost.Config).Validate)
		password, _ := cfg.Source.Password.Or(cfg.Source.PasswordFile)
		got := fmt.Sprintf("password %q", password)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s, --dsn %s: got %q, want %q", c.file, c.dsn, got, c.want)
		}
	}
}

// If the DSN of the relay is in the environment, and only its password in the file, then setup with the DSN of an administrator
// does not send the relay's password.
func TestAVariableSaysWhoseThePasswordOfTheFileIs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "walpost.yaml")
	write(t, name, "source: {password: geheim, table: public.outbox}\nkafka: {brokers: [kafka:9092]}\n")
	env := func(name string) (string, bool) {
		return map[string]string{"WALPOST_DSN": "postgres://walpost@db/shop"}[name], true
	}
	for dsn, want := range map[string]string{"": "geheim", "postgres://walpost@other/shop": "geheim", "postgres://postgres@db/shop": ""} {
		flags := setupCommand().Flags()
		if dsn != "" {
			if err := flags.Set("dsn", dsn); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := loadConfig(name, env, overrides(flags, env), nil, (*walpost.Config).Validate)
		if err != nil || string(cfg.Source.Password) != want || dsn != "" && string(cfg.Source.DSN) != dsn {
			t.Errorf("--dsn %q: %q as %q, %v", dsn, string(cfg.Source.Password), string(cfg.Source.DSN), err)
		}
	}
}

func TestTableReplacesBothForms(t *testing.T) {
	over := []override{{from: "--table", field: "source.tables", text: "public.a,public.b"}}
	for _, name := range []string{"minimal", "variables"} {
		cfg, err := loadConfig("testdata/config/"+name+".good.yaml", testEnv, over, nil, (*walpost.Config).Validate)
		if err != nil || !slices.Equal(cfg.Source.AllTables(), []string{"public.a", "public.b"}) {
			t.Errorf("%s: %v, %v", name, cfg.Source.AllTables(), err)
		}
	}
}

func TestOverrideHealsWhatCannotBeRead(t *testing.T) {
	over := []override{
		{from: "--slot", field: "source.slot", text: "walpost"},
		{from: "--halt-linger", field: "halt_linger", text: "0s"},
		{from: "--brokers", field: "kafka.brokers", text: "kafka:9092"},
	}
	_, err := loadConfig("testdata/config/types.bad.yaml", testEnv, over, nil, (*walpost.Config).Validate)
	text := fmt.Sprint(err)
	for _, field := range []string{"source.slot", "halt_linger", "kafka.brokers"} {
		if strings.Contains(text, field) {
			t.Errorf("%s was replaced, and still:\n%s", field, text)
		}
	}
	if !strings.Contains(text, "source.create") {
		t.Errorf("source.create was not replaced:\n%s", text)
	}
}

func TestOverrideHealsTheFileAndNamesItself(t *testing.T) {
	over := []override{
		{from: "--slot", field: "source.slot", text: "walpost"},
		{from: "--window-events", field: "delivery.window.events", text: "0"},
		{from: "WALPOST_LOG_LEVEL", field: "log.level", text: "loud"},
		{from: "--window-bytes", field: "delivery.window.bytes", text: "much"},
	}
	_, err := loadConfig("testdata/config/bounds.bad.yaml", testEnv, over, nil, (*walpost.Config).Validate)
	text := fmt.Sprint(err)
	for _, want := range []string{
		"--window-events: delivery.window.events: must be at least 1 (got 0)",
		`WALPOST_LOG_LEVEL: log.level: must be one of debug, info, warn, error (got "loud")`,
		`--window-bytes: delivery.window.bytes: must be a size such as 1024, 64MiB or 10GiB (got "much")`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "source.slot") {
		t.Errorf("the flag replaced the slot, and still:\n%s", text)
	}
}

func TestWithoutFileTheFlagsAreNamed(t *testing.T) {
	_, err := loadConfig("", testEnv, nil, nil, (*walpost.Config).Validate)
	want := "source.dsn: is required (--dsn, WALPOST_DSN, or a file with --config)"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAFileWithoutItsFlagIsToldTheFlag(t *testing.T) {
	for arg, want := range map[string]string{"walpost.yaml": `unexpected argument "walpost.yaml" (did you mean --config walpost.yaml?)`, "slot": `unexpected argument "slot"`} {
		err := noArguments(runCommand(), []string{arg})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestEverySettingNamesAField(t *testing.T) {
	cfg := defaultConfig()
	for _, s := range settings {
		if _, ok := conf.Find(&cfg, s.field); !ok {
			t.Errorf("--%s is for %s, which is no key", s.flag, s.field)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	cfg := defaultConfig()
	cfg.Source.DSN, cfg.Source.Password, cfg.Kafka.SASL.Password = "postgres://u:topsecret@h/d", "topsecret", "topsecret"
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, cfg); strings.Contains(text, "topsecret") {
			t.Errorf("%s shows a secret: %s", format, text)
		}
	}
}

func TestExitCodeIsByBehaviour(t *testing.T) {
	plain := errors.New("x")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{plain, 1},
		{fault.Retry(plain), 1},
		{fmt.Errorf("a: %w", fault.Config(plain, "")), 2},
		{fmt.Errorf("a: %w", fault.Person(plain, "do")), 3},
		{usageError{plain}, 2},
		{exitError(3), 3},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(names), err)
	}
	return names
}

// The values that the help and the completion give for a flag are those that the configuration takes.
func TestFlagsOfferTheValuesThatTheConfigurationTakes(t *testing.T) {
	for _, s := range settings {
		if s.values == "" {
			continue
		}
		set := func(value string) error {
			_, err := loadConfig("", func(string) (string, bool) { return "", false },
				[]override{{"--dsn", "source.dsn", "postgres://h/d"}, {"--table", "source.tables", "a"}, {"--checkpoint-path", "checkpoint.path", "p"}, {"--" + s.flag, s.field, value}},
				nil, (*walpost.Config).ValidateDatabase)
			return err
		}
		values := strings.Fields(s.values)
		for _, value := range values {
			if err := set(value); err != nil && strings.Contains(err.Error(), s.field+":") {
				t.Errorf("--%s offers %s: %v", s.flag, value, err)
			}
		}
		if err := set("nonsense"); err == nil || !strings.Contains(err.Error(), "one of "+strings.Join(values, ", ")+" (got") {
			t.Errorf("--%s offers %v, and the configuration says: %v", s.flag, values, err)
		}
	}
}
