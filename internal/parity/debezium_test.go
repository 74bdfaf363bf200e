//go:build linux || darwin

package parity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Debezium runs cases on the real thing, each as a connector of one worker. Its brokers must make topics that are produced to, of
// three partitions.
type Debezium struct {
	Worker   *ConnectWorker
	Brokers  []string
	Registry *registry
}

// none takes an option of Base away, so that Debezium's default holds.
const none = "(none)"

// Base is the whole configuration of a case: where the database is, what spares each case some lines, and the case's own options.
func (c *Case) Base(p *Place, slot string) (map[string]string, error) {
	config, err := connector(p.DSN, c.Slug())
	if err != nil {
		return nil, err
	}
	maps.Copy(config, map[string]string{
		"slot.name":                   slot,
		"publication.name":            p.Publication,
		"publication.autocreate.mode": "disabled",
		"snapshot.mode":               "no_data",
		"table.include.list":          "public.outbox",
		"key.converter":               "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":             "org.apache.kafka.connect.storage.StringConverter",
		"transforms":                  "outbox",
		"transforms.outbox.type":      "io.debezium.transforms.outbox.EventRouter",
		"extended.headers.enabled":    "false",
	})
	for _, o := range c.Config {
		switch config[o.Key] = o.Value; o.Value {
		case none:
			delete(config, o.Key)
		case avro:
			config[o.Key] = "io.apicurio.registry.utils.converter.AvroConverter"
			registry := o.Key + ".apicurio.registry."
			config[registry+"url"] = "http://" + p.Registry + "/apis/registry/v2"
			config[registry+"as-confluent"] = "true"
			config[registry+"headers.enabled"] = "false"
			config[registry+"use-id"] = "contentId"
			config[registry+"auto-register"] = "true"
		case jsonSchema, protobuf:
			config[o.Key] = map[string]string{
				jsonSchema: "io.confluent.connect.json.JsonSchemaConverter", protobuf: "io.confluent.connect.protobuf.ProtobufConverter",
			}[o.Value]
			config[o.Key+".schema.registry.url"] = "http://" + p.Registry + ccompat
		}
	}
	return config, nil
}

// avro stands for Apicurio's Avro converter with the options under which it writes what Confluent's does.
const avro = "(avro)"

// These stand for Confluent's converters, which -confluent brings.
const (
	jsonSchema = "(json_schema)"
	protobuf   = "(protobuf)"
)

// registered reports whether a case needs a schema registry.
func (c *Case) registered() bool { return c.has(avro) || c.confluent() }

// confluent reports whether a case needs one of Confluent's converters.
func (c *Case) confluent() bool { return c.has(jsonSchema) || c.has(protobuf) }

func (c *Case) has(value string) bool {
	return slices.ContainsFunc(c.Config, func(o Option) bool { return o.Value == value })
}

// apart are further options that keep connectors apart that run on one Kafka: behind the EventRouter every topic gets the case's name in
// front, which changes nothing else of a record, and the message that says that all has been said becomes bytes, which any converter takes.
func (c *Case) apart(config map[string]string) {
	slug := c.Slug()
	end := func(name, typ, option, value string) {
		t := "transforms." + name + "."
		config[t+"type"] = "org.apache.kafka.connect.transforms." + typ
		config[t+"predicate"] = "end"
		config[t+option] = value
	}
	// The message is bytes before the case's own transforms see it, because they may rename its topic.
	if c.messages() {
		config["transforms"] += ",apart"
	} else {
		config["transforms"] = "end1,end2,end3,end4," + config["transforms"] + ",apart"
	}
	end("end1", "ExtractField$Value", "field", "message")
	end("end2", "ValueToKey", "fields", "content")
	end("end3", "ExtractField$Key", "field", "content")
	end("end4", "ExtractField$Value", "field", "content")
	predicates := "end"
	if own := config["predicates"]; own != "" {
		predicates = own + ",end"
	}
	config["predicates"] = predicates
	config["predicates.end.type"] = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
	config["predicates.end.pattern"] = regexp.QuoteMeta(config["topic.prefix"]) + `\.message`
	config["transforms.apart.type"] = "org.apache.kafka.connect.transforms.RegexRouter"
	config["transforms.apart.regex"] = `(?s)(.*)`
	config["transforms.apart.replacement"] = slug + ".$1"
}

// messages reports whether a case is about the records of logical messages, which the converter writes
// if the connector says which of them.
func (c *Case) messages() bool {
	return c.Option("message.prefix.include.list")+c.Option("message.prefix.exclude.list") != ""
}

// isEnd reports whether a record is of the message that Put writes behind all others.
func isEnd(r *Record) bool { return bytes.Contains(r.Key, []byte("parity")) }

// Run runs a case that was put into p. The error is of the run, not of the case.
func (d *Debezium) Run(ctx context.Context, c *Case, p *Place, slot string) (o Outcome, err error) {
	config, err := c.Base(p, slot)
	if err != nil {
		return o, err
	}
	c.apart(config)
	config["poll.interval.ms"] = "20"
	name := c.Slug()
	err = d.Worker.TryPut(ctx, name, config)
	var refusal *RESTError
	if errors.As(err, &refusal) {
		return Outcome{Failure: refusal.Message, AtStart: true}, nil
	}
	if err != nil {
		return o, err
	}
	err = d.atEnd(ctx, name)
	var failed *ConnectorFailure
	if errors.As(err, &failed) {
		o.Failure = cause(failed.Trace)
		err = nil
	}
	if removed := d.Worker.TryDelete(context.WithoutCancel(ctx), name); err == nil {
		err = removed
	}
	if err != nil {
		return o, fmt.Errorf("case %q: %w", c.Name, err)
	}
	records, topics, err := readTopics(ctx, d.Brokers, name+".")
	if err != nil {
		return o, fmt.Errorf("read what Debezium wrote: %w", err)
	}
	for _, r := range records {
		if c.messages() && !isEnd(&r) || !c.messages() && !strings.HasSuffix(r.Topic, config["topic.prefix"]+".message") {
			o.Records = append(o.Records, r)
		}
	}
	if err := deleteTopics(ctx, d.Brokers, topics); err != nil {
		return o, fmt.Errorf("delete topics: %w", err)
	}
	if c.registered() {
		err = d.Registry.tell(ctx, &o, name+".", ".message-")
	}
	return o, err
}

// atEnd waits until the connector has stored an offset that is of the last message: everything before it is acknowledged then.
func (d *Debezium) atEnd(ctx context.Context, name string) error {
	for {
		s, err := d.Worker.Status(ctx, name)
		if err != nil {
			return err
		}
		if s.Connector == "FAILED" || s.Task == "FAILED" {
			return &ConnectorFailure{Name: name, Trace: s.Trace}
		}
		offsets, err := d.Worker.TryOffsets(ctx, name)
		if err != nil {
			return err
		}
		for _, o := range offsets {
			if o.Offset["messageType"] == "MESSAGE" {
				return nil
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: connector %q, task %q, offsets %v", context.Cause(ctx), s.Connector, s.Task, offsets)
		}
	}
}

// cause is the last cause of a stack trace, in one line.
func cause(trace string) string {
	if i := strings.LastIndex(trace, "Caused by: "); i >= 0 {
		trace = trace[i+len("Caused by: "):]
	}
	line, _, _ := strings.Cut(trace, "\n\t")
	return strings.TrimSpace(line)
}
