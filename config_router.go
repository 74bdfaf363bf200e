package walpost

// RouterConfig is Debezium's EventRouter: its option names, meanings and, where nothing else is said, its defaults.
type RouterConfig struct {
	EventID string `yaml:"table.field.event.id"`
	// EventType does nothing: the EventRouter has the option and never reads it.
	EventType string `yaml:"table.field.event.type"`
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
	// ExpandJSONPayload makes JSON of a payload that is the text of an object or array, for a value converter that writes JSON.
	ExpandJSONPayload bool   `yaml:"table.expand.json.payload"`
	JSONNull          string `yaml:"table.json.payload.null.behavior"`
	JSONEmptyArray    string `yaml:"table.json.payload.empty.array.behavior"`
	// FieldNames adjusts the names of the fields of an expanded payload: none, avro or avro_unicode.
	FieldNames string `yaml:"field.name.adjustment.mode"`
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
		FieldNames:        "none",
	}
}

// RecordsConfig says how column values become bytes: Kafka Connect's and Debezium's option names and meanings.
type RecordsConfig struct {
	// KeyConverter and ValueConverter are string, json, bytes or binary; the keys below each are the options of its converter.
	KeyConverter     string `yaml:"key.converter"`
	KeySchemas       bool   `yaml:"key.converter.schemas.enable"`            // json
	KeyDecimalFormat string `yaml:"key.converter.decimal.format"`            // json: base64 or numeric
	KeyNullDefault   bool   `yaml:"key.converter.replace.null.with.default"` // json
	// KeyDelegate is the converter that binary uses for what is not bytes: string, json, bytes; empty for none.
	KeyDelegate              string `yaml:"key.converter.delegate.converter.type"`
	KeyDelegateSchemas       bool   `yaml:"key.converter.delegate.converter.type.schemas.enable"`
	KeyDelegateDecimalFormat string `yaml:"key.converter.delegate.converter.type.decimal.format"`
	KeyDelegateNullDefault   bool   `yaml:"key.converter.delegate.converter.type.replace.null.with.default"`

	ValueConverter             string `yaml:"value.converter"`
	ValueSchemas               bool   `yaml:"value.converter.schemas.enable"`
	ValueDecimalFormat         string `yaml:"value.converter.decimal.format"`
	ValueNullDefault           bool   `yaml:"value.converter.replace.null.with.default"`
	ValueDelegate              string `yaml:"value.converter.delegate.converter.type"`
	ValueDelegateSchemas       bool   `yaml:"value.converter.delegate.converter.type.schemas.enable"`
	ValueDelegateDecimalFormat string `yaml:"value.converter.delegate.converter.type.decimal.format"`
	ValueDelegateNullDefault   bool   `yaml:"value.converter.delegate.converter.type.replace.null.with.default"`

	// HeaderConverter is simple, string or json.
	HeaderConverter     string `yaml:"header.converter"`
	HeaderSchemas       bool   `yaml:"header.converter.schemas.enable"`
	HeaderDecimalFormat string `yaml:"header.converter.decimal.format"`
	HeaderNullDefault   bool   `yaml:"header.converter.replace.null.with.default"`

	TimePrecision string `yaml:"time.precision.mode"`
	Decimal       string `yaml:"decimal.handling.mode"`
	Binary        string `yaml:"binary.handling.mode"`
	Interval      string `yaml:"interval.handling.mode"`
	HStore        string `yaml:"hstore.handling.mode"`
	// ExtendedHeaders adds the four headers __debezium.context.…; they need TopicPrefix.
	ExtendedHeaders bool `yaml:"extended.headers.enabled"`
	// TopicPrefix begins the names of schemas, and is the connector's name in the extended headers.
	TopicPrefix string `yaml:"topic.prefix"`
	// SchemaNames and FieldNames adjust the names of schemas, and those of columns: none, avro or avro_unicode.
	SchemaNames string `yaml:"schema.name.adjustment.mode"`
	FieldNames  string `yaml:"field.name.adjustment.mode"`
	// UnavailableValue stands for a large value that an update of the row's primary key did not send.
	UnavailableValue string `yaml:"unavailable.value.placeholder"`
}

func defaultRecords() RecordsConfig {
	return RecordsConfig{
		KeyConverter:               "string",
		KeyDecimalFormat:           "base64",
		KeyNullDefault:             true,
		KeyDelegateDecimalFormat:   "base64",
		KeyDelegateNullDefault:     true,
		ValueConverter:             "string",
		ValueDecimalFormat:         "base64",
		ValueNullDefault:           true,
		ValueDelegateDecimalFormat: "base64",
		ValueDelegateNullDefault:   true,
		HeaderConverter:            "simple",
		HeaderDecimalFormat:        "base64",
		HeaderNullDefault:          true,
		TimePrecision:              "adaptive",
		Decimal:                    "precise",
		Binary:                     "bytes",
		Interval:                   "numeric",
		HStore:                     "json",
		SchemaNames:                "none",
		FieldNames:                 "none",
		UnavailableValue:           "__debezium_unavailable_value",
	}
}
