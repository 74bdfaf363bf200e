//go:build linux || darwin

package registry

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// insist repeats a request for up to a minute while its error can be tried again: a registry that has just started may be slow.
func insist(request func() (uint32, error)) (id uint32, err error) {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if id, err = request(); !fault.Retryable(err) {
			break
		}
	}
	return id, err
}

// TestAnIncompatibleSchemaWaitsForAPerson, on a real registry: the error names the subject, the rule and both versions, and once the
// rule is another one, the schema is registered.
func TestAnIncompatibleSchemaWaitsForAPerson(t *testing.T) {
	url := "http://" + testenv.Registry(t) + "/apis/ccompat/v7"
	admin, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	rule := func(level sr.CompatibilityLevel) {
		if r := admin.SetCompatibility(t.Context(), sr.SetCompatibility{Level: level}, "orders-value")[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	c := client(t, Config{URLs: []string{url}})
	defer c.Deliver(t.Context(), slog.New(slog.DiscardHandler))()
	first := answer(t, c, text, true, false)
	if again := answer(t, c, text, true, false); again != first {
		t.Errorf("ids %d and %d", first, again)
	}
	rule(sr.CompatBackward)
	wider := strings.Replace(text, `]}`, `,{"name":"price","type":"double"}]}`, 1)
	_, err = c.SchemaID("orders-value", wider, "AVRO", true, false)
	pending := fault.Awaits(err)
	for pending.Stalled() == nil {
		time.Sleep(time.Millisecond)
	}
	refused, ok := errors.AsType[*incompatible](pending.Stalled())
	if !ok || refused.subject != "orders-value" || refused.rule != "BACKWARD" || refused.version != 1 || !strings.Contains(refused.Error(), "price") || fault.Hint(refused) == "" {
		t.Fatalf("%v", pending.Stalled())
	}
	t.Log(refused)
	rule(sr.CompatNone)
	if id := answer(t, c, wider, true, false); id == first {
		t.Errorf("id %d", id)
	}
	looks := client(t, Config{URLs: []string{url}})
	looks.Produce(true)
	const object = `{"type":"object","title":"Order","properties":{"id":{"type":"integer","connect.index":0,"connect.type":"int64"}}}`
	id, err := insist(func() (uint32, error) { return looks.SchemaID("shipments-value", object, "JSON", true, false) })
	if err != nil {
		t.Fatal(err)
	}
	for _, latest := range []bool{false, true} {
		if found, err := looks.SchemaID("shipments-value", object, "JSON", false, latest); found != id || err != nil {
			t.Errorf("id %d, not %d: %v", found, id, err)
		}
	}
}

// TestARealRegistryTakesProtobuf: what walpost prints, and its refusal.
func TestARealRegistryTakesProtobuf(t *testing.T) {
	url := "http://" + testenv.Registry(t) + "/apis/ccompat/v7"
	admin, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, Config{URLs: []string{url}})
	c.Produce(true)
	first, err := insist(func() (uint32, error) { return c.SchemaID("parcels-value", parcel, "PROTOBUF", true, false) })
	if err != nil {
		t.Fatal(err)
	}
	for _, latest := range []bool{false, true} {
		if found, err := c.SchemaID("parcels-value", parcel, "PROTOBUF", false, latest); found != first || err != nil {
			t.Errorf("id %d, not %d: %v", found, first, err)
		}
	}
	if r := admin.SetCompatibility(t.Context(), sr.SetCompatibility{Level: sr.CompatBackward}, "parcels-value")[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	other := strings.Replace(parcel, "string note", "int64 note", 1)
	_, err = c.SchemaID("parcels-value", other, "PROTOBUF", true, false)
	if refused, ok := errors.AsType[*incompatible](err); !ok || refused.subject != "parcels-value" || refused.rule != "BACKWARD" || refused.version != 1 {
		t.Fatalf("%v", err)
	}
	t.Log(err)
	if id, err := c.SchemaID("parcels-value", strings.Replace(parcel, "string note = 2;", "string note = 2;\n  string more = 4;", 1), "PROTOBUF", true, false); err != nil || id == first {
		t.Errorf("id %d, %v", id, err)
	}
}
