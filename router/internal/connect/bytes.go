package connect

// NewByteArray returns Kafka Connect's ByteArrayConverter. It writes bytes as they are. Other
// values are errors.
func NewByteArray() Converter { return byteArray{} }

type byteArray struct{}

func (byteArray) Append(dst []byte, _ string, s *Schema, v any) (out []byte, null bool, err error) {
	if s != nil && s.Type != Bytes {
		return dst, false, throw("Invalid schema type for ByteArrayConverter: %s", s.Type)
	}
	switch v := v.(type) {
	case nil:
		return dst, true, nil
	case []byte:
		return append(dst, v...), false, nil
	default:
		class := "java.lang.String"
		if _, ok := v.(*Unscaled); ok {
			class = "java.math.BigDecimal"
		}
		return dst, false, throw("ByteArrayConverter is not compatible with objects of type class %s", class)
	}
}

// NewBinary returns Debezium's BinaryDataConverter. It writes bytes as they are. The delegate
// (delegate.converter.type) writes other values; without a delegate they are errors.
func NewBinary(delegate Converter) Converter { return binary{delegate} }

type binary struct{ delegate Converter }

func (c binary) Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error) {
	if s == nil || s.Type == Bytes {
		switch v := v.(type) {
		case nil:
			return dst, true, nil
		case []byte:
			return append(dst, v...), false, nil
		}
	}
	if c.delegate == nil {
		text := "null"
		if v != nil {
			b, err := java.append(nil, s, v, nil, false)
			if err != nil {
				return dst, false, err
			}
			text = string(b)
		}
		return dst, false, throw("A %s of type '%s' requires a delegate.converter.type to be configured", topic, text)
	}
	return c.delegate.Append(dst, topic, s, v)
}
