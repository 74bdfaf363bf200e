package outbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A large payload goes to the store, the event has a claim for it, and the reader gets the payload
// and finds every change of it.
func TestALargePayloadIsClaimed(t *testing.T) {
	for _, typ := range []string{"jsonb", "json", "text", "bytea"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			store := FileStore(t.TempDir())
			o := open(t, Options{PayloadType: typ, MaxPayload: 10, Store: store})
			pg, dsn := database(t, o)
			h := handles["pgx"](t, dsn)
			large := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
			small := []byte(`"12345678"`) // 10 bytes
			if err := o.Write(t.Context(), h.tx, Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: large}, Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: small}); err != nil {
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
			if len(event) > maxClaim {
				t.Errorf("the event has %d bytes", len(event))
			}
			got, err := Fetch(t.Context(), store, event)
			if err != nil || string(got) != string(large) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if got, err := Fetch(t.Context(), store, small); err != nil || string(got) != string(small) {
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
				if _, err := Fetch(t.Context(), store, event); !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
			if _, err := Fetch(t.Context(), store, event); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a payload that was removed: %v", err)
			}
		})
	}
}

// A value from Kafka cannot name another file, and only what Write made is a claim.
func TestOnlyAClaimIsAClaim(t *testing.T) {
	store := FileStore(t.TempDir())
	key := NewID() + "-" + digest(nil)
	good := `{"walpost_claim": {"key": "` + key + `", "sha256": "x", "size": 1}}`
	for value, want := range map[string]bool{
		good: true, " " + good + "\n": true, good + good: false, `[` + good + `]`: false, good[:len(good)-1] + `, "a": 1}`: false,
		strings.Replace(good, key, "../"+key, 1): false, strings.Replace(good, key, "/etc/passwd", 1): false,
		`{"walpost_claim": null}`: false, `{}`: false, "": false, strings.Repeat(" ", maxClaim) + good: false,
	} {
		if _, claim := readClaim([]byte(value)); claim != want {
			t.Errorf("%s: %v", value, claim)
		}
		if _, err := standard.payload([]byte(value)); want && (err == nil || !strings.Contains(err.Error(), "walpost_claim")) {
			t.Errorf("Write accepts %s: %v", value, err)
		}
	}
	claim := good[len(`{"walpost_claim": `) : len(good)-1]
	for _, refused := range []string{
		`{"walpost_claim": 1, "walpost_claim": ` + claim + `}`, `{"\u0077alpost_claim": ` + claim + `}`, `{"a": 1, "walpost\u005Fclaim": 1}`,
		"\n" + strings.Repeat(" ", maxClaim) + good, `{"walpost_claim": null}`, `{"walpost_claim": "` + strings.Repeat("x", maxClaim) + `"}`,
	} {
		if _, err := standard.payload([]byte(refused)); err == nil || !strings.Contains(err.Error(), "walpost_claim") {
			t.Errorf("Write accepts %s: %v", refused, err)
		}
	}
	for _, other := range []string{
		`{"WALPOST_CLAIM": ` + claim + `}`, `{"walpoſt_claim": ` + claim + `}`, `{"a": ` + good + `}`, `[` + good + `]`, `"walpost_claim"`, `{"a": "walpost_claim"}`,
	} {
		if _, err := standard.payload([]byte(other)); err != nil {
			t.Errorf("Write refuses %s: %v", other, err)
		}
		if got, err := Fetch(t.Context(), store, []byte(other)); err != nil || string(got) != other {
			t.Errorf("Fetch of %s: %s, %v", other, got, err)
		}
	}
	for _, outside := range []string{"../x", "/etc/passwd", "."} {
		if err := store.Put(t.Context(), outside, []byte("x")); err == nil {
			t.Errorf("wrote %s", outside)
		}
	}
	if _, err := store.Get(t.Context(), "../../etc/passwd"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read outside of the folder: %v", err)
	}
}

// A failing store is a store that fails to put a payload.
type failing struct{ Store }

var errFull = errors.New("the store is full")

func (failing) Put(context.Context, string, []byte) error { return errFull }

func TestWithoutTheStoreNothingIsWritten(t *testing.T) {
	pg, dsn := database(t, standard)
	h := handles["pgx"](t, dsn)
	large := Event{AggregateType: "a", AggregateID: "large", Type: "t", Payload: strings.Repeat("x", 100)}
	small := Event{AggregateType: "a", AggregateID: "small", Type: "t", Payload: "x"}
	var bad *EventError
	if err := open(t, Options{MaxPayload: 10, Store: failing{}}).Write(t.Context(), h.tx, small, large); !errors.Is(err, errFull) || !errors.As(err, &bad) || bad.Index != 1 {
		t.Errorf("a store that fails: %v", err)
	}
	if err := open(t, Options{MaxPayload: 10}).Write(t.Context(), h.tx, small, large); !errors.As(err, &bad) || bad.Field != "Payload" || !strings.Contains(err.Error(), "has 102 bytes") {
		t.Errorf("no store: %v", err)
	}
	if err := Write(t.Context(), h.tx, small); err != nil {
		t.Error(err)
	}
	if err := h.commit(); err != nil {
		t.Error(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(aggregate_id, ' ') FROM outbox"); got != "small" {
		t.Errorf("rows %s", got)
	}
}
