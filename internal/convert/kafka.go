package convert

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A producer is the origin of an option of the Kafka producer: the connector's producer.override.…,
// or the worker's producer.….
type producer struct {
	from   *options
	option string // in from
	label  string // in the report
}

// producerOption finds an option of the producer. It has priority in the connector. From the
// worker's own options, Connect uses only bootstrap.servers.
func (c *conversion) producerOption(name string) (producer, bool) {
	if c.in.has("producer.override." + name) {
		return producer{c.in, "producer.override." + name, "producer.override." + name}, true
	}
	if c.worker != nil {
		option := "producer." + name
		if name == "bootstrap.servers" && !c.worker.has(option) {
			option = name
		}
		if c.worker.has(option) {
			return producer{c.worker, option, workers + option}, true
		}
	}
	return producer{option: "producer.override." + name, label: "producer.override." + name}, false
}

func (p producer) entry() *entry { return p.from.byName[p.option] }

// producerValue is the literal value of an option of the producer. It reports a value that comes
// from a provider.
func (c *conversion) producerValue(name string) (string, producer, bool) {
	p, ok := c.producerOption(name)
	if !ok {
		return "", p, false
	}
	value, ok := c.literalOf(p.entry(), p.label)
	return value, p, ok
}

// noWorker reports whether options of the worker may count that are not given.
func (c *conversion) noWorker() bool {
	return c.worker == nil && c.in.format != Server && !c.managed
}

// workerFields are the names of what the worker decides, and what the user can do about it.
type workerFields struct{ where, brokers, security, compression, action string }

func (c *conversion) workerFields() workerFields {
	if c.in.format == Strimzi {
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
	if v, p, ok := c.producerValue("compression.type"); ok {
		c.mapped(p.label, "kafka.compression", "%s", printable(v))
		c.out.put("compression", scalar(dollars(strings.ToLower(v))), "")
	} else {
		more := ""
		if c.noWorker() {
			w := c.workerFields()
			more = fmt.Sprintf(", unless %s has %s: %s", w.where, w.compression, w.action)
		}
		c.mapped(p.label, "kafka.compression", "none%s", more)
		c.out.put("compression", "none", "none is the producer's default; walpost's default is snappy")
	}
	c.topicCreation()
	if v, ok := c.literal("exactly.once.support"); ok {
		if strings.EqualFold(v, "requested") {
			c.idle("exactly.once.support", "walpost delivers at least once, and duplicates come only in the cases that the README names")
		} else {
			c.bad("exactly.once.support", "walpost delivers at least once; delivery.guarantee: exactly_once is not supported yet")
		}
	}
	if c.worker == nil {
		return
	}
	for _, e := range c.worker.list {
		label := workers + e.name
		if c.done[label] {
			continue
		}
		if name, ok := strings.CutPrefix(e.name, "producer."); ok {
			if c.in.has("producer.override." + name) {
				c.idle(label, "the connector's producer.override has priority")
				continue
			}
			value, known := e.plain()
			v, text := judge("producer.override."+name, value, known)
			c.add(v, label, false, "%s", text)
			continue
		}
		switch {
		case strings.HasPrefix(e.name, "key.converter"), strings.HasPrefix(e.name, "value.converter"), strings.HasPrefix(e.name, "header.converter"):
			which, _, _ := strings.Cut(e.name, ".")
			if c.in.has(which + ".converter") {
				c.idle(label, "the connector has its own converter")
			} else {
				c.idle(label, "read with the connector's %s.converter", which)
			}
		case e.name == "exactly.once.source.support" && strings.EqualFold(strings.TrimSpace(e.value), "enabled"):
			c.bad(label, "with this option each connector delivers exactly once; walpost's delivery.guarantee: exactly_once is not supported yet")
		default:
			c.idle(label, "the option belongs to Kafka Connect's worker")
		}
	}
}

// sink converts the kind of Debezium Server's sink.
func (c *conversion) sink() {
	if c.in.format != Server {
		return
	}
	const option = "debezium.sink.type"
	switch v, ok := c.literal(option); {
	case ok && v == "kafka":
		c.mapped(option, "", "walpost writes to Kafka")
	case ok:
		c.bad(option, "%s: walpost writes to Kafka only: keep Debezium Server for this sink", printable(v))
	case !c.in.has(option):
		c.bad(option, "is required: kafka")
	}
}

var broker = regexp.MustCompile(`^[A-Za-z0-9._\[\]:-]+:[0-9]+$`)

func (c *conversion) brokers() {
	const variable = "WALPOST_KAFKA_BROKERS"
	p, ok := c.producerOption("bootstrap.servers")
	if !ok {
		w := c.workerFields()
		text := fmt.Sprintf("%s has them in %s: set %s, or %s", w.where, w.brokers, variable, w.action)
		if c.managed {
			text = "set " + variable + " to the cluster's bootstrap server"
		}
		if c.in.format == Server {
			c.bad("debezium.sink.kafka.producer.bootstrap.servers", "is required")
		} else {
			c.add(Mapped, "bootstrap.servers", true, "kafka.brokers: %s", text)
		}
		c.out.put("brokers", "${"+variable+"}", "host:port,host:port as the worker's bootstrap.servers")
		return
	}
	for _, part := range p.entry().parts {
		if part.ref != nil {
			value, notes := c.variables(p.entry(), variable, same)
			for _, n := range notes {
				c.out.note("%s", n)
			}
			c.mapped(p.label, "kafka.brokers", "%s", printable(strings.Join(notes, "; ")))
			c.out.put("brokers", scalar(value), "")
			return
		}
	}
	var all []string
	for _, b := range names(p.entry().text()) {
		if _, after, ok := strings.Cut(b, "://"); ok {
			b = after // LISTENER://host:port
		}
		if !broker.MatchString(b) {
			c.bad(p.label, "must be host:port, host:port")
			c.out.put("brokers", "${"+variable+"}", "")
			return
		}
		all = append(all, b)
	}
	c.mapped(p.label, "kafka.brokers", "%s", strings.Join(all, ", "))
	c.out.put("brokers", list(all), "")
}

// security maps security.protocol and its options.
func (c *conversion) security() {
	if c.managed {
		c.mapped("kafka.auth.mode", "kafka.sasl", "the login of Confluent Cloud: set WALPOST_KAFKA_SASL_USERNAME and WALPOST_KAFKA_SASL_PASSWORD to an API key and its secret")
		c.out.put("tls", "{}", "")
		c.out.put("sasl", `{mechanism: PLAIN, username: "${WALPOST_KAFKA_SASL_USERNAME}", password: "${WALPOST_KAFKA_SASL_PASSWORD}"}`, "an API key and its secret")
		return
	}
	protocol, p, ok := c.producerValue("security.protocol")
	if !ok {
		protocol = "PLAINTEXT"
		if _, there := c.producerOption("security.protocol"); !there && c.noWorker() {
			w := c.workerFields()
			c.mapped(p.label, "", "no TLS and no login, unless %s has %s: %s", w.where, w.security, w.action)
			c.out.note("The connector has no TLS and no login for Kafka. If %s has %s, %s.", w.where, w.security, w.action)
		}
	} else {
		c.mapped(p.label, "", "%s", printable(strings.ToUpper(protocol)))
	}
	protocol = strings.ToUpper(protocol)
	if strings.HasSuffix(protocol, "SSL") {
		c.tls()
	}
	if strings.HasPrefix(protocol, "SASL_") {
		c.sasl()
	}
	switch protocol {
	case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
	default:
		c.bad(p.label, "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (got %s)", printable(protocol))
	}
	for _, at := range c.producerAll() {
		switch {
		case c.done[at.label]:
		case strings.HasPrefix(at.name, "sasl.") && !strings.HasPrefix(protocol, "SASL_"), strings.HasPrefix(at.name, "ssl.") && !strings.HasSuffix(protocol, "SSL"):
			c.idle(at.label, "security.protocol %s does not use this option", protocol)
		}
	}
}

type producerAt struct{ name, label string }

// producerAll is every option of the producer in the input.
func (c *conversion) producerAll() []producerAt {
	var all []producerAt
	for _, e := range c.in.list {
		if name, ok := strings.CutPrefix(e.name, "producer.override."); ok {
			all = append(all, producerAt{name, e.name})
		}
	}
	if c.worker != nil {
		for _, e := range c.worker.list {
			if name, ok := strings.CutPrefix(e.name, "producer."); ok {
				all = append(all, producerAt{name, workers + e.name})
			}
		}
	}
	return all
}

// pemFile is the path of a store whose type is PEM. It reports other stores.
func (c *conversion) pemFile(which string) (string, bool) {
	option := "ssl." + which + ".location"
	p, there := c.producerOption(option)
	if !there {
		return "", false
	}
	kind, kp, typed := c.producerValue("ssl." + which + ".type")
	if typed {
		c.idle(kp.label, "walpost reads PEM files")
	}
	if !strings.EqualFold(kind, "PEM") {
		what := "-cacerts -nokeys"
		if which == "keystore" {
			what = "-nodes"
		}
		c.bad(p.label, "this is a Java store, and walpost reads PEM files: keytool -importkeystore -srckeystore … -destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 %s -out %s.pem, and write the name of the PEM file under kafka.tls", what, which)
		return "", false
	}
	value, notes := c.variables(p.entry(), "WALPOST_KAFKA_"+strings.ToUpper(which), same)
	for _, n := range notes {
		c.out.note("%s", n)
	}
	c.mapped(p.label, "kafka.tls", "%s", printable(value))
	return value, true
}

func (c *conversion) tls() {
	var keys []string
	if file, ok := c.pemFile("truststore"); ok {
		keys = append(keys, "ca_file: "+flow(file))
	}
	if file, ok := c.pemFile("keystore"); ok {
		keys = append(keys, "cert_file: "+flow(file), "key_file: "+flow(file))
	}
	for _, name := range []string{"ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"} {
		if p, ok := c.producerOption(name); ok {
			c.bad(p.label, "write the value to a file, and write the name of the file under kafka.tls")
		}
	}
	if p, ok := c.producerOption("ssl.key.password"); ok {
		c.bad(p.label, "walpost reads keys without a password: openssl pkey -in key.pem -out plain.pem, readable by walpost only")
	}
	if p, ok := c.producerOption("ssl.keystore.password"); ok {
		c.idle(p.label, "a PEM file has no password")
	}
	if p, ok := c.producerOption("ssl.truststore.password"); ok {
		c.idle(p.label, "a PEM file has no password")
	}
	const check = "ssl.endpoint.identification.algorithm"
	for _, at := range c.producerAll() {
		if at.name != check || c.done[at.label] {
			continue
		}
		if v, _, ok := c.producerValue(check); ok && strings.EqualFold(v, "https") {
			c.idle(at.label, "walpost always compares the name of a broker with its certificate")
		} else if !c.done[at.label] {
			c.bad(at.label, "the empty value turns off the comparison of a broker's name with its certificate, and walpost always compares them: write kafka.tls.server_name, or give the brokers certificates with their names")
		}
	}
	c.out.put("tls", "{"+strings.Join(keys, ", ")+"}", "")
}

// flow is a text inside braces in YAML.
func flow(s string) string {
	if q := scalar(s); q != s || !strings.ContainsAny(s, ",{}[]") {
		return q
	}
	return `"` + s + `"`
}

var jaasField = regexp.MustCompile(`(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))`)

// bareLogin is a JAAS login without options.
var bareLogin = regexp.MustCompile(`^\s*[A-Za-z0-9_.$]+\s+[A-Za-z]+\s*;?\s*$`)

// sasl maps the mechanism and the login in sasl.jaas.config.
func (c *conversion) sasl() {
	mechanism, p, ok := c.producerValue("sasl.mechanism")
	if !ok {
		c.bad(p.label, "is required: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or AWS_MSK_IAM")
		return
	}
	jaas, hasJaas := c.producerOption("sasl.jaas.config")
	switch mechanism = strings.ToUpper(mechanism); mechanism {
	case "AWS_MSK_IAM":
		c.mapped(p.label, "kafka.sasl.mechanism", "%s; the keys come from the AWS_… environment", mechanism)
		c.out.put("sasl", "{mechanism: "+mechanism+"}", "")
		switch {
		case !hasJaas:
		case bareLogin.MatchString(jaas.entry().value):
			c.idle(jaas.label, "the keys come from the AWS_… environment")
		default:
			c.bad(jaas.label, "the options name a role or a profile, and walpost supports neither: give the keys of the role in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or kafka.sasl.access_key and its secret, and leave the options out")
		}
		for _, name := range []string{"sasl.client.callback.handler.class", "sasl.login.callback.handler.class"} {
			if p, ok := c.producerOption(name); ok {
				c.idle(p.label, "walpost supports AWS_MSK_IAM itself")
			}
		}
		return
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		c.bad(p.label, "%s: walpost converts PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and AWS_MSK_IAM; for OAUTHBEARER write kafka.sasl.token_file by hand", printable(mechanism))
		if hasJaas {
			c.bad(jaas.label, "convert does not support this option with this mechanism")
		}
		return
	}
	c.mapped(p.label, "kafka.sasl.mechanism", "%s", mechanism)
	if !hasJaas {
		c.bad(jaas.label, "is required: it contains the user's name and password")
		return
	}
	fields := jaasFields(jaas.entry())
	if fields["username"] == nil || fields["password"] == nil {
		c.bad(jaas.label, "the login has no user name and password: write kafka.sasl.username and kafka.sasl.password_file")
		c.out.put("sasl", "{mechanism: "+mechanism+", username: \"${WALPOST_KAFKA_SASL_USERNAME}\", password: \"${WALPOST_KAFKA_SASL_PASSWORD}\"}", "")
		return
	}
	user, notes := c.variables(&entry{parts: fields["username"]}, "WALPOST_KAFKA_SASL_USERNAME", same)
	password, note := secretOf(fields["password"], "WALPOST_KAFKA_SASL_PASSWORD", true)
	key := "password"
	if note == "" {
		key, note, password = "password_file", "the password from "+password, dollars(password)
	}
	notes = append(notes, note)
	for _, n := range notes {
		c.out.note("%s", n)
	}
	c.mapped(jaas.label, "kafka.sasl", "username, and %s: %s", key, printable(strings.Join(notes, "; ")))
	c.out.put("sasl", fmt.Sprintf("{mechanism: %s, username: %s, %s: %s}", mechanism, flow(user), key, flow(password)), "")
}

// jaasFields finds name and password in a login, with the references in them.
func jaasFields(e *entry) map[string][]part {
	var b strings.Builder // marks replace references, because their text must not count as syntax of the login
	var refs []*reference
	for _, p := range e.parts {
		if p.ref == nil {
			b.WriteString(strings.ReplaceAll(p.text, "\x00", ""))
			continue
		}
		b.WriteString("\x00" + strconv.Itoa(len(refs)) + "\x00")
		refs = append(refs, p.ref)
	}
	fields := map[string][]part{}
	for _, m := range jaasField.FindAllStringSubmatch(b.String(), -1) {
		if strings.ContainsAny(m[4], `="'`) {
			return nil // not the syntax of a login: the name found may be the password
		}
		text := m[2] + m[3]
		text = regexp.MustCompile(`\\(.)`).ReplaceAllString(text, "$1") + m[4]
		var parts []part
		for i, piece := range strings.Split(text, "\x00") {
			if i%2 == 0 {
				if piece != "" {
					parts = append(parts, part{text: piece})
				}
			} else if n, err := strconv.Atoi(piece); err == nil && n < len(refs) {
				parts = append(parts, part{ref: refs[n]})
			}
		}
		if len(parts) > 0 && fields[m[1]] == nil {
			fields[m[1]] = parts
		}
	}
	return fields
}

// topicCreation maps Connect's default group. Without it, Connect and walpost leave the creation of
// topics to the broker.
func (c *conversion) topicCreation() {
	const prefix = "topic.creation."
	keys, any := []string{"create: true"}, false
	for _, o := range []struct{ option, key string }{
		{prefix + "default.partitions", "partitions"}, {prefix + "default.replication.factor", "replication_factor"},
	} {
		if n, ok := c.number(o.option); ok {
			any = true
			keys = append(keys, fmt.Sprintf("%s: %d", o.key, n))
			c.mapped(o.option, "kafka.topics."+o.key, "%d", n)
		}
	}
	if any {
		c.out.put("topics", "{"+strings.Join(keys, ", ")+"}", "")
	}
	for _, e := range c.in.list {
		if strings.HasPrefix(e.name, prefix) && !c.done[e.name] {
			c.bad(e.name, "walpost creates topics only with a number of partitions and a replication factor: create the topics with their settings before the start")
		}
	}
}
