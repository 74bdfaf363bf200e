package parity

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/sr"
)

// A registry is a schema registry that cases use.
type registry struct {
	address string // host:port
}

// tell adds to an outcome what the registry knows of it: the schemas that its records name, and the subjects whose names begin with
// prefix and do not contain except. Names are shown without the prefix.
func (r *registry) tell(ctx context.Context, o *Outcome, prefix, except string) error {
	cl, err := sr.NewClient(sr.URLs("http://" + r.address + ccompat))
	if err != nil {
		return err
	}
	o.Schemas = map[uint32]string{}
	for i := range o.Records {
		for _, b := range [][]byte{o.Records[i].Key, o.Records[i].Value} {
			if len(b) < 5 || b[0] != 0 {
				continue
			}
			id := binary.BigEndian.Uint32(b[1:])
			if o.Schemas[id] != "" {
				continue
			}
			schema, err := cl.SchemaByID(ctx, int(id)) // the fake's answer to SchemaTextByID is quoted once more
			var none *sr.ResponseError
			if errors.As(err, &none) && none.StatusCode == http.StatusNotFound { // it is no id
				continue
			}
			if err != nil {
				return fmt.Errorf("schema %d: %w", id, err)
			}
			o.Schemas[id] = oneLine(schema.Schema)
		}
	}
	subjects, err := cl.Subjects(ctx)
	if err != nil {
		return err
	}
	slices.Sort(subjects)
	for _, subject := range subjects {
		if !strings.HasPrefix(subject, prefix) || except != "" && strings.Contains(subject, except) {
			continue
		}
		all, err := cl.Schemas(ctx, subject)
		if err != nil {
			return fmt.Errorf("subject %s: %w", subject, err)
		}
		for _, s := range all {
			o.Subjects = append(o.Subjects, fmt.Sprintf("%s %d %s", strings.TrimPrefix(subject, prefix), s.Version, oneLine(s.Schema.Schema)))
		}
	}
	return nil
}

// ccompat is where Apicurio Registry has the API of Confluent's registry.
const ccompat = "/apis/ccompat/v7"

// oneLine is a schema on one line. Protobuf's are on several.
func oneLine(schema string) string {
	switch {
	case !strings.HasPrefix(schema, "syntax"):
		return schema
	case strings.Contains(schema, "package google.protobuf;"):
		return "wrappers.proto"
	}
	return strings.Join(strings.Fields(schema), " ")
}
