package convert

import (
	"strings"
)

// A rule is the verdict of an option that becomes no field.
type rule struct {
	why string // the reason why the option is not needed
	// fine are the values, in lower case, with which the option is not needed. If it is nil, these are all values, or none if bad is set.
	fine []string
	bad  string // why the other values are not supported, and the action
}

const (
	engine     = "Debezium's own queue and pace: walpost's window is delivery.window"
	snapshots  = "the option is about Debezium's snapshots; walpost starts after the connector's own snapshot"
	retries    = "walpost retries as long as a retry can help, and logs it"
	incomplete = "the option turns off a check of Debezium; walpost checks at each connect"
	tracing    = "walpost sends no OpenLineage events"
	ofConnect  = "belongs to Kafka Connect"
	raw        = "the option is about Debezium's own records, which the EventRouter replaces"
	ignored    = "Debezium 3.6 and Kafka Connect ignore this option, because they have none of this name"
)

// rules are the options of Debezium's Postgres connector and of Kafka Connect that become no field, by name.
var rules = map[string]rule{
	// Kafka Connect
	"name":                             {why: "walpost's name (the checkpoint's key) is <database>.<slot>, unless name: gives another one"},
	"tasks.max":                        {why: "a Postgres connector has one task, and walpost has one loop"},
	"tasks.max.enforce":                {why: ofConnect},
	"after.state.only":                 {why: "the EventRouter needs the whole event, as walpost does", fine: []string{"false"}, bad: "with this value, the EventRouter gets no event that it can route: check that the connector writes records, and leave the option out"},
	"json.output.decimal.format":       {why: "no JsonConverter uses it"},
	"schema.context.name":              {why: "walpost has no schema registry"},
	"config.action.reload":             {why: "walpost reads its configuration at its start"},
	"errors.tolerance":                 {why: "walpost stops at a row that cannot be routed or delivered", fine: []string{"none"}, bad: "walpost never skips an event: it stops and names the event (delivery.on_poison: halt). Leave the option out"},
	"errors.retry.timeout":             {why: retries},
	"errors.retry.delay.max.ms":        {why: retries},
	"errors.log.enable":                {why: "walpost logs every error, without the row's content"},
	"errors.log.include.messages":      {why: "walpost never logs a row's content"},
	"errors.max.retries":               {why: retries},
	"offsets.storage.topic":            {why: "walpost keeps its position in checkpoint.topic"},
	"transaction.boundary":             {why: "walpost works with the transactions of Postgres"},
	"transaction.boundary.interval.ms": {why: "walpost works with the transactions of Postgres"},
	"predicates":                       {why: "no transform uses them"},
	"topic.creation.enable":            {why: "kafka.topics.create says whether topics are created"},

	// the slot and the stream
	"publication.autocreate.mode":       {why: "walpost makes a publication only with source.create, and for its tables only"},
	"publish.via.partition.root":        {why: "the publication is used as it is; walpost check says what is wrong with it"},
	"slot.stream.params":                {bad: "walpost sets the parameters of pgoutput itself: leave the option out"},
	"slot.max.retries":                  {why: retries},
	"slot.retry.delay.ms":               {why: retries},
	"slot.drop.on.stop":                 {why: "the slot stays"},
	"lsn.flush.mode":                    {why: "walpost confirms what Kafka has acknowledged", fine: []string{"connector", "connector_and_driver"}, bad: "with this value another program moves the slot, and only walpost may move it: stop the other program first"},
	"flush.lsn.source":                  {why: "walpost confirms what Kafka has acknowledged (lsn.flush.mode is its name since 3.4)", fine: []string{"true"}, bad: "with this value another program moves the slot, and only walpost may move it: stop the other program first (lsn.flush.mode=manual is its name since 3.4)"},
	"lsn.flush.timeout.ms":              {why: "walpost confirms beside the stream"},
	"lsn.flush.timeout.action":          {why: "walpost confirms beside the stream"},
	"offset.mismatch.strategy":          {why: "walpost compares its checkpoint with the slot at each connect, and stops if they do not fit; the option matters on the way back to Debezium"},
	"status.update.interval.ms":         {why: "walpost sends its status well within wal_sender_timeout"},
	"xmin.fetch.interval.ms":            {why: "walpost's monitor reads the slot"},
	"heartbeat.interval.ms":             {why: "an idle slot follows the server without heartbeats, and walpost writes no heartbeat records"},
	"heartbeat.action.query":            {why: "an idle slot follows the server without this query; if another program reads the rows that the query writes, write them in another way"},
	"topic.heartbeat.prefix":            {why: "walpost writes no heartbeat records"},
	"topic.heartbeat.name":              {why: "walpost writes no heartbeat records"},
	"heartbeat.topics.prefix":           {why: "walpost writes no heartbeat records"},
	"message.prefix.include.list":       {bad: "the option selects records of pg_logical_emit_message, and walpost writes none: keep a connector with its own slot for them, or leave the option out"},
	"message.prefix.exclude.list":       {why: "walpost writes no records of pg_logical_emit_message"},
	"replica.identity.autoset.values":   {why: "the connector has already set the replica identity, and walpost changes no table"},
	"read.only":                         {why: "walpost writes nothing to the database; if database.hostname is a standby, add target_session_attrs=standby to source.dsn"},
	"database.initial.statements":       {bad: "walpost sets its sessions up itself: use ALTER ROLE … SET, or options=-c… in source.dsn"},
	"database.server.id":                {why: "a Postgres connector does not use it"},
	"database.include.list":             {why: "a Postgres connector has one database, database.dbname, and ignores this option"},
	"database.exclude.list":             {why: "a Postgres connector has one database, database.dbname, and ignores this option"},
	"database.connection.factory.class": {bad: "this is Java code, and walpost runs none: leave the option out"},
	"database.query.timeout.ms":         {why: "walpost bounds each of its statements"},
	"database.connection.timeout.ms":    {why: "the default of connect_timeout in source.dsn is 10 s"},
	"database.tcpkeepalive":             {why: "walpost's connections use TCP keepalives"},
	"connection.validation.timeout.ms":  {why: "walpost check examines the connection"},
	"executor.shutdown.timeout.ms":      {why: "shutdown_grace bounds a stop"},
	"streaming.delay.ms":                {why: "walpost starts the stream without a delay"},
	"schema.refresh.mode":               {why: "walpost reads the definition of a table again when Postgres announces a change"},
	"schema.history.internal":           {why: "a Postgres connector has no schema history"},

	// pace and size
	"max.batch.size": {why: engine}, "max.queue.size": {why: engine}, "max.queue.size.in.bytes": {why: engine}, "queue.provider.type": {why: engine},
	"poll.interval.ms": {why: engine}, "poll.dispatch.interval.ms": {why: engine}, "query.fetch.size": {why: engine},
	"retriable.restart.connector.wait.ms":    {why: retries},
	"event.processing.failure.handling.mode": {why: "walpost stops at what it cannot process", fine: []string{"fail"}, bad: "walpost never skips an event: it stops and names the event. Leave the option out"},
	"event.converting.failure.handling.mode": {why: "walpost stops at a value that it cannot convert; Debezium's warn writes null", fine: []string{"fail", "warn"}, bad: "walpost never skips a value: it stops and names the event. Leave the option out"},

	// rows and columns
	"tombstones.on.delete":               {why: "the EventRouter drops deletes and their tombstones"},
	"skip.messages.without.change":       {why: "the option is about updates, which the EventRouter drops"},
	"column.include.list":                {why: "walpost reads the columns that the EventRouter's options name, and Debezium stops without them"},
	"column.exclude.list":                {why: "walpost reads the columns that the EventRouter's options name, and Debezium stops without them"},
	"message.key.columns":                {bad: "walpost uses the primary key of the table: leave the option out"},
	"include.unknown.datatypes":          {why: "walpost writes the same types as Debezium", fine: []string{"false"}, bad: "walpost does not write values of types that Debezium does not know: leave the option out if no mapped column has such a type"},
	"money.fraction.digits":              {why: "walpost writes money with two digits", fine: []string{"2"}, bad: "walpost writes money with two digits: leave the option out if no mapped column is money"},
	"converters":                         {bad: "a custom converter is Java code, and walpost runs none: give the columns the types that the consumers need, or write the converted value into a text column"},
	"post.processors":                    {bad: "a post processor is Java code, and walpost runs none: leave the option out"},
	"custom.sanitize.pattern":            {bad: "walpost supports none, avro and avro_unicode: leave the option out"},
	"sanitize.field.names":               {why: "walpost changes no names of fields", fine: []string{"false"}, bad: "write router.field.name.adjustment.mode: avro and records.field.name.adjustment.mode: avro, which have this effect"},
	"table.ignore.builtin":               {why: "walpost reads only the tables that are named"},
	"include.schema.changes":             {why: "a Postgres connector has no schema changes to report"},
	"sourceinfo.struct.maker":            {why: raw},
	"source.struct.version":              {why: raw},
	"provide.transaction.metadata":       {why: raw, fine: []string{"false"}, bad: "walpost writes neither transaction records nor transaction blocks: leave the option out"},
	"transaction.metadata.factory":       {why: raw},
	"topic.transaction":                  {why: "walpost writes no transaction records"},
	"transaction.topic":                  {why: "walpost writes no transaction records"},
	"topic.naming.strategy":              {why: "the EventRouter names the topics", fine: []string{"io.debezium.schema.schematopicnamingstrategy"}, bad: "this is Java code that names Debezium's own topics and schemas: leave the option out, because the EventRouter names the topics of its records"},
	"topic.delimiter":                    {why: "the EventRouter names the topics", fine: []string{"."}, bad: "the delimiter is a part of the schemas' names: leave the option out"},
	"topic.cache.size":                   {why: raw},
	"snapshot.mode.custom.name":          {why: snapshots},
	"signal.data.collection":             {bad: "walpost takes no signals, so it has no ad hoc snapshots and no pause. Leave the option out"},
	"signal.enabled.channels":            {why: "without signal.data.collection this channel is empty", fine: []string{"source"}, bad: "walpost takes no signals: leave the option out"},
	"notification.enabled.channels":      {why: "metrics, readiness and the log say what walpost does", fine: []string{"log", "jmx", "log,jmx", "jmx,log"}, bad: "walpost writes no notifications: use its metrics, and leave the option out"},
	"custom.metric.tags":                 {why: "walpost's metrics have the labels slot and database"},
	"statistics.metrics.enabled":         {why: "walpost always has metrics"},
	"advanced.metrics.enable":            {why: "walpost always has metrics"},
	"openlineage.integration.enabled":    {why: tracing, fine: []string{"false"}, bad: "walpost sends no OpenLineage events: leave the option out"},
	"guardrail.collections.max":          {why: "walpost reads only the tables that are named"},
	"guardrail.collections.limit.action": {why: "walpost reads only the tables that are named"},

	// Debezium Server and what is around a connector
	"debezium.sink.kafka.wait.message.delivery.timeout.ms": {why: retries},
	wrapped + "tasks":                             {why: "this is Connect's report on the connector's tasks"},
	wrapped + "type":                              {why: "this is Connect's report on the connector"},
	wrapped + "name":                              {why: ofConnect},
	wrapped + "initial_state":                     {why: "walpost runs from its start to its stop"},
	wrapped + "apiVersion":                        {why: "the field belongs to Strimzi"},
	wrapped + "kind":                              {why: "the field belongs to Strimzi"},
	wrapped + "metadata":                          {why: "the field belongs to Strimzi; walpost's name is <database>.<slot>"},
	wrapped + "status":                            {why: "the field belongs to Strimzi"},
	wrapped + "spec.version":                      {why: "this is the version of the plugin"},
	wrapped + "spec.autoRestart":                  {why: retries},
	wrapped + "spec.pause":                        {why: "walpost runs from its start to its stop"},
	wrapped + "spec.state":                        {why: "walpost runs from its start to its stop"},
	wrapped + "spec.listOffsets":                  {why: "the field is about the connector's stored offset, which walpost does not use"},
	wrapped + "spec.alterOffsets":                 {why: "the field is about the connector's stored offset, which walpost does not use"},
	"internal.log.position.check.enable":          {why: incomplete},
	"internal.slot.seek.to.known.offset.on.start": {why: "walpost compares its checkpoint with the slot at every connect (offset.mismatch.strategy is its name since 3.4)"},
	"internal.advanced.metrics.enable":            {why: "walpost always has metrics"},
	"internal.custom.retriable.exception":         {why: retries},
	"internal.create.slot.command.timeout":        {why: "walpost waits 10 minutes for a slot that it makes"},
	"slot.seek.to.known.offset.on.start":          {why: "walpost compares its checkpoint with the slot at every connect (offset.mismatch.strategy is its name since 3.4)"},
}

// routerRules are the options of the EventRouter that become no field.
var routerRules = map[string]rule{
	"table.field.event.type":          {why: "the EventRouter never reads this option; for a header with the type write table.fields.additional.placement: type:header:eventType"},
	"tracing.operation.name":          {why: "the option names a span, and no record contains the name"},
	"tracing.span.context.field":      {why: tracingDefault, fine: []string{"tracingspancontext"}, bad: noTracing},
	"tracing.with.context.field.only": {why: tracingDefault, fine: []string{"true"}, bad: noTracing},
}

const (
	tracingDefault = "this is the EventRouter's default"
	noTracing      = "walpost adds no OpenTelemetry headers; publish the span's context as a column with table.fields.additional.placement. If Connect has no OpenTelemetry, the option had no effect: leave it out"
)

// prefixes are rules for whole families.
var prefixes = []struct {
	prefix string
	rule   rule
}{
	{"snapshot.", rule{why: snapshots}},
	{"incremental.snapshot.", rule{why: "the option is about ad hoc snapshots, which walpost does not have"}},
	{"legacy.snapshot.", rule{why: snapshots}},
	{"internal.snapshot.", rule{why: snapshots}},
	{"signal.", rule{why: "walpost takes no signals"}},
	{"notification.", rule{why: "walpost writes no notifications"}},
	{"openlineage.", rule{why: tracing}},
	{"schema.history.", rule{why: "a Postgres connector has no schema history"}},
	{"database.history.", rule{why: "a Postgres connector has no schema history"}},
	{"errors.deadletterqueue.", rule{why: "the option is for connectors that read from Kafka; Connect ignores it here"}},
	{"offset.", rule{why: "walpost keeps its position in checkpoint.topic and in its slot"}}, // Debezium Server's
	{"column.mask.", rule{bad: "walpost writes columns unchanged, so do not map a column that must not be seen. Leave the option out if it names no mapped column"}},
	{"column.truncate.", rule{bad: "walpost writes columns unchanged. Leave the option out if it names no mapped column"}},
	{"kafka.", rule{why: "the option is Confluent Cloud's; kafka.sasl has the login"}},
	{"cloud.", rule{why: "the option is Confluent Cloud's"}},
	{"quarkus.", rule{why: "the option belongs to Quarkus; walpost has log and http"}},
	{"debezium.sink.kafka.", rule{bad: "Debezium Server's Kafka sink does not have this option: leave it out"}},
	{"debezium.sink.", rule{why: "the option is about another sink than Kafka"}},
	{"consumer.override.", rule{why: "the option is for connectors that read from Kafka"}},
	{"admin.override.", rule{why: "the option is for Connect's client that creates topics; walpost uses kafka.brokers, tls and sasl"}},
}

// An oldName is a name that an option had before version since. Newer versions ignore it.
type oldName struct {
	old, now, since string
	mapped          bool // the value has the same meaning under both names
}

// oldNames are the old names. A name that begins with a dot follows the name of the EventRouter.
var oldNames = []oldName{
	{"database.server.name", "topic.prefix", "2.0", true},
	{"table.whitelist", "table.include.list", "2.0", true},
	{"table.blacklist", "table.exclude.list", "2.0", true},
	{"schema.whitelist", "schema.include.list", "2.0", true},
	{"schema.blacklist", "schema.exclude.list", "2.0", true},
	{"column.whitelist", "column.include.list", "2.0", true},
	{"column.blacklist", "column.exclude.list", "2.0", true},
	{"database.whitelist", "database.include.list", "2.0", true},
	{"database.blacklist", "database.exclude.list", "2.0", true},
	{"slot.drop_on_stop", "slot.drop.on.stop", "1.1", true},
	{"toasted.value.placeholder", "unavailable.value.placeholder", "2.0", true},
	{"sanitize.field.names", "field.name.adjustment.mode", "2.2", false},
	{".debezium.op.invalid.behavior", "table.op.invalid.behavior", "2.0", true},
	{".debezium.expand.json.payload", "table.expand.json.payload", "1.8", true}, // 1.7.1 had it first
	{".table.field.event.payload.id", "table.field.event.key", "2.0", true},
	{".table.field.payload", "table.field.event.payload", "0.10", false},
	{".table.field.payload.id", "table.field.event.key", "0.10", false},
	{".table.field.schema.version", "table.field.event.schema.version", "0.10", false},
}

// renameOld gives options their new names if the input is for a Debezium before 2.0. Otherwise the
// connector ignores the old names, and walpost does so, too. Debezium requires topic.prefix since 2.0.
func (c *conversion) renameOld() {
	c.old = !c.in.has("topic.prefix") && c.in.has("database.server.name")
	for _, e := range c.in.list {
		for _, o := range oldNames {
			before, is := strings.CutSuffix(e.name, o.old)
			if is = is && (before == "" || o.old[0] == '.' && strings.HasPrefix(before, "transforms.")); !is {
				continue
			}
			now := o.now
			if before != "" {
				now = before + "." + now
			}
			other := c.in.byName[now]
			switch {
			case c.old && o.mapped && other == nil:
				delete(c.in.byName, e.name)
				e.name = now
				c.in.byName[now] = e
			case c.old && o.old == ".table.field.event.payload.id" && other.value != e.value:
				c.bad(e.name, "before Debezium 2.0, this column gives the key of a row whose %s is null, and walpost leaves that key null: leave the option out if no row has such a null", o.now)
			case c.old && o.mapped:
				c.idle(e.name, "%s has priority", o.now)
			case !c.old || o.since == "0.10":
				c.idle(e.name, "Debezium %s and newer ignore this name; the name is now %s", o.since, o.now)
			}
		}
	}
}

// judge is the verdict of an option that becomes no field. known is false if the value comes from a provider.
func judge(name, value string, known bool) (Verdict, string) {
	if producer, ok := strings.CutPrefix(name, "producer.override."); ok {
		return judgeProducer(producer, value)
	}
	if strings.EqualFold(name, "database.tcpKeepAlive") {
		name = "database.tcpkeepalive"
	}
	if r, ok := rules[name]; ok {
		return r.of(value, known)
	}
	for _, p := range prefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.rule.of(value, known)
		}
	}
	switch {
	case strings.HasPrefix(name, wrapped+"resource"):
		return NotNeeded, "walpost reads only the KafkaConnector"
	case strings.HasPrefix(name, wrapped):
		return Unsupported, "a KafkaConnector does not have this field"
	case known && value == "":
		return NotNeeded, "the value is empty"
	case strings.HasPrefix(name, "%"):
		return Unsupported, "the option is for one Quarkus profile: write it without the profile"
	case strings.HasPrefix(name, "database."), strings.HasPrefix(name, "driver."):
		return Unsupported, "the option is for the JDBC driver: write the parameter of libpq into source.dsn, or leave the option out"
	}
	return NotNeeded, ignored
}

func (r rule) of(value string, known bool) (Verdict, string) {
	switch {
	case known && value == "":
		return NotNeeded, "the value is empty"
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
			return NotNeeded, "walpost chooses the same partition as Kafka's default partitioner"
		}
		return Unsupported, "walpost chooses the same partition as Kafka's default partitioner; to choose another one, use table.fields.additional.placement: column:partition"
	case "interceptor.classes":
		return Unsupported, "this is Java code, and walpost runs none: leave the option out"
	case "transactional.id", "transaction.timeout.ms":
		return Unsupported, "delivery.guarantee: exactly_once is not supported yet: leave the option out"
	case "key.serializer", "value.serializer":
		if strings.HasPrefix(value, "org.apache.kafka.common.serialization.") {
			return NotNeeded, "walpost writes the converters' bytes"
		}
		return Unsupported, "this is Java code, and walpost runs none: leave the option out"
	case "acks", "enable.idempotence", "max.in.flight.requests.per.connection":
		return NotNeeded, "walpost waits for all in-sync replicas and keeps the order"
	case "linger.ms", "batch.size", "buffer.memory":
		return NotNeeded, "kafka.linger is auto, and delivery.window bounds what is in flight"
	case "max.request.size":
		return NotNeeded, "walpost takes the limit from the topic's max.message.bytes"
	case "security.providers":
		return Unsupported, "this is Java code, and walpost runs none: leave the option out"
	}
	for _, prefix := range []string{"retries", "retry.", "delivery.timeout", "request.timeout", "max.block", "metadata.", "reconnect.", "connections.", "socket.", "receive.", "send.", "metric", "client.", "partitioner.", "enable.metrics", "auto.include", "bootstrap.", "compression."} {
		if strings.HasPrefix(name, prefix) {
			return NotNeeded, "walpost's Kafka client has its own settings"
		}
	}
	if strings.HasPrefix(name, "ssl.") || strings.HasPrefix(name, "sasl.") {
		return Unsupported, "write the matching key under kafka.tls or kafka.sasl, or leave the option out"
	}
	return Unsupported, "Kafka's producer does not have this option: leave it out"
}
