package walpost

// RouterConfig is Debezium's EventRouter: its option names, meanings and, where nothing else is said, its defaults.
type RouterConfig struct {
	EventID string `yaml:"table.field.event.id"`
	// EventKey is the column of the key. Empty: aggregate_id or aggregateid, whichever the table has.
	EventKey string `yaml:"table.field.event.key"`
	Payload  string `yaml:"table.field.event.payload"`
	// Timestamp is the column of the record's timestamp. Empty: the commit time.
	Timestamp     string `yaml:"table.field.event.timestamp"`
	SchemaVersion string `yaml:"table.field.event.schema.version"`
	// AdditionalPlacement lists column:placement[:alias], separated by commas; placement is header, envelope or partition.
	AdditionalPlacement string `yaml:"table.fields.additional.placement"`
	AdditionalMissing   string `yaml:"table.field.additional.missing"`
	// RouteBy is the column that names the topic. Empty: aggregate_type or aggregatetype, whichever the table has.
	RouteBy string `yaml:"route.by.field"`
	// TopicRegex and TopicReplacement are a Java regular expression and a Java replacement.
	TopicRegex              string `yaml:"route.topic.regex"`
	TopicReplacement        string `yaml:"route.topic.replacement"`
	TombstoneOnEmptyPayload bool   `yaml:"route.tombstone.on.empty.payload"`
	InvalidOperation        string `yaml:"table.op.invalid.behavior"`
	ExpandJSONPayload       bool   `yaml:"table.expand.json.payload"`
	JSONNull                string `yaml:"table.json.payload.null.behavior"`
	JSONEmptyArray          string `yaml:"table.json.payload.empty.array.behavior"`
}

func defaultRouter() RouterConfig {
	return RouterConfig{
		EventID:           "id",
		Payload:           "payload",
		AdditionalMissing: "error",
		TopicRegex:        "(?<routedByValue>.*)",
		TopicReplacement:  "outbox.event.${routedByValue}",
		InvalidOperation:  "warn",
		JSONNull:          "ignore",
		JSONEmptyArray:    "ignore",
	}
}

// RecordsConfig says how column values become bytes: Kafka Connect's and Debezium's option names and meanings.
type RecordsConfig struct {
	KeyConverter    string `yaml:"key.converter"`
	KeySchemas      bool   `yaml:"key.converter.schemas.enable"`
	ValueConverter  string `yaml:"value.converter"`
	ValueSchemas    bool   `yaml:"value.converter.schemas.enable"`
	HeaderConverter string `yaml:"header.converter"`
	TimePrecision   string `yaml:"time.precision.mode"`
	Decimal         string `yaml:"decimal.handling.mode"`
	Binary          string `yaml:"binary.handling.mode"`
	Interval        string `yaml:"interval.handling.mode"`
	HStore          string `yaml:"hstore.handling.mode"`
	ExtendedHeaders bool   `yaml:"extended.headers.enabled"`
	TopicPrefix     string `yaml:"topic.prefix"`
}

func defaultRecords() RecordsConfig {
	return RecordsConfig{
		KeyConverter:    "string",
		ValueConverter:  "string",
		HeaderConverter: "simple",
		TimePrecision:   "adaptive",
		Decimal:         "precise",
		Binary:          "bytes",
		Interval:        "numeric",
		HStore:          "json",
	}
}
