package main

import (
	"bytes"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/configkeys"
	"github.com/walpost/walpost/internal/doctest"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/internal/yamlfile"
	"github.com/walpost/walpost/relay"
)

var update = goflag.Bool("update", false, "write walpost.schema.json and the generated pages of docs anew")

func describe(t *testing.T) *configkeys.Key {
	t.Helper()
	defaults := defaultConfig()
	keys, err := configkeys.Of(&defaults, "../..")
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestTheSchemaAndTheReferenceAreOfThisVersion(t *testing.T) {
	keys := describe(t)
	for name, want := range map[string]string{
		"walpost.schema.json":   string(keys.Schema(schemaURL)),
		"docs/configuration.md": within(t, "docs/configuration.md", keys.Reference()),
		"docs/command-line.md":  within(t, "docs/command-line.md", commandLine(rootCommand())),
		"docs/README.md":        within(t, "docs/README.md", readNavigation(t).index()),
	} {
		if *update {
			write(t, "../../"+name, want)
		} else if read(t, "../../"+name) != want {
			t.Errorf("%s differs from its source: go test ./cmd/walpost -run TheSchemaAndTheReference -update", name)
		}
	}
}

// within returns a page with another text between its marks.
func within(t *testing.T, page, text string) string {
	t.Helper()
	whole, ok := doctest.Within(read(t, "../../"+page), text)
	if !ok {
		t.Fatalf("%s has no place for the text", page)
	}
	return whole
}

// A judge has both verdicts on a file: of the schema, and of walpost config validate.
type judge struct {
	schema *jsonschema.Schema
	dir    string
}

func newJudge(t *testing.T) judge {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(describe(t).Schema(schemaURL)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("walpost.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("walpost.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return judge{schema, t.TempDir()}
}

// bySchema is what the schema says about a file; nil also if the file is no YAML that an editor could judge.
func (j judge) bySchema(text []byte) error {
	var doc any
	if yaml.Unmarshal(text, &doc) != nil {
		return nil
	}
	again, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(again))
	if err != nil {
		return err
	}
	return j.schema.Validate(value)
}

// byValidate is what walpost config validate says.
func (j judge) byValidate(t *testing.T, text []byte, env func(string) (string, bool)) yamlfile.Problems {
	t.Helper()
	name := filepath.Join(j.dir, "walpost.yaml")
	write(t, name, string(text))
	_, err := loadConfig(name, env, nil, nil, (*walpost.Config).Validate)
	if err == nil {
		return nil
	}
	var found yamlfile.Problems
	if !errors.As(err, &found) {
		t.Fatalf("%v: %v", fault.Misconfigured(err), err)
	}
	return found
}

type doc = map[string]any

// set sets a key in a file, with the sections around it. A key of an item is in the first item.
func set(in doc, path []string, value any) {
	name, list := strings.CutSuffix(path[0], "[]")
	switch {
	case len(path) == 1:
		in[name] = value
	case list:
		item, _ := in[name].([]any)
		if item == nil {
			item = []any{doc{}}
			in[name] = item
		}
		set(item[0].(doc), path[1:], value)
	default:
		section, _ := in[name].(doc)
		if section == nil {
			section = doc{}
			in[name] = section
		}
		set(section, path[1:], value)
	}
}

func file(t *testing.T, in doc) []byte {
	t.Helper()
	text, err := yaml.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// least is a file with nothing but what is required.
func least() doc {
	return doc{"source": doc{"dsn": "postgres://db/shop", "table": "public.outbox"}, "kafka": doc{"brokers": []any{"k:9092"}}}
}

// beside has the keys without which another key, or a value of it, is refused.
func beside(t *testing.T, in doc, key string, value any) {
	t.Helper()
	secret, err := filepath.Abs("testdata/config/secret")
	if err != nil {
		t.Fatal(err)
	}
	sasl := func(mechanism string, more doc) {
		with := doc{"mechanism": mechanism}
		maps.Copy(with, more)
		if old, ok := in["kafka"].(doc)["sasl"].(doc); ok {
			maps.Copy(with, old)
		}
		set(in, []string{"kafka", "sasl"}, with)
	}
	source := in["source"].(doc)
	polled(in, key)
	if strings.HasSuffix(key, "_file") && !strings.Contains(key, ".tls.") {
		section := in["source"].(doc)
		if strings.HasPrefix(key, "kafka.sasl.") {
			section = in["kafka"].(doc)["sasl"].(doc)
		} else if strings.HasPrefix(key, "http.") {
			section = in["http"].(doc)
		} else if strings.HasPrefix(key, "schema_registry.") {
			section = in["schema_registry"].(doc)
		}
		section[key[strings.LastIndex(key, ".")+1:]] = secret
	}
	switch key {
	case "source.dsn_file":
		delete(source, "dsn")
		name := filepath.Join(t.TempDir(), "dsn")
		write(t, name, "postgres://db/shop\n")
		source["dsn_file"] = name
	case "source.tables":
		delete(source, "table")
	case "source.publish":
		if text, ok := value.(string); ok && text == "update" {
			source["publish"] = "insert, update"
		}
	case "source.messages.format", "source.messages.include", "source.messages.exclude":
		set(in, []string{"records", "topic.prefix"}, "shop")
		set(in, []string{"source", "messages", "format"}, "debezium")
		if value == "row" {
			set(in, []string{"source", "messages", "format"}, value)
		}
	case "router.topic.rename.replacement":
		set(in, []string{"router", "topic.rename.regex"}, "a(.*)")
	case "records.headers[].value", "records.headers[].before_id":
		set(in, []string{"records", "headers[]", "insert"}, "x")
	case "records.extended.headers.enabled":
		set(in, []string{"records", "topic.prefix"}, "shop")
	case "records.cloudevents", "records.cloudevents.source", "records.cloudevents.type.field":
		if value == "none" {
			return
		}
		if key != "records.cloudevents" {
			set(in, []string{"records", "cloudevents"}, "binary")
		}
		if key != "records.cloudevents.source" {
			set(in, []string{"records", "cloudevents.source"}, "/shop")
		}
	case "records.claim_check.over":
		set(in, []string{"records", "claim_check"}, doc{"store": "file", "path": "/x"})
	case "kafka.tls.ca_file", "kafka.tls.cert_file", "kafka.tls.key_file", "http.tls.cert_file", "http.tls.key_file",
		"schema_registry.tls.ca_file", "schema_registry.tls.cert_file", "schema_registry.tls.key_file":
		t.Skip("packages kafka and statuspage have the tests with certificates")
	case "source.rds_iam":
		source["dsn"] = "postgres://walpost@db/shop?sslmode=require"
	case "records.key.converter", "records.value.converter", "records.validate":
		if value == "avro" || value == "json_schema" || value == "protobuf" {
			set(in, []string{"schema_registry", "urls"}, []any{"http://r:8081"})
		}
	case "schema_registry.password", "schema_registry.password_file":
		set(in, []string{"schema_registry", "username"}, "u")
	case "http.username":
		set(in, []string{"http", "password"}, "p")
	case "http.password", "http.password_file":
		set(in, []string{"http", "username"}, "u")
	case "kafka.sasl.mechanism":
		switch value {
		case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
			sasl("", doc{"username": "u", "password": "p"})
		case "OAUTHBEARER":
			sasl("", doc{"token": "p"})
		}
	case "kafka.sasl.username":
		sasl("PLAIN", doc{"password": "p"})
	case "kafka.sasl.password", "kafka.sasl.password_file":
		sasl("PLAIN", doc{"username": "u"})
	case "kafka.sasl.token", "kafka.sasl.token_file", "kafka.sasl.token_command":
		sasl("OAUTHBEARER", nil)
	case "kafka.sasl.token_endpoint_url", "kafka.sasl.client_id", "kafka.sasl.client_secret", "kafka.sasl.client_secret_file", "kafka.sasl.scope":
		whole := doc{"token_endpoint_url": "https://login/token", "client_id": "i", "client_secret": "s", "scope": "k"}
		delete(whole, strings.TrimSuffix(strings.TrimPrefix(key, "kafka.sasl."), "_file"))
		sasl("OAUTHBEARER", whole)
	case "kafka.sasl.extensions":
		sasl("OAUTHBEARER", doc{"token": "p"})
	case "kafka.sasl.secret_key", "kafka.sasl.secret_key_file":
		sasl("AWS_MSK_IAM", doc{"access_key": "a"})
	case "kafka.sasl.access_key", "kafka.sasl.access_key_file":
		sasl("AWS_MSK_IAM", doc{"secret_key": "a"})
	case "kafka.sasl.session_token", "kafka.sasl.session_token_file", "kafka.sasl.region":
		sasl("AWS_MSK_IAM", nil)
	case "checkpoint.store", "checkpoint.path":
		set(in, []string{"checkpoint"}, doc{"store": "file", "path": "/x"})
		if value == "kafka" {
			set(in, []string{"checkpoint"}, doc{"store": "kafka"})
		}
	case "monitor.retained_warn":
		set(in, []string{"monitor", "retained_critical"}, math.MaxInt64)
	case "monitor.retained_critical":
		set(in, []string{"monitor", "retained_warn"}, 1)
	case "monitor.breaker_forecast":
		set(in, []string{"monitor", "breaker"}, "alert")
		set(in, []string{"monitor", "wal_disk_size"}, "64GiB")
	case "cleanup.mode":
		source["time_column"] = "created_at"
	}
	if option, ok := strings.CutPrefix(key, "records."); ok {
		converter, _, found := strings.Cut(option, ".delegate.converter.type")
		if found {
			set(in, []string{"records", converter}, "binary")
			if !strings.HasSuffix(option, ".delegate.converter.type") {
				set(in, []string{"records", converter + ".delegate.converter.type"}, "json")
			}
		} else if before, after, ok := strings.Cut(option, ".converter."); ok {
			name := "json"
			switch after {
			case "object.additional.properties":
				name = "json_schema"
			case "optional.for.nullables", "wrapper.for.nullables", "scrub.invalid.names":
				name = "protobuf"
			case "auto.register.schemas", "use.latest.version", "subject.name.strategy":
				name = "avro"
			}
			if name != "json" {
				set(in, []string{"schema_registry", "urls"}, []any{"http://r:8081"})
			}
			if after == "use.latest.version" {
				set(in, []string{"records", before + ".converter.auto.register.schemas"}, false)
			}
			set(in, []string{"records", before + ".converter"}, name)
		}
	}
}

// polled makes a file one of a relay that polls, if the key is for that. Otherwise validate does not look at the key.
func polled(in doc, key string) {
	if strings.HasPrefix(key, "source.poll.") || key == "source.kind" {
		set(in, []string{"source", "order_column"}, "id")
		if key != "source.poll.xid_column" {
			set(in, []string{"source", "poll", "xid_column"}, "xid")
		}
	}
	if strings.HasPrefix(key, "source.poll.") {
		set(in, []string{"source", "kind"}, "poll")
	}
}

// leavesOf calls each with every key that has a value, and its path.
func leavesOf(k *configkeys.Key, path []string, each func(k *configkeys.Key, path []string)) {
	if k.Kind != configkeys.Section && k.Path != "" {
		each(k, path)
	}
	for _, below := range k.Keys {
		in := slices.Clone(path)
		if k.Kind == configkeys.Sections {
			in[len(in)-1] += "[]"
		}
		leavesOf(below, append(in, below.Name), each)
	}
}

// scaled is a value beside a bound of the key, written with a unit.
func scaled(t *testing.T, k *configkeys.Key, bound string, more int64) any {
	t.Helper()
	switch k.Kind {
	case configkeys.Duration:
		d, err := time.ParseDuration(bound)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%dns", int64(d)+more)
	case configkeys.Size:
		var b size.Bytes
		if err := b.UnmarshalText([]byte(bound)); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%dB", int64(b)+more)
	default: // a number
	}
	var n int64
	if _, err := fmt.Sscan(bound, &n); err != nil {
		t.Fatal(err)
	}
	return n + more
}

// What the description calls valid is valid for the schema and for validate: the example, each word, the bounds, no bound
// where it gives none, and each of them in a variable.
func TestWhatTheDescriptionAllowsIsAccepted(t *testing.T) {
	j := newJudge(t)
	n := 0
	leavesOf(describe(t), nil, func(k *configkeys.Key, path []string) {
		var good []any
		for _, w := range k.Words() {
			good = append(good, w)
		}
		switch k.Kind {
		case configkeys.Bool:
			good = append(good, true, false, "true", "false")
		case configkeys.Int, configkeys.Duration, configkeys.Size:
			for _, bound := range []string{k.Min(), k.Max()} {
				if bound != "" {
					good = append(good, bound, scaled(t, k, bound, 0))
				}
			}
			if k.Max() == "" {
				most := map[configkeys.Kind]any{configkeys.Int: math.MaxInt64, configkeys.Size: "9223372036854775807", configkeys.Duration: "2562047h"}
				good = append(good, most[k.Kind])
			}
		default: // the example is a good value
		}
		if k.Example != nil && k.Path != "unsupported" {
			good = append(good, k.Example)
		}
		for _, value := range good {
			t.Run(fmt.Sprintf("%s=%v", k.Path, value), func(t *testing.T) {
				variable := fmt.Sprint(value)
				for _, written := range []any{value, "${VALUE}"} {
					if written == "${VALUE}" {
						switch value.(type) {
						case []any, doc:
							continue
						}
						if strings.HasPrefix(k.Path, "router.") && strings.Contains(k.Path, "topic") {
							continue // no variable expands in it
						}
					}
					in := least()
					set(in, path, written)
					beside(t, in, k.Path, value)
					text := file(t, in)
					n++
					if err := j.bySchema(text); err != nil {
						t.Errorf("%s\nthe schema refuses it: %v", text, err)
					}
					env := func(string) (string, bool) { return variable, true }
					if err := j.byValidate(t, text, env); err != nil {
						t.Errorf("%s\nvalidate refuses it: %v", text, err)
					}
				}
			})
		}
	})
	if n < 300 {
		t.Errorf("only %d files", n)
	}
}

// The schema and validate both refuse what the description does not allow: a wrong type, a value beyond a bound or that is no
// word of the key, and an unknown key beside the key.
func TestWhatTheDescriptionForbidsIsRefused(t *testing.T) {
	j := newJudge(t)
	n := 0
	leavesOf(describe(t), nil, func(k *configkeys.Key, path []string) {
		bad := []any{nil}
		list, mapping := []any{[]any{"a"}}, doc{"a": "b"}
		switch k.Kind {
		case configkeys.Bool:
			bad = append(bad, list, mapping, "maybe", 1, "")
		case configkeys.Int:
			bad = append(bad, list, mapping, "many", 1.5, true, "", "${", "10 ")
		case configkeys.Duration:
			bad = append(bad, list, mapping, "soon", 10, 1.5, true, "10", "-1s", "1d", "h", "1 s")
		case configkeys.Size:
			bad = append(bad, list, mapping, "lots", 1.5, true, "MiB", "1.5GiB", "64 M", "64mib", "-1KiB")
		case configkeys.List:
			bad = append(bad, mapping, []any{nil}, []any{mapping}, []any{list})
		case configkeys.Sections:
			bad = append(bad, "word", mapping, []any{nil}, []any{"word"}, []any{list})
		case configkeys.Mapping:
			bad = append(bad, "word", list, doc{"a": nil}, doc{"a": list})
		case configkeys.Policies:
			bad = append(bad, list, mapping, doc{"default": nil}, doc{"default": list})
		default:
			bad = append(bad, list, mapping)
		}
		switch {
		case k.Kind == configkeys.List && k.Closed():
			bad = append(bad, []any{"nonsense"})
		case k.Kind == configkeys.Policies:
			bad = append(bad, "nonsense", true, doc{"default": "nonsense"})
		case k.Closed():
			bad = append(bad, "nonsense", true, 1.5)
		case k.Has("pattern"):
			for _, text := range []string{"", "no/such: value!"} {
				if !regexp.MustCompile(k.Tag.Get("pattern")).MatchString(text) {
					bad = append(bad, text)
				}
			}
		}
		for bound, more := range map[string]int64{k.Min(): -1, k.Max(): 1} {
			if bound == "" {
				continue
			}
			beyond := scaled(t, k, bound, more)
			if k.Kind == configkeys.Int {
				bad = append(bad, beyond)
				continue
			}
			t.Run(fmt.Sprintf("%s=%v", k.Path, beyond), func(t *testing.T) { // which the schema cannot tell
				in := least()
				set(in, path, beyond)
				j.validateRefuses(t, file(t, in), k.Path)
				n++
			})
		}
		for _, value := range bad {
			t.Run(fmt.Sprintf("%s=%v", k.Path, value), func(t *testing.T) {
				in := least()
				set(in, path, value)
				j.bothRefuse(t, file(t, in), k.Path)
				n++
			})
		}
		t.Run(k.Path+" has an unknown key beside it", func(t *testing.T) {
			in := least()
			beside := slices.Clone(path)
			beside[len(beside)-1] = "unknown"
			set(in, beside, "x")
			j.bothRefuse(t, file(t, in), strings.TrimSuffix(k.Path, k.Name)+"unknown")
			n++
		})
	})
	if n < 600 {
		t.Errorf("only %d files", n)
	}
}

func (j judge) bothRefuse(t *testing.T, text []byte, field string) {
	t.Helper()
	if j.bySchema(text) == nil {
		t.Errorf("%s\nthe schema accepts it", text)
	}
	j.validateRefuses(t, text, field)
}

func (j judge) validateRefuses(t *testing.T, text []byte, field string) {
	t.Helper()
	field = strings.ReplaceAll(field, "[].", "[0].")
	if found := j.byValidate(t, text, testEnv); !slices.ContainsFunc(found, func(p yamlfile.Problem) bool { return strings.HasPrefix(p.Field, field) }) {
		t.Errorf("%s\nvalidate says nothing of %s: %v", text, field, found)
	}
}

// Each reason of a bad event can have a policy of its own.
func TestOnPoisonHasEveryReason(t *testing.T) {
	want := []string{relay.DefaultPolicy}
	for _, r := range cdc.Reasons {
		want = append(want, string(r))
	}
	cfg := defaultConfig()
	if f, ok := conf.Find(&cfg, "delivery.on_poison"); !ok || !slices.Equal(f.Keys(), want) {
		t.Errorf("the keys are %v, want %v", f.Keys(), want)
	}
}

// Whatever the schema refuses, validate refuses, over every configuration that is a file of the repository.
func TestTheSchemaRefusesNothingThatIsValid(t *testing.T) {
	j := newJudge(t)
	for _, name := range append(files(t, "testdata/config/*.yaml"), example) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		err = j.bySchema(text)
		_, invalid := loadConfig(name, testEnv, nil, nil, (*walpost.Config).Validate)
		if err != nil && invalid == nil {
			t.Errorf("%s: the schema refuses what is valid: %v", name, err)
		}
	}
}
