package convert

import (
	"regexp"
	"strings"
)

// A rule is what is said of an option that becomes no field.
type rule struct {
	why string // not needed, because
	// fine are the values, in lower case, with which it is not needed; nil is all of them, unless bad alone is set.
	fine []string
	bad  string // why it is not supported with any other value, and what to do
}

const (
	engine     = "Debezium's own queue and pace: walpost's window is delivery.window"
	snapshots  = "about Debezium's snapshots, which the slot that is taken over is past"
	retries    = "walpost tries again as long as trying can help, and says so"
	incomplete = "it turns off a check of Debezium's; walpost checks at every connect"
	tracing    = "walpost publishes no such events"
	ofConnect  = "belongs to Kafka Connect"
	raw        = "about Debezium's own records, which the EventRouter replaces"
)

// rules are the options of Debezium's Postgres connector and of Kafka Connect that become no field, by name.
var rules = map[string]rule{
	// Kafka Connect
	"name":                              {why: "walpost's name (the checkpoint's key) is <database>.<slot> unless name: says another"},
	"tasks.max":                         {why: "a Postgres connector has one task, and walpost has one loop"},
	"tasks.max.enforce":                 {why: ofConnect},
	"config.action.reload":              {why: "walpost reads its configuration at its start"},
	"errors.tolerance":                  {why: "walpost stops at a row that cannot be routed or delivered", fine: []string{"none"}, bad: "walpost never skips an event: it stops and names it (delivery.on_poison: halt). Leave it out"},
	"errors.retry.timeout":              {why: retries},
	"errors.retry.delay.max.ms":         {why: retries},
	"errors.log.enable":                 {why: "walpost logs every error, without the row's content"},
	"errors.log.include.messages":       {why: "walpost never logs a row's content"},
	"errors.max.retries":                {why: retries},
	"offsets.storage.topic":             {why: "walpost's position is in checkpoint.topic"},
	"transaction.boundary":              {why: "walpost's unit is the transaction of Postgres"},
	"transaction.boundary.interval.ms":  {why: "walpost's unit is the transaction of Postgres"},
	"predicates":                        {why: "no transform uses them"},
	"topic.creation.enable":             {why: "kafka.topics.create says whether topics are created"},
	"key.converter.schema.registry.url": {bad: "walpost has no converter with a schema registry"},

	// the slot and the stream
	"publication.autocreate.mode":       {why: "walpost makes a publication only with source.create, and for its tables only"},
	"publish.via.partition.root":        {why: "the publication is used as it is; walpost check says what is wrong with it"},
	"slot.stream.params":                {bad: "walpost gives pgoutput its own parameters: leave it out"},
	"slot.max.retries":                  {why: retries},
	"slot.retry.delay.ms":               {why: retries},
	"slot.drop.on.stop":                 {why: "the slot stays"},
	"lsn.flush.mode":                    {why: "walpost confirms what Kafka has acknowledged", fine: []string{"connector", "connector_and_driver"}, bad: "with it something else moves the slot, and walpost must be the only one: stop that first"},
	"flush.lsn.source":                  {why: "walpost confirms what Kafka has acknowledged (lsn.flush.mode is its name since 3.4)", fine: []string{"true"}, bad: "with it something else moves the slot, and walpost must be the only one: stop that first (lsn.flush.mode=manual is its name since 3.4)"},
	"lsn.flush.timeout.ms":              {why: "walpost confirms beside the stream"},
	"lsn.flush.timeout.action":          {why: "walpost confirms beside the stream"},
	"offset.mismatch.strategy":          {why: "walpost compares its checkpoint with the slot at every connect, and stops where they do not fit; it matters on the way back to Debezium"},
	"status.update.interval.ms":         {why: "walpost keeps to wal_sender_timeout"},
	"xmin.fetch.interval.ms":            {why: "walpost's monitor reads the slot"},
	"heartbeat.interval.ms":             {why: "an idle slot follows the server without heartbeats, and walpost writes no heartbeat records"},
	"heartbeat.action.query":            {why: "an idle slot follows the server without it; if something else reads the rows that it writes, write them elsewhere"},
	"topic.heartbeat.prefix":            {why: "walpost writes no heartbeat records"},
	"topic.heartbeat.name":              {why: "walpost writes no heartbeat records"},
	"heartbeat.topics.prefix":           {bad: "topic.heartbeat.prefix is its name since Debezium 2.0; walpost writes no heartbeat records: leave it out"},
	"message.prefix.include.list":       {bad: "it asks for the records of pg_logical_emit_message, and walpost writes none: keep a connector for them, with a slot of its own, or leave it out"},
	"message.prefix.exclude.list":       {why: "walpost writes no records of pg_logical_emit_message"},
	"replica.identity.autoset.values":   {why: "the connector has set it already, and walpost changes no table"},
	"read.only":                         {why: "walpost writes nothing to the database; where database.hostname is a standby, add target_session_attrs=standby to source.dsn"},
	"database.initial.statements":       {bad: "walpost's sessions have settings of their own: use ALTER ROLE … SET, or options=-c… in source.dsn"},
	"database.include.list":             {why: "a Postgres connector has one database, database.dbname, and ignores it"},
	"database.exclude.list":             {why: "a Postgres connector has one database, database.dbname, and ignores it"},
	"database.connection.factory.class": {bad: "Java code, which walpost does not run: leave it out"},
	"database.query.timeout.ms":         {why: "walpost bounds each of its statements"},
	"database.connection.timeout.ms":    {why: "connect_timeout in source.dsn is 10 s unless it says another"},
	"database.tcpkeepalive":             {why: "walpost's connections have it"},
	"connection.validation.timeout.ms":  {why: "walpost check looks at the connection"},
	"executor.shutdown.timeout.ms":      {why: "shutdown_grace bounds a stop"},
	"streaming.delay.ms":                {why: "walpost starts with the stream"},
	"schema.refresh.mode":               {why: "walpost reads a table anew when Postgres says that it changed"},
	"schema.history.internal":           {why: "a Postgres connector has none"},

	// pace and size
	"max.batch.size": {why: engine}, "max.queue.size": {why: engine}, "max.queue.size.in.bytes": {why: engine}, "queue.provider.type": {why: engine},
	"poll.interval.ms": {why: engine}, "poll.dispatch.interval.ms": {why: engine}, "query.fetch.size": {why: engine},
	"retriable.restart.connector.wait.ms":    {why: retries},
	"event.processing.failure.handling.mode": {why: "walpost stops at what it cannot process", fine: []string{"fail"}, bad: "walpost never skips an event: it stops and names it. Leave it out"},
	"event.converting.failure.handling.mode": {why: "walpost stops at a value that it cannot convert, where Debezium's warn writes null", fine: []string{"fail", "warn"}, bad: "walpost never skips a value: it stops and names it. Leave it out"},

	// rows and columns
	"tombstones.on.delete":               {why: "the EventRouter drops deletes and their tombstones"},
	"skip.messages.without.change":       {why: "about updates, which the EventRouter drops"},
	"column.include.list":                {why: "walpost reads the columns that the EventRouter's options name, and Debezium stops without them"},
	"column.exclude.list":                {why: "walpost reads the columns that the EventRouter's options name, and Debezium stops without them"},
	"message.key.columns":                {bad: "walpost takes a table's primary key for the key of a row: leave it out"},
	"include.unknown.datatypes":          {why: "walpost writes what Debezium writes of the types that it knows", fine: []string{"false"}, bad: "walpost does not write values of types that Debezium does not know: leave it out where no mapped column has one"},
	"money.fraction.digits":              {why: "walpost writes money with two digits", fine: []string{"2"}, bad: "walpost writes money with two digits: leave it out where no mapped column is money"},
	"converters":                         {bad: "a custom converter is Java code, which walpost does not run: give the columns the types that consumers want, or do it in a column of text"},
	"post.processors":                    {bad: "a post processor is Java code, which walpost does not run: leave it out"},
	"custom.sanitize.pattern":            {bad: "walpost knows none, avro and avro_unicode: leave it out"},
	"sanitize.field.names":               {bad: "a name from before Debezium 2.0: it is field.name.adjustment.mode now (avro for true)"},
	"table.ignore.builtin":               {why: "walpost reads the tables that are named and no others"},
	"include.schema.changes":             {why: "a Postgres connector has none to tell"},
	"sourceinfo.struct.maker":            {why: raw},
	"source.struct.version":              {why: raw},
	"provide.transaction.metadata":       {why: raw, fine: []string{"false"}, bad: "walpost writes no records of transactions, and no transaction block: leave it out"},
	"transaction.metadata.factory":       {why: raw},
	"topic.transaction":                  {why: "walpost writes no records of transactions"},
	"transaction.topic":                  {why: "walpost writes no records of transactions"},
	"topic.naming.strategy":              {why: "the EventRouter names the topics", fine: []string{"io.debezium.schema.schematopicnamingstrategy"}, bad: "Java code that names Debezium's own topics and schemas: leave it out; the EventRouter names the topics of its records"},
	"topic.delimiter":                    {why: "the EventRouter names the topics", fine: []string{"."}, bad: "it is part of schemas' names: leave it out"},
	"topic.cache.size":                   {why: raw},
	"snapshot.mode.custom.name":          {why: snapshots},
	"signal.data.collection":             {bad: "walpost takes no signals: no ad hoc snapshots, no pause. Leave it out, and keep its table out of table.include.list"},
	"signal.enabled.channels":            {why: "without signal.data.collection there is nothing in it", fine: []string{"source"}, bad: "walpost takes no signals: leave it out"},
	"notification.enabled.channels":      {why: "metrics, readiness and the log tell what walpost does", fine: []string{"log", "jmx", "log,jmx", "jmx,log"}, bad: "walpost writes no notifications: use its metrics; leave it out"},
	"custom.metric.tags":                 {why: "walpost's metrics have the labels slot and database"},
	"statistics.metrics.enabled":         {why: "walpost's metrics are always there"},
	"advanced.metrics.enable":            {why: "walpost's metrics are always there"},
	"openlineage.integration.enabled":    {why: tracing, fine: []string{"false"}, bad: "walpost tells OpenLineage nothing: leave it out"},
	"guardrail.collections.max":          {why: "walpost reads the tables that are named and no others"},
	"guardrail.collections.limit.action": {why: "walpost reads the tables that are named and no others"},

	// Debezium Server and what is around a connector
	"debezium.sink.kafka.wait.message.delivery.timeout.ms": {why: retries},
	wrapped + "tasks":                             {why: "what Connect says of the connector's tasks"},
	wrapped + "type":                              {why: "what Connect says of the connector"},
	wrapped + "name":                              {why: ofConnect},
	wrapped + "initial_state":                     {why: "walpost starts when it is started"},
	wrapped + "apiVersion":                        {why: "Strimzi's"},
	wrapped + "kind":                              {why: "Strimzi's"},
	wrapped + "metadata":                          {why: "Strimzi's; walpost's name is <database>.<slot>"},
	wrapped + "status":                            {why: "Strimzi's"},
	wrapped + "spec.version":                      {why: "the version of the plugin"},
	wrapped + "spec.autoRestart":                  {why: retries},
	wrapped + "spec.pause":                        {why: "walpost runs while it runs"},
	wrapped + "spec.state":                        {why: "walpost runs while it runs"},
	wrapped + "spec.listOffsets":                  {why: "about the connector's stored offset, which walpost does not use"},
	wrapped + "spec.alterOffsets":                 {why: "about the connector's stored offset, which walpost does not use"},
	"internal.log.position.check.enable":          {why: incomplete},
	"internal.slot.seek.to.known.offset.on.start": {why: "walpost compares its checkpoint with the slot at every connect (offset.mismatch.strategy is its name since 3.4)"},
	"internal.advanced.metrics.enable":            {why: "walpost's metrics are always there"},
	"internal.custom.retriable.exception":         {why: retries},
	"internal.create.slot.command.timeout":        {why: "walpost waits 10 minutes for a slot that it makes"},
	"slot.seek.to.known.offset.on.start":          {why: "walpost compares its checkpoint with the slot at every connect (offset.mismatch.strategy is its name since 3.4)"},
}

// prefixes are rules for whole families.
var prefixes = []struct {
	prefix string
	rule   rule
}{
	{"snapshot.", rule{why: snapshots}},
	{"incremental.snapshot.", rule{why: "about ad hoc snapshots, which walpost does not take"}},
	{"legacy.snapshot.", rule{why: snapshots}},
	{"internal.snapshot.", rule{why: snapshots}},
	{"signal.", rule{why: "walpost takes no signals"}},
	{"notification.", rule{why: "walpost writes no notifications"}},
	{"openlineage.", rule{why: tracing}},
	{"schema.history.", rule{why: "a Postgres connector has none"}},
	{"database.history.", rule{why: "a Postgres connector has none"}},
	{"errors.deadletterqueue.", rule{why: "for connectors that read from Kafka; Connect ignores it here"}},
	{"offset.", rule{why: "walpost's position is in checkpoint.topic, and its slot's"}}, // Debezium Server's
	{"column.mask.", rule{bad: "walpost writes columns as they are: a column that must not be seen must not be mapped. Leave it out where no mapped column is meant"}},
	{"column.truncate.", rule{bad: "walpost writes columns as they are. Leave it out where no mapped column is meant"}},
	{"quarkus.", rule{why: "Quarkus' own; walpost has log, http"}},
	{"debezium.sink.kafka.", rule{bad: "unknown to Debezium Server's Kafka sink: leave it out"}},
	{"debezium.sink.", rule{why: "about another sink than Kafka"}},
	{"consumer.override.", rule{why: "for connectors that read from Kafka"}},
	{"admin.override.", rule{why: "Connect's own client that creates topics; walpost uses kafka.brokers, tls and sasl"}},
}

// renamed are names from before Debezium 2.0, which later ones ignore.
var renamed = map[string]string{
	"database.server.name": "topic.prefix", "table.whitelist": "table.include.list", "table.blacklist": "table.exclude.list",
	"schema.whitelist": "schema.include.list", "schema.blacklist": "schema.exclude.list", "column.whitelist": "column.include.list",
	"column.blacklist": "column.exclude.list", "slot.drop_on_stop": "slot.drop.on.stop", "toasted.value.placeholder": "unavailable.value.placeholder",
	"snapshot.custom.class": "snapshot.mode.custom.name", "schema.refresh.mode.columns": "schema.refresh.mode",
}

var environmentName = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

// judge is the verdict of an option that becomes no field. The value is not known where it comes from a provider.
func judge(name, value string, known bool) (Verdict, string) {
	if now, ok := renamed[name]; ok {
		return Unsupported, "a name from before Debezium 2.0, which later ones ignore: it is " + now + " now"
	}
	if producer, ok := strings.CutPrefix(name, "producer.override."); ok {
		return judgeProducer(producer, value)
	}
	lower := strings.ToLower(name)
	if lower != "database.tcpkeepalive" {
		lower = name
	}
	if r, ok := rules[lower]; ok {
		return r.of(value, known)
	}
	for _, p := range prefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.rule.of(value, known)
		}
	}
	switch {
	case strings.HasPrefix(name, wrapped+"resource"):
		return NotNeeded, "only the KafkaConnector is read"
	case strings.HasPrefix(name, wrapped):
		return Unsupported, "unknown to a KafkaConnector"
	case known && value == "":
		return NotNeeded, "it is empty"
	case strings.HasPrefix(name, "%"):
		return Unsupported, "an option of one Quarkus profile: write it without the profile"
	case environmentName.MatchString(name):
		return Unsupported, "the name of an environment variable: write it as Debezium's documentation does (debezium.source.…)"
	case strings.HasPrefix(name, "database."), strings.HasPrefix(name, "driver."):
		return Unsupported, "goes to the JDBC driver: write what libpq has for it into source.dsn, or leave it out"
	case strings.HasSuffix(name, ".type") || strings.Contains(name, ".converter."):
		return Unsupported, "unknown to Debezium's Postgres connector; where it belongs to a custom converter or transform, walpost does not run that"
	}
	return Unsupported, "unknown to Debezium 3.6's Postgres connector and to Kafka Connect: leave it out, or look for a misspelling"
}

func (r rule) of(value string, known bool) (Verdict, string) {
	switch {
	case known && value == "":
		return NotNeeded, "it is empty"
	case r.bad == "":
		return NotNeeded, r.why
	case r.fine == nil:
		return Unsupported, r.bad
	}
	value = strings.ReplaceAll(strings.ToLower(value), " ", "")
	for _, fine := range r.fine {
		if known && value == fine {
			return NotNeeded, r.why
		}
	}
	return Unsupported, r.bad
}

// judgeProducer is the verdict of an option of the Kafka producer that becomes no field.
func judgeProducer(name, value string) (Verdict, string) {
	switch name {
	case "partitioner.class", "partitioner.ignore.keys":
		if value == "" || value == "false" || value == "org.apache.kafka.clients.producer.internals.DefaultPartitioner" {
			return NotNeeded, "walpost puts a key where Kafka's default partitioner puts it"
		}
		return Unsupported, "walpost puts a key where Kafka's default partitioner puts it; a partition of one's own is table.fields.additional.placement: column:partition"
	case "interceptor.classes":
		return Unsupported, "Java code, which walpost does not run: leave it out"
	case "transactional.id", "transaction.timeout.ms":
		return Unsupported, "delivery.guarantee: exactly_once is not supported yet: leave it out"
	case "key.serializer", "value.serializer":
		if strings.HasPrefix(value, "org.apache.kafka.common.serialization.") {
			return NotNeeded, "walpost writes the converters' bytes"
		}
		return Unsupported, "Java code, which walpost does not run: leave it out"
	case "acks", "enable.idempotence", "max.in.flight.requests.per.connection":
		return NotNeeded, "walpost waits for all in-sync replicas and keeps the order"
	case "linger.ms", "batch.size", "buffer.memory":
		return NotNeeded, "kafka.linger is auto, and delivery.window bounds what is in flight"
	case "max.request.size":
		return NotNeeded, "walpost takes the limit from the topic's max.message.bytes"
	case "security.providers":
		return Unsupported, "Java code, which walpost does not run"
	}
	for _, prefix := range []string{"retries", "retry.", "delivery.timeout", "request.timeout", "max.block", "metadata.", "reconnect.", "connections.", "socket.", "receive.", "send.", "metric", "client.", "partitioner.", "enable.metrics", "auto.include", "bootstrap.", "compression."} {
		if strings.HasPrefix(name, prefix) {
			return NotNeeded, "walpost's Kafka client has settings of its own"
		}
	}
	if strings.HasPrefix(name, "ssl.") || strings.HasPrefix(name, "sasl.") {
		return Unsupported, "write what walpost has for it under kafka.tls or kafka.sasl, or leave it out"
	}
	return Unsupported, "unknown to Kafka's producer: leave it out"
}
