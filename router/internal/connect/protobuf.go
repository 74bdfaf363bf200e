package connect

// ProtobufOptions are the options of Confluent's ProtobufConverter.
type ProtobufOptions struct {
	RegistryOptions
	Optional bool // optional.for.nullables
	Wrappers bool // wrapper.for.nullables
	Scrub    bool // scrub.invalid.names
}

// NewProtobuf returns Confluent's ProtobufConverter. It writes Protobuf in the wire format of Confluent's
// registry: a zero byte, the id of the schema in four bytes, the index of the message in the schema, and
// the message. A null is null for Kafka. A value that is no struct is a message of wrappers.proto.
//
// The schemas import only files that a registry knows, so they have no references.
func NewProtobuf(o ProtobufOptions) Converter {
	p := protoPrinter{o: &o}
	return &protobufConverter{newRegistered(o.RegistryOptions, "PROTOBUF", p.schema), &o}
}

type protobufConverter struct {
	*registered
	o *ProtobufOptions
}

func (c *protobufConverter) Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error) {
	if s == nil && v == nil {
		return dst, true, nil
	}
	a, err := c.schema(s)
	if err != nil {
		return dst, false, err
	}
	if v == nil {
		return dst, true, nil
	}
	if a.message == nil && s.Type == Struct {
		p := protoPrinter{o: c.o}
		if _, a.message, err = p.tree(s); err != nil {
			return dst, false, err
		}
	}
	out = append(dst, 0, 0, 0, 0, 0)
	switch {
	case s.Type == Struct:
		out, err = c.o.fields(append(out, 0), a.message, s, v)
	case logical(s): // it is no message of wrappers.proto, and Confluent's converter writes it so
		out, err = appendProtoLogical(append(out, 0), s, v)
	default:
		out, err = appendProtoScalar(appendWrapperIndex(out, protoScalars[s.Type]), 1, false, s, v)
	}
	if err == nil { // a value that fails registers no schema
		_, err = c.frame(out[:len(dst)], topic, a)
	}
	if err != nil {
		return dst, false, err
	}
	return out, false, nil
}

func (c *protobufConverter) AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error) {
	if s == nil || s.Type != String || logical(s) {
		return c.Append(dst, topic, s, string(text))
	}
	if out, err = c.open(dst, topic, s); err != nil {
		return dst, false, err
	}
	return appendProtoText(appendWrapperIndex(out, protoString), 1, false, text), false, nil
}

// appendWrapperIndex appends the index of a wrapper in wrappers.proto. The first message has a short form.
func appendWrapperIndex(dst []byte, k protoKind) []byte {
	if k == 0 {
		return append(dst, 0)
	}
	return append(dst, 2, byte(k)*2)
}

// kind returns the type of a field with the schema s, which is not an array.
func (o *ProtobufOptions) kind(s *Schema) protoKind {
	switch s.Name {
	case DecimalName:
		return protoDecimal
	case DateName:
		return protoDate
	case TimeName:
		return protoTime
	case TimestampName:
		return protoTimestamp
	}
	switch {
	case s.Type >= Array:
		return protoMessageKind
	case o.Wrappers && s.Optional:
		return protoWrapped + protoScalars[s.Type]
	}
	return protoScalars[s.Type]
}
