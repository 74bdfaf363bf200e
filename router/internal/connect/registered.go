package connect

import (
	enc "encoding/binary"
	"errors"
	"strings"
)

// RegistryOptions are the options of a converter that has its schemas in a registry.
type RegistryOptions struct {
	Registry Registry
	Key      bool   // it writes keys, not values
	Subjects string // what they are named after: topic, record or topic_record
	Register bool   // auto.register.schemas
	Latest   bool   // use.latest.version
}

// A Registry knows the ids of schemas. A converter asks it once for each topic and schema.
type Registry interface {
	// SchemaID returns the id of a schema in a subject. format is AVRO, JSON or PROTOBUF. With register, it registers
	// the schema. Otherwise with latest, it is the id of the subject's latest version. The id 0 stands for a schema that has none
	// yet: a converter asks again for the next value.
	SchemaID(subject, schema, format string, register, latest bool) (uint32, error)
}

// registered finds the ids of schemas and remembers them.
type registered struct {
	o      RegistryOptions
	format string
	print  func(*Schema) (text []byte, record string, err error) // text is valid until the next call
	known  map[*Schema]*registeredSchema                         // of schemas that were not made for one value
	texts  map[string]*registeredSchema
}

// A registeredSchema is a schema that a converter has seen.
type registeredSchema struct {
	text   string
	record string            // its full name; "" if it is no record
	ids    map[string]uint32 // by topic

	message *protoMessage // of Protobuf, once it is made
}

func newRegistered(o RegistryOptions, format string, print func(*Schema) ([]byte, string, error)) *registered {
	return &registered{o, format, print, map[*Schema]*registeredSchema{}, map[string]*registeredSchema{}}
}

// Check returns why the converter cannot write values with a schema. It does not ask the registry. subject says that the
// values have this schema in the registry, too.
func (c *registered) Check(s *Schema, subject bool) error {
	a, err := c.schema(s)
	if err == nil && subject {
		_, err = c.subject("topic", a)
	}
	return err
}

// open appends what is before a value with the schema s.
func (c *registered) open(dst []byte, topic string, s *Schema) ([]byte, error) {
	a, err := c.schema(s)
	if err != nil {
		return dst, err
	}
	return c.frame(dst, topic, a)
}

// frame appends what is before a value.
func (c *registered) frame(dst []byte, topic string, a *registeredSchema) ([]byte, error) {
	id, known := a.ids[topic]
	if !known {
		if topic == "" {
			return dst, errors.New("without a topic there is no subject")
		}
		subject, err := c.subject(topic, a)
		if err != nil {
			return dst, err
		}
		if id, err = c.o.Registry.SchemaID(subject, a.text, c.format, c.o.Register, c.o.Latest); err != nil {
			return dst, err
		}
		if len(a.ids) >= keptSchemas {
			clear(a.ids)
		}
		if id != 0 {
			a.ids[strings.Clone(topic)] = id
		}
	}
	return enc.BigEndian.AppendUint32(append(dst, 0), id), nil
}

func (c *registered) subject(topic string, a *registeredSchema) (string, error) {
	switch {
	case c.o.Subjects == "topic" && c.o.Key:
		return topic + "-key", nil
	case c.o.Subjects == "topic":
		return topic + "-value", nil
	case a.record == "":
		return "", throw("the subject is named after a record, and the schema is none: %s", a.text)
	case c.o.Subjects == "record":
		return a.record, nil
	}
	return topic + "-" + a.record, nil
}

// schema returns what is known of a schema.
func (c *registered) schema(s *Schema) (*registeredSchema, error) {
	if a, ok := c.known[s]; ok {
		return a, nil
	}
	text, record, err := c.print(s)
	if err != nil {
		return nil, err
	}
	a, ok := c.texts[string(text)]
	if !ok || a.record != record { // in Protobuf, one text has several messages
		a = &registeredSchema{text: string(text), record: record, ids: map[string]uint32{}}
		if len(c.texts) >= keptSchemas {
			clear(c.texts)
		}
		c.texts[a.text] = a
	}
	if s == nil || keep(s) {
		if len(c.known) >= keptSchemas {
			clear(c.known)
		}
		c.known[s] = a
	}
	return a, nil
}
