package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/conf"
)

// producer is the name of the producer's option that counts: the connector's producer.override.…, or
// the worker's producer.…. From the worker's own options, Connect uses only bootstrap.servers.
func producer(r *report, name string) string {
	override := "producer.override." + name
	for _, option := range []string{override, input.Workers + "producer." + name, input.Workers + name} {
		if r.in.Has(option) && (option != input.Workers+name || name == "bootstrap.servers") {
			return option
		}
	}
	return override
}

// workerNames are the names of what the worker decides, and what the user can do about it.
type workerNames struct{ where, brokers, security, compression, action string }

func namesOf(r *report) workerNames {
	if r.in.Format == input.Strimzi {
		return workerNames{"the KafkaConnect resource", "spec.bootstrapServers", "spec.tls or spec.authentication", "producer.compression.type in spec.config", "write it under kafka"}
	}
	return workerNames{"the worker", "bootstrap.servers", "producer.security.protocol", "producer.compression.type", "convert with --worker worker.properties"}
}

// writeKafka converts the section kafka and the options about delivery.
func writeKafka(w *writer) {
	w.section("kafka", "")
	judgeSink(w)
	writeBrokers(w)
	writeSecurity(w)
	compression := producer(w.report, "compression.type")
	if v, ok := w.literal(compression); ok {
		w.mapped(compression, "kafka.compression", "%s", v)
		w.put("compression", scalar(dollars(strings.ToLower(v))), "")
	} else {
		more := ""
		if names := namesOf(w.report); w.noWorker {
			more = fmt.Sprintf(", unless %s has %s: %s", names.where, names.compression, names.action)
		}
		w.mapped(compression, "kafka.compression", "none%s", more)
		w.put("compression", "none", "none is the producer's default; walpost's default is snappy")
	}
	writeTopics(w)
	for _, e := range w.in.Worker {
		name := strings.TrimPrefix(e.Name, input.Workers)
		which, rest, _ := strings.Cut(name, ".")
		switch override := "producer.override." + input.ProducerName(e.Name); {
		case w.done[e.Name], e.Name == workerOnce && w.is(e.Name, "enabled"): // writeDelivery reports the second one
		case which == "producer" && w.in.Has(override):
			w.idle(e.Name, "the connector's producer.override has priority")
		case which == "producer":
			w.judge(e, override)
		case !strings.HasPrefix(rest, "converter") || !slices.Contains(converted, which):
			w.judge(e, e.Name)
		case w.in.Has(which + ".converter"):
			w.idle(e.Name, "the connector has its own converter")
		default:
			w.idle(e.Name, "read with the connector's %s.converter", which)
		}
	}
}

// judgeSink converts the kind of Debezium Server's sink.
func judgeSink(w *writer) {
	const option = "debezium.sink.type"
	if w.in.Format != input.Server {
		return
	}
	switch v, ok := w.literal(option); {
	case ok && v == "kafka":
		w.mapped(option, "", "walpost writes to Kafka")
	case ok:
		w.bad(option, "%s: walpost writes to Kafka only: keep Debezium Server for this sink", v)
	case !w.in.Has(option):
		w.bad(option, "is required: kafka")
	}
}

var broker = regexp.MustCompile(`^[A-Za-z0-9._\[\]:-]+:[0-9]+$`)

func writeBrokers(w *writer) {
	const variable = "WALPOST_KAFKA_BROKERS"
	option := producer(w.report, "bootstrap.servers")
	value, known := w.in.ByName[option].Plain()
	switch {
	case w.in.Has(option) && known:
		var all []string
		for _, b := range conf.SplitList(value) {
			if _, after, ok := strings.Cut(b, "://"); ok {
				b = after // LISTENER://host:port
			}
			all = append(all, b)
			known = known && broker.MatchString(b)
		}
		if known {
			w.mapped(option, "kafka.brokers", "%s", strings.Join(all, ", "))
			w.put("brokers", list(all), "")
			return
		}
		w.bad(option, "must be host:port, host:port")
		w.put("brokers", "${"+variable+"}", "")
		return
	case w.in.Has(option):
		value, notes := variables(w.in.ByName[option].Parts, variable, same)
		w.note(notes...)
		w.mapped(option, "kafka.brokers", "%s", strings.Join(notes, "; "))
		w.put("brokers", scalar(value), "")
		return
	case w.in.Format == input.Server:
		w.bad("debezium.sink.kafka.producer.bootstrap.servers", "is required")
	case w.managed:
		w.add(Mapped, "bootstrap.servers", true, "kafka.brokers: set %s to the cluster's bootstrap server", variable)
	default:
		names := namesOf(w.report)
		w.add(Mapped, "bootstrap.servers", true, "kafka.brokers: %s has them in %s: set %s, or %s", names.where, names.brokers, variable, names.action)
	}
	w.put("brokers", "${"+variable+"}", "host:port,host:port as the worker's bootstrap.servers")
}

// saslLogin is a login that the user has to give.
const saslLogin = `username: "${WALPOST_KAFKA_SASL_USERNAME}", password: "${WALPOST_KAFKA_SASL_PASSWORD}"}`

// writeSecurity maps security.protocol and its options.
func writeSecurity(w *writer) {
	if w.managed {
		w.mapped("kafka.auth.mode", "kafka.sasl", "the login of Confluent Cloud: set WALPOST_KAFKA_SASL_USERNAME and WALPOST_KAFKA_SASL_PASSWORD to an API key and its secret")
		w.put("tls", "{}", "")
		w.put("sasl", "{mechanism: PLAIN, "+saslLogin, "an API key and its secret")
		return
	}
	option := producer(w.report, "security.protocol")
	protocol, ok := w.literal(option)
	protocol = cmp.Or(strings.ToUpper(protocol), "PLAINTEXT")
	if ok {
		w.mapped(option, "", "%s", protocol)
	} else if !w.in.Has(option) && w.noWorker {
		names := namesOf(w.report)
		w.mapped(option, "", "no TLS and no login, unless %s has %s: %s", names.where, names.security, names.action)
		w.note(fmt.Sprintf("The connector has no TLS and no login for Kafka. If %s has %s, %s.", names.where, names.security, names.action))
	}
	tls, login := strings.HasSuffix(protocol, "SSL"), strings.HasPrefix(protocol, "SASL_")
	if tls {
		writeTLS(w)
	}
	if login {
		writeSASL(w)
	}
	if !slices.Contains([]string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}, protocol) {
		w.bad(option, "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (got %s)", protocol)
	}
	for _, e := range slices.Concat(w.in.List, w.in.Worker) {
		name := input.ProducerName(e.Name)
		if !w.done[e.Name] && (!login && strings.HasPrefix(name, "sasl.") || !tls && strings.HasPrefix(name, "ssl.")) {
			w.idle(e.Name, "security.protocol %s does not use this option", protocol)
		}
	}
}

// pemFile is the path of a store whose type is PEM. It reports other stores.
func pemFile(w *writer, which, pkcs12 string) (string, bool) {
	location, kind := producer(w.report, "ssl."+which+".location"), producer(w.report, "ssl."+which+".type")
	if !w.in.Has(location) {
		return "", false
	}
	is, typed := w.literal(kind)
	if typed {
		w.idle(kind, "walpost reads PEM files")
	}
	if !strings.EqualFold(is, "PEM") {
		w.bad(location, "this is a Java store, and walpost reads PEM files: keytool -importkeystore -srckeystore … -destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 %s -out %s.pem, and write the name of the PEM file under kafka.tls", pkcs12, which)
		return "", false
	}
	value, notes := variables(w.in.ByName[location].Parts, "WALPOST_KAFKA_"+strings.ToUpper(which), same)
	w.note(notes...)
	w.mapped(location, "kafka.tls", "%s", value)
	return flow(value), true
}

func writeTLS(w *writer) {
	var keys []string
	if file, ok := pemFile(w, "truststore", "-cacerts -nokeys"); ok {
		keys = append(keys, "ca_file: "+file)
	}
	if file, ok := pemFile(w, "keystore", "-nodes"); ok {
		keys = append(keys, "cert_file: "+file, "key_file: "+file)
	}
	w.put("tls", "{"+strings.Join(keys, ", ")+"}", "")
}

var jaasField = regexp.MustCompile(`(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))`)

var jaasEscape = regexp.MustCompile(`\\(.)`)

// bareLogin is a JAAS login without options.
var bareLogin = regexp.MustCompile(`^\s*[A-Za-z0-9_.$]+\s+[A-Za-z]+\s*;?\s*$`)

// writeSASL maps the mechanism and the login in sasl.jaas.config.
func writeSASL(w *writer) {
	option, jaas := producer(w.report, "sasl.mechanism"), producer(w.report, "sasl.jaas.config")
	mechanism, ok := w.literal(option)
	if !ok {
		if !w.in.Has(option) {
			w.bad(option, "is required: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or AWS_MSK_IAM")
		}
		return
	}
	switch mechanism = strings.ToUpper(mechanism); mechanism {
	case "AWS_MSK_IAM":
		w.mapped(option, "kafka.sasl.mechanism", "%s; the keys come from the AWS_… environment", mechanism)
		w.put("sasl", "{mechanism: "+mechanism+"}", "")
		switch {
		case !w.in.Has(jaas):
		case bareLogin.MatchString(w.in.ByName[jaas].Value):
			w.idle(jaas, "the keys come from the AWS_… environment")
		default:
			w.bad(jaas, "the options name a role or a profile, and walpost supports neither: give the keys of the role in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or kafka.sasl.access_key and its secret, and leave the options out")
		}
		return
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		w.bad(option, "%s: walpost converts PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and AWS_MSK_IAM; for OAUTHBEARER write kafka.sasl.token_file by hand", mechanism)
		if w.in.Has(jaas) {
			w.bad(jaas, "convert does not support this option with this mechanism")
		}
		return
	}
	w.mapped(option, "kafka.sasl.mechanism", "%s", mechanism)
	if !w.in.Has(jaas) {
		w.bad(jaas, "is required: it contains the user's name and password")
		return
	}
	fields := jaasFields(w.in.ByName[jaas])
	if fields["username"] == nil || fields["password"] == nil {
		w.bad(jaas, "the login has no user name and password: write kafka.sasl.username and kafka.sasl.password_file")
		w.put("sasl", "{mechanism: "+mechanism+", "+saslLogin, "")
		return
	}
	user, notes := variables(fields["username"], "WALPOST_KAFKA_SASL_USERNAME", same)
	password, note := secretOf(fields["password"], "WALPOST_KAFKA_SASL_PASSWORD", true)
	key := "password"
	if note == "" {
		key, note, password = "password_file", "the password from "+password, dollars(password)
	}
	notes = append(notes, note)
	w.note(notes...)
	w.mapped(jaas, "kafka.sasl", "username, and %s: %s", key, strings.Join(notes, "; "))
	w.put("sasl", fmt.Sprintf("{mechanism: %s, username: %s, %s: %s}", mechanism, flow(user), key, flow(password)), "")
}

// jaasFields finds name and password in a login, with the references in them.
func jaasFields(e *input.Entry) map[string][]input.Part {
	var b strings.Builder // marks replace references, because their text must not count as syntax of the login
	for i, p := range e.Parts {
		if p.Ref == nil {
			b.WriteString(strings.ReplaceAll(p.Text, "\x00", ""))
		} else {
			fmt.Fprintf(&b, "\x00%d\x00", i)
		}
	}
	fields := map[string][]input.Part{}
	for _, m := range jaasField.FindAllStringSubmatch(b.String(), -1) {
		if strings.ContainsAny(m[4], `="'`) {
			return nil // not the syntax of a login: the name found may be the password
		}
		text := jaasEscape.ReplaceAllString(m[2]+m[3], "$1") + m[4]
		var parts []input.Part
		for i, piece := range strings.Split(text, "\x00") {
			if i%2 == 1 {
				n, _ := strconv.Atoi(piece)
				parts = append(parts, e.Parts[n])
			} else if piece != "" {
				parts = append(parts, input.Part{Text: piece})
			}
		}
		if len(parts) > 0 && fields[m[1]] == nil {
			fields[m[1]] = parts
		}
	}
	return fields
}

// writeTopics maps Connect's default group. Without it, Connect leaves the creation of topics to the
// brokers, and walpost waits for a missing topic.
func writeTopics(w *writer) {
	keys := []string{"create: true"}
	for _, o := range []struct{ option, key string }{
		{"topic.creation.default.partitions", "partitions"}, {"topic.creation.default.replication.factor", "replication_factor"},
	} {
		if n, ok := w.number(o.option); ok {
			keys = append(keys, fmt.Sprintf("%s: %d", o.key, n))
			w.mapped(o.option, "kafka.topics."+o.key, "%d", n)
		}
	}
	if len(keys) > 1 {
		w.put("topics", "{"+strings.Join(keys, ", ")+"}", "")
	}
}
