// Package convert makes a walpost configuration from a configuration of Debezium: a Kafka Connect
// connector, Debezium Server's application.properties, or a Strimzi KafkaConnector.
//
// It is pure: it opens no file and makes no connection. Every option of the input has at least one
// line in the report. The value of an option that may hold a secret is never in the configuration,
// the report or an error.
package convert

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/conf"
)

// Options are facts that the input does not have.
type Options struct {
	Format input.Format
	// Worker is the text of the worker's properties. Its converters and its producer count if the
	// connector has none.
	Worker []byte
	// Tables replace the connector's regular expressions for tables.
	Tables []string
	// Catalog has the tables of the database, or is nil if nobody has asked the server.
	Catalog []CatalogTable
	// Fresh means that the connector has never run, so walpost creates the slot and makes the
	// snapshot.
	Fresh bool
}

// A Verdict is the result for one option.
type Verdict string

// The verdicts. Differs is a difference from Debezium that no option causes. It does not fail a
// conversion.
const (
	Mapped      Verdict = "mapped"
	NotNeeded   Verdict = "not needed"
	Differs     Verdict = "differs"
	Unsupported Verdict = "unsupported"
)

// A Finding is one line of the report. Text never holds a value that may be secret.
type Finding struct {
	Option  string
	Default bool // the input does not have the option, so Debezium's default counts
	Verdict Verdict
	Text    string
	where   int // the place in the report, which has the input's order
}

// A Result is a configuration and its report.
type Result struct {
	YAML   []byte // nil if there is no configuration: another connector, or no table
	Report []Finding

	origin map[string]string // the option of a field
}

// Refuse adds walpost's own error about a field of the configuration to the report, under the
// option that the field comes from. The file needs no entry for it, because walpost refuses the
// field itself.
func (r *Result) Refuse(field, text string) {
	option := field
	for at := field; at != ""; {
		if name, ok := r.origin[at]; ok {
			option = name
			break
		}
		i := strings.LastIndexAny(at, ".[")
		at = at[:max(i, 0)]
	}
	text = field + ": " + text
	for i := range r.Report {
		if f := &r.Report[i]; f.Option == option && f.Verdict == Mapped {
			f.Verdict, f.Text = Unsupported, text
			return
		}
	}
	r.Report = append(r.Report, Finding{Option: option, Verdict: Unsupported, Text: text})
}

// Unsupported reports whether an option of the input has no equivalent in the configuration.
func (r *Result) Unsupported() bool {
	return slices.ContainsFunc(r.Report, func(f Finding) bool { return f.Verdict == Unsupported })
}

// Convert reads text and returns the configuration with its report, or an *input.SyntaxError.
func Convert(text []byte, o Options) (*Result, error) {
	in, err := input.Read(text, o.Format)
	if err != nil {
		return nil, err
	}
	if len(o.Worker) > 0 {
		if in.Format == input.Server {
			return nil, &input.SyntaxError{Text: "Debezium Server has no worker: leave --worker out"}
		}
		if err := in.ReadWorker(o.Worker); err != nil {
			return nil, err
		}
	}
	r := &report{in: in, done: map[string]bool{}, origin: map[string]string{}}
	providers(r)
	cloud(r)
	r.noWorker = len(o.Worker) == 0 && in.Format != input.Server && !r.managed
	renameOld(r)
	for _, pair := range exclusive {
		if in.Has(pair[0]) && in.Has(pair[1]) {
			return nil, &input.SyntaxError{Line: in.ByName[pair[1]].Line, Text: fmt.Sprintf("%s and %s contradict each other: write only one of them", in.Shown(pair[0]), in.Shown(pair[1]))}
		}
	}
	w := all(r, o)
	rest(r)
	sort.SliceStable(r.found, func(i, j int) bool { return r.found[i].where < r.found[j].where })
	result := &Result{Report: r.found, origin: r.origin}
	if w != nil {
		result.YAML = file(r.found, w.b.Bytes())
	}
	return result, nil
}

// exclusive are pairs of options that Debezium refuses together.
var exclusive = [][2]string{
	{"table.include.list", "table.exclude.list"},
	{"schema.include.list", "schema.exclude.list"},
	{"column.include.list", "column.exclude.list"},
	{"message.prefix.include.list", "message.prefix.exclude.list"},
}

// A report reads the options of the input, and collects what becomes of each.
type report struct {
	in       *input.Options
	old      bool // the input is for a Debezium before 2.0
	managed  bool // the input is for Confluent Cloud
	noWorker bool // options of the worker may count that are not given
	done     map[string]bool
	found    []Finding
	origin   map[string]string // the option of a field
}

// A writer writes the sections of walpost.yaml.
type writer struct {
	*report
	document
	chain *chain

	fresh   bool   // the connector has never run
	updates bool   // the connector publishes updates
	headers string // the header converter
	schemas bool   // a converter writes schemas

	registry registrySection
}

// all converts in the order of the configuration. It returns nil if there is no configuration to write.
func all(r *report, o Options) *writer {
	if !class(r) {
		for _, e := range r.in.List {
			if !r.done[e.Name] {
				r.idle(e.Name, "walpost has not examined this option, because there is nothing to convert: see %s", r.in.Shown(input.ClassOption))
			}
		}
		return nil
	}
	c := &chain{report: r, captured: capturedTables(r, o), predicates: map[string]bool{}}
	router := c.transforms()
	w := &writer{report: r, chain: c, fresh: o.Fresh}
	writeSource(w)
	if router {
		writeRouter(w)
	}
	writeRecords(w)
	writeRegistry(w)
	writeKafka(w)
	writeDelivery(w)
	differences(w)
	if !router || len(c.tables) == 0 {
		return nil
	}
	return w
}

const postgres = "io.debezium.connector.postgresql.PostgresConnector" // Connect knows it by two short names, too

func class(r *report) bool {
	name, ok := r.literal(input.ClassOption)
	switch {
	case !ok && r.in.Has(input.ClassOption):
		return false
	case !ok:
		r.bad(input.ClassOption, "is required: %s", postgres)
		return false
	case r.managed, name == postgres, name == "PostgresConnector", name == "Postgres", name == postgres+"Task":
		r.mapped(input.ClassOption, "", "walpost reads Postgres")
		return true
	}
	r.bad(input.ClassOption, "%s: walpost replaces %s only", name, postgres)
	return false
}

// add adds one line to the report. option is the name in the connector.
func (r *report) add(v Verdict, option string, fallback bool, format string, args ...any) {
	fallback = fallback && !strings.HasPrefix(option, input.Workers)
	f := Finding{Option: r.in.Shown(option), Default: fallback, Verdict: v, Text: input.Printable(fmt.Sprintf(format, args...)), where: input.Last}
	if e := r.in.ByName[option]; e != nil {
		f.where, r.done[e.Name] = e.Order, true
	}
	if v == Differs {
		f.where++
	}
	r.done[option] = true
	r.found = append(r.found, f)
}

// mapped reports the field that an option became. An option that the input does not have is a
// default.
func (r *report) mapped(option, field, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		r.origin[field] = r.in.Shown(option)
		text = strings.TrimSuffix(field+": "+text, ": ")
	}
	r.add(Mapped, option, !r.in.Has(option), "%s", text)
}

// set writes a key of the present section, and reports the option that gives its value.
func (w *writer) set(option, key, value, comment string) {
	w.mapped(option, w.name+"."+key, "%s", value)
	w.put(key, scalar(dollars(value)), comment)
}

func (r *report) idle(option, format string, args ...any) {
	r.add(NotNeeded, option, !r.in.Has(option), format, args...)
}

func (r *report) bad(option, format string, args ...any) {
	r.add(Unsupported, option, !r.in.Has(option), format, args...)
}

// rest reports the options that have no line yet.
func rest(r *report) {
	for _, e := range r.in.List {
		owner := "" // names Java code, which has options under its names
		for _, option := range []string{"converters", "post.processors"} {
			list, _ := r.in.ByName[option].Plain()
			if slices.ContainsFunc(conf.SplitList(list), func(name string) bool { return strings.HasPrefix(e.Name, name+".") }) {
				owner = option
			}
		}
		switch {
		case r.done[e.Name]:
		case owner != "":
			r.idle(e.Name, "belongs to %s", r.in.Shown(owner))
		default:
			r.judge(e, e.Name)
		}
	}
}

// providerClasses are the known config providers by the last part of their class.
var providerClasses = map[string]string{
	"FileConfigProvider": "file", "DirectoryConfigProvider": "dir", "EnvVarConfigProvider": "env",
	"KubernetesSecretConfigProvider": "secrets", "KubernetesConfigMapConfigProvider": "configmaps",
}

// providers replaces the names that the worker gives to config providers by the names of their
// kinds.
func providers(r *report) {
	for _, e := range slices.Concat(r.in.List, r.in.Worker) {
		for _, p := range e.Parts {
			if p.Ref == nil {
				continue
			}
			if of := r.in.ByName[input.Workers+"config.providers."+p.Ref.Provider+".class"]; of != nil {
				class := strings.TrimSpace(of.Value)
				p.Ref.Provider = providerClasses[class[strings.LastIndexByte(class, '.')+1:]]
			}
		}
	}
}

// workerOnce is the worker's option for transactions.
const workerOnce = input.Workers + "exactly.once.source.support"

// writeDelivery maps Connect's policy for records that fail (with "all", Connect drops them), and its guarantee.
func writeDelivery(w *writer) {
	w.section("delivery", "")
	const tolerance, once = "errors.tolerance", "exactly.once.support"
	if v, ok := w.literal(tolerance); ok && strings.EqualFold(v, "all") {
		w.put("on_poison", "dead_letter", "Connect drops such a record")
		w.mapped(tolerance, "delivery.on_poison", "dead_letter")
		w.add(Differs, tolerance, false, "Connect drops a record that it cannot convert; walpost writes each event that can never be delivered to the topic walpost.dead_letter")
	}
	required, enabled := w.is(once, "required"), w.is(workerOnce, "enabled")
	if required {
		w.mapped(once, "delivery.guarantee", "exactly_once")
	}
	if enabled {
		w.mapped(workerOnce, "delivery.guarantee", "exactly_once")
	}
	if required || enabled {
		w.put("guarantee", "exactly_once", "as the worker does: for read_committed consumers")
	}
}

// is reports whether an option has a literal value, in any case.
func (w *writer) is(option, value string) bool {
	v, ok := w.literal(option)
	return ok && strings.EqualFold(v, value)
}

// differences reports differences from Debezium that no single option causes and that a consumer
// may notice.
func differences(w *writer) {
	heartbeat := w.or("heartbeat.interval.ms", "0")
	headers, ok := w.boolean("extended.headers.enabled", !w.old)
	topics := w.in.Has("topic.creation.default.partitions") || w.in.Has("topic.creation.default.replication.factor")
	server, timestamp := w.in.Format == input.Server, w.in.Has(w.chain.router+"table.field.event.timestamp")
	for _, d := range []struct {
		is         bool
		what, text string
	}{
		{!emits(w.report), "pg_logical_emit_message", "Debezium writes a record to <topic.prefix>.message for each message; walpost writes them with source.messages: {format: debezium}"},
		{emits(w.report), "pg_logical_emit_message", "walpost writes no record for a message that is not transactional, and ts_ms beside op is the commit time; a transform with a predicate applies to rows only"},
		{!topics, "missing topics", "the brokers may create them for Debezium; for walpost, set kafka.topics.create: true, or create each topic before its first event"},
		{heartbeat != "0", "heartbeat records", "Debezium writes them to __debezium-heartbeat.<topic.prefix>; walpost needs none and writes none"},
		{!timestamp, "timestamp", "without table.field.event.timestamp, the timestamp of a record is the commit time of its transaction, not the connector's clock"},
		{headers && ok, "__debezium.context.runId", "walpost keeps one UUID across restarts; Debezium creates a new one at each start"},
		{w.registry.groups, "subjects", "Apicurio's converter makes the record's namespace the group of its artifact; with walpost, the namespace is in the subject, as with Confluent's converter"},
		{w.old, "Debezium before 2.0", "walpost writes records as Debezium 3.6 does, and leaves a null key null: compare some records with walpost explain"},
		{server && strings.Contains(strings.ToLower(w.chain.placement), ":partition"), "partition", "Debezium Server's Kafka sink ignores the partition of a record; walpost writes it, as Kafka Connect does"},
		{server && timestamp, "timestamp", "Debezium Server's Kafka sink ignores the timestamp of a record; walpost writes it, as Kafka Connect does"},
	} {
		if d.is {
			w.found = append(w.found, Finding{Option: d.what, Verdict: Differs, Text: d.text, where: input.Last + 1})
		}
	}
}
