package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/convert/input"
	"github.com/walpost/walpost/internal/conf"
)

// producer is the name of the producer's option that counts: the connector's producer.override.…, or
// the worker's producer.…. From the worker's own options, Connect uses only bootstrap.servers.
func (c *conversion) producer(name string) string {
	override := "producer.override." + name
	for _, option := range []string{override, input.Workers + "producer." + name, input.Workers + name} {
		if c.in.Has(option) && (option != input.Workers+name || name == "bootstrap.servers") {
			return option
		}
	}
	return override
}

// noWorker reports whether options of the worker may count that are not given.
func (c *conversion) noWorker() bool {
	return len(c.o.Worker) == 0 && c.in.Format != input.Server && !c.managed
}

// workerFields are the names of what the worker decides, and what the user can do about it.
type workerFields struct{ where, brokers, security, compression, action string }

func (c *conversion) workerFields() workerFields {
	if c.in.Format == input.Strimzi {
		return workerFields{"the KafkaConnect resource", "spec.bootstrapServers", "spec.tls or spec.authentication", "producer.compression.type in spec.config", "write it under kafka"}
	}
	return workerFields{"the worker", "bootstrap.servers", "producer.security.protocol", "producer.compression.type", "convert with --worker worker.properties"}
}

// kafka converts the section kafka and the options about delivery.
func (c *conversion) kafka() {
	c.out.section("kafka", "")
	c.sink()
	c.brokers()
	c.security()
	compression := c.producer("compression.type")
	if v, ok := c.literal(compression); ok {
		c.mapped(compression, "kafka.compression", "%s", v)
		c.out.put("compression", scalar(dollars(strings.ToLower(v))), "")
	} else {
		more := ""
		if w := c.workerFields(); c.noWorker() {
			more = fmt.Sprintf(", unless %s has %s: %s", w.where, w.compression, w.action)
		}
		c.mapped(compression, "kafka.compression", "none%s", more)
		c.out.put("compression", "none", "none is the producer's default; walpost's default is snappy")
	}
	c.topicCreation()
	for _, e := range c.in.Worker {
		name := strings.TrimPrefix(e.Name, input.Workers)
		which, rest, _ := strings.Cut(name, ".")
		switch override := "producer.override." + input.ProducerName(e.Name); {
		case c.done[e.Name]:
		case which == "producer" && c.in.Has(override):
			c.idle(e.Name, "the connector's producer.override has priority")
		case which == "producer":
			c.judge(e, override)
		case !strings.HasPrefix(rest, "converter") || !slices.Contains(converted, which):
			c.judge(e, e.Name)
		case c.in.Has(which + ".converter"):
			c.idle(e.Name, "the connector has its own converter")
		default:
			c.idle(e.Name, "read with the connector's %s.converter", which)
		}
	}
}

// sink converts the kind of Debezium Server's sink.
func (c *conversion) sink() {
	const option = "debezium.sink.type"
	if c.in.Format != input.Server {
		return
	}
	switch v, ok := c.literal(option); {
	case ok && v == "kafka":
		c.mapped(option, "", "walpost writes to Kafka")
	case ok:
		c.bad(option, "%s: walpost writes to Kafka only: keep Debezium Server for this sink", v)
	case !c.in.Has(option):
		c.bad(option, "is required: kafka")
	}
}

var broker = regexp.MustCompile(`^[A-Za-z0-9._\[\]:-]+:[0-9]+$`)

func (c *conversion) brokers() {
	const variable = "WALPOST_KAFKA_BROKERS"
	option := c.producer("bootstrap.servers")
	value, known := c.in.ByName[option].Plain()
	switch {
	case c.in.Has(option) && known:
		var all []string
		for _, b := range conf.SplitList(value) {
			if _, after, ok := strings.Cut(b, "://"); ok {
				b = after // LISTENER://host:port
			}
			all = append(all, b)
			known = known && broker.MatchString(b)
		}
		if known {
			c.mapped(option, "kafka.brokers", "%s", strings.Join(all, ", "))
			c.out.put("brokers", list(all), "")
			return
		}
		c.bad(option, "must be host:port, host:port")
		c.out.put("brokers", "${"+variable+"}", "")
		return
	case c.in.Has(option):
		value, notes := c.variables(c.in.ByName[option].Parts, variable, same)
		c.out.note(notes...)
		c.mapped(option, "kafka.brokers", "%s", strings.Join(notes, "; "))
		c.out.put("brokers", scalar(value), "")
		return
	case c.in.Format == input.Server:
		c.bad("debezium.sink.kafka.producer.bootstrap.servers", "is required")
	case c.managed:
		c.add(Mapped, "bootstrap.servers", true, "kafka.brokers: set %s to the cluster's bootstrap server", variable)
	default:
		w := c.workerFields()
		c.add(Mapped, "bootstrap.servers", true, "kafka.brokers: %s has them in %s: set %s, or %s", w.where, w.brokers, variable, w.action)
	}
	c.out.put("brokers", "${"+variable+"}", "host:port,host:port as the worker's bootstrap.servers")
}

// saslLogin is a login that the user has to give.
const saslLogin = `username: "${WALPOST_KAFKA_SASL_USERNAME}", password: "${WALPOST_KAFKA_SASL_PASSWORD}"}`

// security maps security.protocol and its options.
func (c *conversion) security() {
	if c.managed {
		c.mapped("kafka.auth.mode", "kafka.sasl", "the login of Confluent Cloud: set WALPOST_KAFKA_SASL_USERNAME and WALPOST_KAFKA_SASL_PASSWORD to an API key and its secret")
		c.out.put("tls", "{}", "")
		c.out.put("sasl", "{mechanism: PLAIN, "+saslLogin, "an API key and its secret")
		return
	}
	option := c.producer("security.protocol")
	protocol, ok := c.literal(option)
	protocol = cmp.Or(strings.ToUpper(protocol), "PLAINTEXT")
	if ok {
		c.mapped(option, "", "%s", protocol)
	} else if !c.in.Has(option) && c.noWorker() {
		w := c.workerFields()
		c.mapped(option, "", "no TLS and no login, unless %s has %s: %s", w.where, w.security, w.action)
		c.out.note(fmt.Sprintf("The connector has no TLS and no login for Kafka. If %s has %s, %s.", w.where, w.security, w.action))
	}
	tls, login := strings.HasSuffix(protocol, "SSL"), strings.HasPrefix(protocol, "SASL_")
	if tls {
		c.tls()
	}
	if login {
		c.sasl()
	}
	if !slices.Contains([]string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}, protocol) {
		c.bad(option, "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (got %s)", protocol)
	}
	for _, e := range slices.Concat(c.in.List, c.in.Worker) {
		name := input.ProducerName(e.Name)
		if !c.done[e.Name] && (!login && strings.HasPrefix(name, "sasl.") || !tls && strings.HasPrefix(name, "ssl.")) {
			c.idle(e.Name, "security.protocol %s does not use this option", protocol)
		}
	}
}

// pemFile is the path of a store whose type is PEM. It reports other stores.
func (c *conversion) pemFile(which, pkcs12 string) (string, bool) {
	location, kind := c.producer("ssl."+which+".location"), c.producer("ssl."+which+".type")
	if !c.in.Has(location) {
		return "", false
	}
	is, typed := c.literal(kind)
	if typed {
		c.idle(kind, "walpost reads PEM files")
	}
	if !strings.EqualFold(is, "PEM") {
		c.bad(location, "this is a Java store, and walpost reads PEM files: keytool -importkeystore -srckeystore … -destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 %s -out %s.pem, and write the name of the PEM file under kafka.tls", pkcs12, which)
		return "", false
	}
	value, notes := c.variables(c.in.ByName[location].Parts, "WALPOST_KAFKA_"+strings.ToUpper(which), same)
	c.out.note(notes...)
	c.mapped(location, "kafka.tls", "%s", value)
	return flow(value), true
}

func (c *conversion) tls() {
	var keys []string
	if file, ok := c.pemFile("truststore", "-cacerts -nokeys"); ok {
		keys = append(keys, "ca_file: "+file)
	}
	if file, ok := c.pemFile("keystore", "-nodes"); ok {
		keys = append(keys, "cert_file: "+file, "key_file: "+file)
	}
	c.out.put("tls", "{"+strings.Join(keys, ", ")+"}", "")
}

var jaasField = regexp.MustCompile(`(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))`)

var jaasEscape = regexp.MustCompile(`\\(.)`)

// bareLogin is a JAAS login without options.
var bareLogin = regexp.MustCompile(`^\s*[A-Za-z0-9_.$]+\s+[A-Za-z]+\s*;?\s*$`)

// sasl maps the mechanism and the login in sasl.jaas.config.
func (c *conversion) sasl() {
	option, jaas := c.producer("sasl.mechanism"), c.producer("sasl.jaas.config")
	mechanism, ok := c.literal(option)
	if !ok {
		if !c.in.Has(option) {
			c.bad(option, "is required: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or AWS_MSK_IAM")
		}
		return
	}
	switch mechanism = strings.ToUpper(mechanism); mechanism {
	case "AWS_MSK_IAM":
		c.mapped(option, "kafka.sasl.mechanism", "%s; the keys come from the AWS_… environment", mechanism)
		c.out.put("sasl", "{mechanism: "+mechanism+"}", "")
		switch {
		case !c.in.Has(jaas):
		case bareLogin.MatchString(c.in.ByName[jaas].Value):
			c.idle(jaas, "the keys come from the AWS_… environment")
		default:
			c.bad(jaas, "the options name a role or a profile, and walpost supports neither: give the keys of the role in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or kafka.sasl.access_key and its secret, and leave the options out")
		}
		return
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		c.bad(option, "%s: walpost converts PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and AWS_MSK_IAM; for OAUTHBEARER write kafka.sasl.token_file by hand", mechanism)
		if c.in.Has(jaas) {
			c.bad(jaas, "convert does not support this option with this mechanism")
		}
		return
	}
	c.mapped(option, "kafka.sasl.mechanism", "%s", mechanism)
	if !c.in.Has(jaas) {
		c.bad(jaas, "is required: it contains the user's name and password")
		return
	}
	fields := jaasFields(c.in.ByName[jaas])
	if fields["username"] == nil || fields["password"] == nil {
		c.bad(jaas, "the login has no user name and password: write kafka.sasl.username and kafka.sasl.password_file")
		c.out.put("sasl", "{mechanism: "+mechanism+", "+saslLogin, "")
		return
	}
	user, notes := c.variables(fields["username"], "WALPOST_KAFKA_SASL_USERNAME", same)
	password, note := secretOf(fields["password"], "WALPOST_KAFKA_SASL_PASSWORD", true)
	key := "password"
	if note == "" {
		key, note, password = "password_file", "the password from "+password, dollars(password)
	}
	notes = append(notes, note)
	c.out.note(notes...)
	c.mapped(jaas, "kafka.sasl", "username, and %s: %s", key, strings.Join(notes, "; "))
	c.out.put("sasl", fmt.Sprintf("{mechanism: %s, username: %s, %s: %s}", mechanism, flow(user), key, flow(password)), "")
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

// topicCreation maps Connect's default group. Without it, Connect leaves the creation of topics to the
// brokers, and walpost waits for a missing topic.
func (c *conversion) topicCreation() {
	keys := []string{"create: true"}
	for _, o := range []struct{ option, key string }{
		{"topic.creation.default.partitions", "partitions"}, {"topic.creation.default.replication.factor", "replication_factor"},
	} {
		if n, ok := c.number(o.option); ok {
			keys = append(keys, fmt.Sprintf("%s: %d", o.key, n))
			c.mapped(o.option, "kafka.topics."+o.key, "%d", n)
		}
	}
	if len(keys) > 1 {
		c.out.put("topics", "{"+strings.Join(keys, ", ")+"}", "")
	}
}
