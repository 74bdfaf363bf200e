package outbox_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/outbox"
)

// A large payload goes to the store, the event has a claim for it, and the reader gets the payload
// and finds every change of it.
func TestALargePayloadIsClaimed(t *testing.T) {
	for _, typ := range []string{"jsonb", "json", "text", "bytea"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			store := outbox.FileStore(t.TempDir())
			o := open(t, outbox.Options{PayloadType: typ, MaxPayload: 10, Store: store})
			pg, dsn := database(t, o)
			h := handles["pgx"](t, dsn)
			large := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
			small := []byte(`"12345678"`) // 10 bytes
			if err := o.Write(t.Context(), h.tx, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: large}, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: small}); err != nil {
				t.Fatal(err)
			}
			if err := h.commit(); err != nil {
				t.Fatal(err)
			}
			value := func(n string) []byte {
				text := "payload::text"
				if typ == "bytea" {
					text = "convert_from(payload, 'UTF8')"
				}
				return []byte(pg.Value(t, dsn, "SELECT "+text+" FROM outbox ORDER BY seq OFFSET "+n+" LIMIT 1"))
			}
			if string(value("1")) != string(small) {
				t.Errorf("a payload of 10 bytes became %s", value("1"))
			}
			event := value("0")
			if len(event) > 512 {
				t.Errorf("the event has %d bytes", len(event))
			}
			got, err := outbox.Fetch(t.Context(), store, event)
			if err != nil || string(got) != string(large) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if got, err := outbox.Fetch(t.Context(), store, small); err != nil || string(got) != string(small) {
				t.Errorf("%s, %v", got, err)
			}
			files, err := os.ReadDir(string(store))
			if err != nil || len(files) != 1 || !strings.HasPrefix(files[0].Name(), pg.Value(t, dsn, "SELECT id::text FROM outbox ORDER BY seq LIMIT 1")+"-") {
				t.Fatalf("files %v, %v", files, err)
			}
			file := filepath.Join(string(store), files[0].Name())
			for name, damaged := range map[string][]byte{"another byte": slices.Concat(large[:50], []byte("y"), large[51:]), "shorter": large[1:], "longer": append(slices.Clone(large), ' ')} {
				if err := os.WriteFile(file, damaged, 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := outbox.Fetch(t.Context(), store, event); !errors.Is(err, outbox.ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
			if _, err := outbox.Fetch(t.Context(), store, event); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a payload that was removed: %v", err)
			}
		})
	}
}

// A failing store is a store that fails to put a payload.
type failing struct{ outbox.Store }

var errFull = errors.New("the store is full")

func (failing) Put(context.Context, string, []byte) error { return errFull }

func TestWithoutTheStoreNothingIsWritten(t *testing.T) {
	pg, dsn := database(t, standard)
	h := handles["pgx"](t, dsn)
	large := outbox.Event{AggregateType: "a", AggregateID: "large", Type: "t", Payload: strings.Repeat("x", 100)}
	small := outbox.Event{AggregateType: "a", AggregateID: "small", Type: "t", Payload: "x"}
	var bad *outbox.EventError
	if err := open(t, outbox.Options{MaxPayload: 10, Store: failing{}}).Write(t.Context(), h.tx, small, large); !errors.Is(err, errFull) || !errors.As(err, &bad) || bad.Index != 1 {
		t.Errorf("a store that fails: %v", err)
	}
	if err := open(t, outbox.Options{MaxPayload: 10}).Write(t.Context(), h.tx, small, large); !errors.As(err, &bad) || bad.Field != "Payload" || !strings.Contains(err.Error(), "has 102 bytes") {
		t.Errorf("no store: %v", err)
	}
	if err := outbox.Write(t.Context(), h.tx, small); err != nil {
		t.Error(err)
	}
	if err := h.commit(); err != nil {
		t.Error(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(aggregate_id, ' ') FROM outbox"); got != "small" {
		t.Errorf("rows %s", got)
	}
}
