package walpost

import (
	"slices"
	"time"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/secret"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

// replication is the configuration as the source wants it, but for the columns that the router needs.
func (c *Config) replication() replication.Config {
	s := c.Source
	return replication.Config{
		DSN:              orFile(s.DSN, s.DSNFile),
		Password:         orFile(s.Password, s.PasswordFile),
		Tables:           s.AllTables(),
		Slot:             s.Slot,
		Publication:      s.Publication,
		Publish:          s.Publish,
		Create:           s.Create,
		SnapshotChosen:   s.Snapshot != "",
		SlotWithSnapshot: s.Snapshot == "initial",
		Outbox: replication.Outbox{
			TimeColumn: s.TimeColumn, Partitioned: c.SetupPartitioned, Deletes: c.Cleanup.Mode == "delete", Owns: c.Cleanup.Mode == "drop_partitions",
		},
		Failover:          s.Failover,
		ConfirmKeepalives: s.ConfirmKeepalives,
		Logger:            c.Logger,
	}
}

// routing is the configuration as the router wants it.
func (c *Config) routing() router.Config {
	r, rec := c.Router, c.Records
	cfg := router.Config{
		Updates:             slices.Contains(c.Source.Publish, "update"),
		EventID:             r.EventID,
		EventKey:            r.EventKey,
		Payload:             r.Payload,
		Timestamp:           r.Timestamp,
		SchemaVersion:       r.SchemaVersion,
		AdditionalPlacement: r.AdditionalPlacement,
		AdditionalMissing:   r.AdditionalMissing,
		RouteBy:             r.RouteBy,
		TopicRegex:          r.TopicRegex,
		TopicReplacement:    r.TopicReplacement,
		Tombstone:           r.TombstoneOnEmptyPayload,
		InvalidOperation:    r.InvalidOperation,
		ExpandJSON:          r.ExpandJSONPayload,
		JSONNull:            r.JSONNull,
		JSONEmptyArray:      r.JSONEmptyArray,
		JSONFieldNames:      r.FieldNames,
		Key: converter(rec.KeyConverter, rec.KeySchemas, rec.KeyDecimalFormat, rec.KeyNullDefault,
			rec.KeyDelegate, rec.KeyDelegateSchemas, rec.KeyDelegateDecimalFormat, rec.KeyDelegateNullDefault),
		Value: converter(rec.ValueConverter, rec.ValueSchemas, rec.ValueDecimalFormat, rec.ValueNullDefault,
			rec.ValueDelegate, rec.ValueDelegateSchemas, rec.ValueDelegateDecimalFormat, rec.ValueDelegateNullDefault),
		Header:           converter(rec.HeaderConverter, rec.HeaderSchemas, rec.HeaderDecimalFormat, rec.HeaderNullDefault, "", false, "", true),
		TimePrecision:    rec.TimePrecision,
		Decimal:          rec.Decimal,
		Binary:           rec.Binary,
		Interval:         rec.Interval,
		HStore:           rec.HStore,
		ExtendedHeaders:  rec.ExtendedHeaders,
		TopicPrefix:      rec.TopicPrefix,
		SchemaNames:      rec.SchemaNames,
		FieldNames:       rec.FieldNames,
		UnavailableValue: rec.UnavailableValue,
	}
	for _, name := range c.Source.AllTables() {
		if t, err := replication.ParseTable(name); err == nil { // replication reports the others
			cfg.Tables = append(cfg.Tables, t.Schema+"."+t.Name)
		}
	}
	return cfg
}

func converter(name string, schemas bool, format string, nulls bool, delegate string, delegateSchemas bool, delegateFormat string, delegateNulls bool) router.Converter {
	c := router.Converter{Name: name, Schemas: schemas, DecimalFormat: format, NullDefault: nulls}
	if delegate != "" {
		c.Delegate = &router.Converter{Name: delegate, Schemas: delegateSchemas, DecimalFormat: delegateFormat, NullDefault: delegateNulls}
	}
	return c
}

// orFile is a secret's value, from its file where it has one. Validate reports what is wrong with the file.
func orFile(value Secret, file string) string {
	if file == "" {
		return string(value)
	}
	text, _ := secret.Read(file)
	return text
}

// sink is the configuration as the Kafka sink wants it.
func (c *Config) sink() sink.Config {
	k := c.Kafka
	cfg := sink.Config{
		Config: kafka.Config{
			Brokers: k.Brokers,
			SASL: kafka.SASL{
				Mechanism:     k.SASL.Mechanism,
				Username:      k.SASL.Username,
				Password:      string(k.SASL.Password),
				PasswordFile:  k.SASL.PasswordFile,
				Token:         string(k.SASL.Token),
				TokenFile:     k.SASL.TokenFile,
				Extensions:    k.SASL.Extensions,
				AccessKey:     k.SASL.AccessKey,
				SecretKey:     string(k.SASL.SecretKey),
				SecretKeyFile: k.SASL.SecretKeyFile,
				SessionToken:  orFile(k.SASL.SessionToken, k.SASL.SessionTokenFile),
				Region:        k.SASL.Region,
			},
		},
		Compression:  k.Compression,
		WindowEvents: c.Delivery.Window.Events,
		WindowBytes:  int64(c.Delivery.Window.Bytes),
		Topics: sink.Topics{
			Create:            k.Topics.Create,
			Partitions:        k.Topics.Partitions,
			ReplicationFactor: k.Topics.ReplicationFactor,
		},
		Logger: c.Logger,
		Hooks:  c.KafkaHooks,
	}
	if k.Linger != LingerAuto {
		cfg.Linger, cfg.FixedLinger = time.Duration(k.Linger), true
	}
	if k.TLS != nil {
		cfg.TLS = kafka.TLS{
			Enabled: true, CAFile: k.TLS.CAFile, CertFile: k.TLS.CertFile, KeyFile: k.TLS.KeyFile, ServerName: k.TLS.ServerName,
		}
	}
	return cfg
}

// cleaner makes the cleaner of old rows; nil where none is wanted. It asks loop how far the relay is.
func (r *Relay) cleaner(loop *relay.Relay) *cleanup.Cleaner {
	c := r.cfg.Cleanup
	if c.Mode == "none" {
		return nil
	}
	cfg := cleanup.Config{
		Mode:       cleanup.Mode(c.Mode),
		TimeColumn: r.cfg.Source.TimeColumn,
		Keep:       c.Keep,
		Slot:       r.cfg.Source.Slot,
		Connect:    r.source.Connect,
		Progress:   func() cleanup.Progress { return progress(loop.Status()) },
		Logger:     r.cfg.Logger,
	}
	for _, name := range r.cfg.Source.AllTables() {
		if t, err := replication.ParseTable(name); err == nil { // New has refused the others
			cfg.Tables = append(cfg.Tables, cleanup.Table(t))
		}
	}
	return cleanup.New(cfg)
}

// progress is how far the relay is: in a session only while it streams. Its epoch names the session, as each takes the next one.
func progress(s relay.Status) cleanup.Progress {
	if s.State != relay.Streaming {
		return cleanup.Progress{}
	}
	return cleanup.Progress{Session: s.Epoch, Confirmed: s.Confirmed}
}
