package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/walpost/walpost/internal/testenv"
)

// readProtobuf decodes the first message of a record's key or value with the schema of its id, as a consumer does.
func readProtobuf(t *testing.T, api *sr.Client, b []byte) (fields map[string]any, err error) {
	schema, err := api.SchemaByID(t.Context(), int(binary.BigEndian.Uint32(b[1:])))
	if err != nil {
		return nil, err
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"it.proto": schema.Schema}),
	})}
	files, err := compiler.Compile(t.Context(), "it.proto")
	if err != nil {
		return nil, err
	}
	at, message := 0, b[6:]
	if b[5] != 0 { // of one index
		at, message = int(b[6]/2), b[7:]
	}
	m := dynamicpb.NewMessage(files[0].Messages().Get(at))
	if err := proto.Unmarshal(message, m); err != nil {
		return nil, err
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(proto.Message(m))
	switch {
	case err != nil:
	case m.Descriptor().FullName() == "google.protobuf.StringValue": // it is a text in JSON
		fields = map[string]any{}
		text = append(append([]byte(`{"value":`), text...), '}')
		fallthrough
	default:
		err = json.Unmarshal(text, &fields)
	}
	return fields, err
}

// Keys and values go to a real registry and come back as the rows were, while a column is added. A schema that the rule of its subject
// forbids is waited for.
func TestRowsComeBackFromProtobuf(t *testing.T) {
	t.Parallel()
	url := "http://" + testenv.Registry(t) + "/apis/ccompat/v7"
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.source = ", slot: " + s.slot() // the server is shared
	api, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN qty int, ADD COLUMN remark text")
	s.router = `, table.expand.json.payload: true, table.field.additional.missing: ignore, table.fields.additional.placement: "qty:envelope,remark:envelope,extra:envelope"`
	s.extra = fmt.Sprintf("records: {key.converter: protobuf, value.converter: protobuf, value.converter.optional.for.nullables: true, topic.prefix: shop}\nschema_registry: {urls: [%q]}\n", url)
	var mu sync.Mutex
	var got []map[string]any
	s.consume(s.topics[:1], func(rec *kgo.Record) {
		mu.Lock()
		defer mu.Unlock()
		fields, err := readProtobuf(t, api, rec.Value)
		if err != nil {
			t.Errorf("value %x: %v", rec.Value, err)
		}
		if key, err := readProtobuf(t, api, rec.Key); err != nil || key["value"] != "k1" {
			t.Errorf("key %x: %v, %v", rec.Key, key, err)
		}
		got = append(got, fields)
	})
	insert := func(columns, values string) {
		pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload%s) VALUES ('order', 'k1', 'x', %s)", columns, values))
	}
	arrives := func(want map[string]any) {
		t.Helper()
		eventually(t, time.Minute, "a record", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) > 0 })
		mu.Lock()
		defer mu.Unlock()
		if !reflect.DeepEqual(got[0], want) {
			t.Errorf("%v, want %v", got[0], want)
		}
		got = got[1:]
	}
	r := s.startReady()
	type object = map[string]any
	insert(", qty, remark", `'{"n": 1, "lines": [{"sku": "A", "price": 9.5}, {"sku": "é"}]}', 0, ''`)
	arrives(object{"qty": 0., "remark": "", "payload": object{"n": 1., "lines": []any{object{"sku": "A", "price": 9.5}, object{"sku": "é"}}}})
	subject := s.topics[0] + "-value"
	rule := func(level sr.CompatibilityLevel) {
		t.Helper()
		if r := api.SetCompatibility(t.Context(), sr.SetCompatibility{Level: level}, subject)[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	rule(sr.CompatBackward)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN extra boolean")
	insert(", extra", `'{"n": 2, "lines": [{"sku": "B", "price": 1.5}]}', true`)
	arrives(object{"extra": true, "payload": object{"n": 2., "lines": []any{object{"sku": "B", "price": 1.5}}}})
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN qty TYPE text USING qty::text")
	insert(", qty", `'{"n": 3, "lines": [{"sku": "C", "price": 1.5}]}', 'many'`)
	r.notReady(time.Minute, fmt.Sprintf("subject %q has the rule BACKWARD, and the schema for version 3 is incompatible with version 2", subject))
	rule(sr.CompatNone)
	arrives(object{"qty": "many", "payload": object{"n": 3., "lines": []any{object{"sku": "C", "price": 1.5}}}})
	r.stopsClean()
}
