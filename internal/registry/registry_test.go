package registry

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
)

const (
	text = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}`
	more = `{"type":"record","name":"Order","doc":"an order","fields":[{"name":"id","type":"long","doc":"its id"}]}`
)

func client(t *testing.T, c Config) *Client {
	t.Helper()
	cl, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func fake(t *testing.T, opts ...srfake.Option) *srfake.Registry {
	r := srfake.New(opts...)
	t.Cleanup(r.Close)
	return r
}

// answer calls SchemaID until the id is there.
func answer(t *testing.T, c *Client, schema string, register, latest bool) uint32 {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		id, err := c.SchemaID("orders-value", schema, "AVRO", register, latest)
		if err == nil {
			return id
		}
		if fault.Awaits(err) == nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no answer")
	return 0
}

func TestAClientThatWritesNothingRegistersNothing(t *testing.T) {
	r := fake(t)
	asked := 0
	r.Intercept(func(http.ResponseWriter, *http.Request) bool { asked++; return false })
	c := client(t, Config{URLs: []string{r.URL()}})
	for range 3 {
		if id, err := c.SchemaID("orders-value", text, "AVRO", true, false); id != 0 || err != nil || r.SubjectExists("orders-value") || asked != 1 {
			t.Errorf("id %d, %v, asked %d times", id, err, asked)
		}
	}
	c.Produce(true)
	if id, err := c.SchemaID("payments-value", text, "AVRO", true, false); id == 0 || err != nil {
		t.Errorf("id %d, %v", id, err)
	}
	c.Produce(false)
	r.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: text})
	if id, err := c.SchemaID("orders-value", text, "AVRO", true, false); id != 7 || err != nil {
		t.Errorf("id %d, %v", id, err)
	}
	r.Close()
	if _, err := c.SchemaID("orders-value", text, "AVRO", true, false); !fault.Retryable(err) {
		t.Errorf("%v", err)
	}
}

// TestARegistryThatIsDownIsWaitedFor: SchemaID says at once that there is no answer, and why.
func TestARegistryThatIsDownIsWaitedFor(t *testing.T) {
	r := fake(t)
	down := make(chan struct{})
	r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		select {
		case <-down:
			return false
		default:
			http.Error(w, "no leader", http.StatusServiceUnavailable)
			return true
		}
	})
	c := client(t, Config{URLs: []string{r.URL()}})
	defer c.Deliver(t.Context(), slog.New(slog.DiscardHandler))()
	_, err := c.SchemaID("orders-value", text, "AVRO", true, false)
	waitsForALeader(t, err)
	close(down)
	if id := answer(t, c, text, true, false); id != 1 {
		t.Errorf("id %d", id)
	}
}

func TestAStopEndsTheWait(t *testing.T) {
	c := client(t, Config{URLs: []string{"http://127.0.0.1:1"}})
	stop := c.Deliver(t.Context(), slog.New(slog.DiscardHandler))
	if _, err := c.SchemaID("orders-value", text, "AVRO", true, false); fault.Awaits(err) == nil {
		t.Fatal(err)
	}
	stop()
}

// A command that writes nothing cannot register either. What a relay would wait for is an error.
func TestASchemaThatARelayWouldWaitForIsAnErrorOfEveryCommand(t *testing.T) {
	c := client(t, Config{URLs: []string{fake(t).URL()}})
	for _, latest := range []bool{false, true} {
		if _, err := c.SchemaID("orders-value", text, "AVRO", false, latest); !fault.Retryable(err) || fault.Hint(err) == "" {
			t.Errorf("%v", err)
		}
	}
}

func TestTheLatestVersionMustHaveTheSameEncoding(t *testing.T) {
	r := fake(t)
	r.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: more})
	c := client(t, Config{URLs: []string{r.URL()}})
	c.Produce(true)
	if id, err := c.SchemaID("orders-value", text, "AVRO", false, true); id != 7 || err != nil {
		t.Errorf("id %d, %v", id, err)
	}
	r.SeedSchema("orders-value", 2, 8, sr.Schema{Schema: strings.Replace(text, "long", "int", 1)})
	_, err := c.SchemaID("orders-value", text, "AVRO", false, true)
	if other, ok := errors.AsType[*mismatch](err); !ok || other.version != 2 || fault.Hint(err) == "" {
		t.Errorf("%v", err)
	}
}

// Annotations, the order of members and spaces may differ in JSON Schema. The name of a field, a type and the format may not.
func TestTheLatestVersionOfAJSONSchemaMayDifferInAnnotations(t *testing.T) {
	const ours = `{"type":"object","title":"Order","properties":{"title":{"type":"string","connect.index":0},"id":{"connect.index":1,"oneOf":[{"type":"null"},{"type":"integer","connect.type":"int64"}]}}}`
	for latest, fits := range map[string]bool{
		`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"id": {"oneOf": [{"type": "null"}, {"type": "integer", "description": "key"}]}, "title": {"type": "string", "default": "x"}}, "type": "object"}`: true,
		strings.Replace(ours, `"integer"`, `"number"`, 1):    false,
		strings.Replace(ours, `"title":{`, `"name":{`, 1):    false,
		strings.Replace(ours, `{`, `{"required":["id"],`, 1): false,
		"true": false,
	} {
		r := fake(t)
		r.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: latest, Type: sr.TypeJSON})
		c := client(t, Config{URLs: []string{r.URL()}})
		c.Produce(true)
		id, err := c.SchemaID("orders-value", ours, "JSON", false, true)
		if _, differs := errors.AsType[*mismatch](err); differs == fits || fits && id != 7 {
			t.Errorf("%s: id %d, %v", latest, id, err)
		}
		if _, err := c.SchemaID("orders-value", text, "AVRO", false, true); err == nil || !strings.Contains(err.Error(), "its format is JSON") {
			t.Errorf("%v", err)
		}
	}
}

// Comments and spaces may differ in Protobuf. A name, a number and a text may not.
func TestTheLatestVersionOfProtobufMayDifferInComments(t *testing.T) {
	for latest, fits := range map[string]bool{
		strings.Replace(strings.Join(strings.Fields(parcel), "\n"), "string", "/* a \" */ string // it's\n", 1): true,
		strings.Replace(parcel, "note = 2", "note = 4", 1):                                                      false,
		strings.Replace(parcel, "note = 2", "remark = 2", 1):                                                    false,
		strings.Replace(parcel, `"scale"`, `"sc ale"`, 1):                                                       false,
		strings.Replace(parcel, "string note", "stringnote", 1):                                                 false,
	} {
		r := fake(t)
		r.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: latest, Type: sr.TypeProtobuf})
		c := client(t, Config{URLs: []string{r.URL()}})
		c.Produce(true)
		id, err := c.SchemaID("orders-value", parcel, "PROTOBUF", false, true)
		if _, differs := errors.AsType[*mismatch](err); differs == fits || fits && id != 7 {
			t.Errorf("%s: id %d, %v", latest, id, err)
		}
	}
}

func TestAJSONSchemaIsRegisteredAsOne(t *testing.T) {
	r := fake(t)
	c := client(t, Config{URLs: []string{r.URL()}})
	c.Produce(true)
	id, err := c.SchemaID("orders-value", `{"type":"string"}`, "JSON", true, false)
	if s, ok := r.GetSchema("orders-value", 1); err != nil || !ok || s.Type != sr.TypeJSON || s.Schema.Schema != `{"type":"string"}` || uint32(s.ID) != id {
		t.Errorf("%+v, %v", s, err)
	}
	if found, err := c.SchemaID("orders-value", `{"type":"string"}`, "JSON", false, false); err != nil || found != id {
		t.Errorf("id %d, %v", found, err)
	}
}

func TestASchemaThatNobodyHasRegisteredIsAnError(t *testing.T) {
	c := client(t, Config{URLs: []string{fake(t).URL()}})
	c.Produce(true)
	if _, err := c.SchemaID("orders-value", text, "AVRO", false, false); err == nil || !strings.Contains(err.Error(), "is not registered") || fault.Hint(err) == "" {
		t.Errorf("%v", err)
	}
}

func TestThePasswordIsReadAgain(t *testing.T) {
	r := fake(t, srfake.WithAuth("Basic dTpw")) // u:p
	file := filepath.Join(t.TempDir(), "password")
	c := client(t, Config{URLs: []string{r.URL()}, Username: "u", PasswordFile: file})
	c.Produce(true)
	for password, fine := range map[string]bool{"wrong": false, "p": true} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.SchemaID("orders-value", text, "AVRO", true, false); (err == nil) != fine {
			t.Errorf("%s: %v", password, err)
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	c := Config{URLs: []string{"r:8081", "https://u@r"}, Password: conf.Secret("p")}
	var got []string
	for _, p := range c.Validate() {
		got = append(got, p.Field)
	}
	if want := "schema_registry.urls[0] schema_registry.urls[1] schema_registry.username"; strings.Join(got, " ") != want {
		t.Errorf("%v", got)
	}
}

func TestThePageShowsARefusal(t *testing.T) {
	page, err := os.ReadFile("../../docs/schema-evolution.md")
	if err != nil {
		t.Fatal(err)
	}
	refused := incompatible{subject: "orders-value", rule: "BACKWARD", version: 5, err: errors.New("refused")}
	want := strings.TrimSuffix(strings.TrimPrefix(refused.Error(), "schema registry: "), ": refused")
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/schema-evolution.md lacks %s", want)
	}
}

// waitsForALeader wants an error that waits, because the registry answers that it has no leader.
func waitsForALeader(t *testing.T, err error) {
	t.Helper()
	pending := fault.Awaits(err)
	if pending == nil {
		t.Fatal(err)
	}
	for pending.Stalled() == nil {
		time.Sleep(time.Millisecond)
	}
	if pending.Ready() || !strings.Contains(pending.Stalled().Error(), `subject "orders-value": no leader`) {
		t.Errorf("%v", pending.Stalled())
	}
}

// parcel is a schema as walpost prints it: it has an option of a file that it does not import.
const parcel = `syntax = "proto3";
package shop.public.outbox.parcel;

import "confluent/type/decimal.proto";
import "google/protobuf/timestamp.proto";

message Value {
  confluent.type.Decimal weight = 1 [(confluent.field_meta) = {
    params: [
      {
        value: "2",
        key: "scale"
      }
    ]
  }];
  string note = 2;
  repeated linesMessage lines = 3;

  message linesMessage {
    google.protobuf.Timestamp at = 1;
  }
}
`

// Another registry is asked if the first one does not answer, or is out of order.
func TestTheNextRegistryIsAsked(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	sick := fake(t)
	sick.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, strings.Repeat("no leader ", 1000), http.StatusServiceUnavailable)
		return true
	})
	for _, first := range []string{"http://" + silent.Addr().String(), sick.URL()} {
		c := client(t, Config{URLs: []string{first, fake(t).URL()}})
		c.http.Timeout = 2 * time.Second // instead of half of askTimeout; the healthy one has no more, either
		c.Produce(true)
		if id, err := c.SchemaID("orders-value", text, "AVRO", true, false); id != 1 || err != nil {
			t.Errorf("%s: id %d, %v", first, id, err)
		}
		if err := c.Reach(t.Context()); err != nil {
			t.Errorf("%s: %v", first, err)
		}
	}
	c := client(t, Config{URLs: []string{sick.URL(), sick.URL()}})
	if err := c.Reach(t.Context()); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable: no leader") || len(err.Error()) > 1000 {
		t.Errorf("%v", err)
	}
	if wide := 2 * client(t, Config{URLs: []string{"http://a", "http://b"}}).http.Timeout; wide != askTimeout {
		t.Errorf("two registries together have %s", wide)
	}
}
