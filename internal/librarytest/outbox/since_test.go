package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/outboxtest"
)

func TestSinceGivesWhatIsCommittedAfterIt(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for name, opts := range map[string]outbox.Options{
		"default":     {},
		"partitioned": {Partitioned: true},
		"custom":      {Table: `shop."Out box?"`, PayloadType: "bytea", Headers: []string{"tenant"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := outbox.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			dsn := pg.Database(t)
			up, _ := o.DDL()
			pg.Exec(t, dsn, "CREATE SCHEMA shop", up)
			pool, err := pgxpool.New(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			place := func(id string, result error) {
				t.Helper()
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					event := outbox.Event{AggregateType: "order", AggregateID: id, Type: "Placed", Payload: []byte(`{"id": 1}`), Headers: map[string]string{"tenant": "acme"}}
					return errors.Join(o.Write(t.Context(), tx, event), result)
				})
				if !errors.Is(err, result) {
					t.Fatal(err)
				}
			}
			place("before", nil)

			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			dbs := map[string]any{"pool": pool, "conn": conn}
			for _, driver := range []string{"pgx", "postgres"} {
				db, err := sql.Open(driver, dsn)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				one, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				dbs[driver], dbs["a connection of "+driver] = db, one
			}
			committed := map[string]func(...string) []outbox.Event{}
			for name, db := range dbs {
				committed[name] = outboxtest.SinceIn(t, o, db)
				if opts.Table == "" {
					committed[name+", Since"] = outboxtest.Since(t, db)
				}
			}
			for name, since := range committed {
				if got := since(); len(got) != 0 {
					t.Errorf("%s: before anything is written: %v", name, got)
				}
			}
			place("1", nil)
			place("rolled back", errors.New("on purpose"))
			place("2", nil)
			place("1", nil)
			for name, since := range committed {
				for filter, want := range map[string]string{"": "[1 2 1]", "1": "[1 1]", "2": "[2]", "3": "[]"} {
					var ids, filters []string
					if filter != "" {
						filters = []string{filter}
					}
					for _, e := range since(filters...) {
						ids = append(ids, e.AggregateID)
					}
					if fmt.Sprint(ids) != want {
						t.Errorf("%s, filter %q: %v, want %s", name, filter, ids, want)
					}
				}
				outboxtest.Expect(t, since("2"), outbox.Event{AggregateType: "order", AggregateID: "2", Type: "Placed", Payload: map[string]int{"id": 1}, Headers: map[string]string{"tenant": "acme"}})
				if got := since("1", "2"); len(got) != 3 {
					t.Errorf("%s: two ids: %v", name, got)
				}
			}
		})
	}
}
