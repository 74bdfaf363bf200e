package inbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

func TestTheTablesWorkOnTheOldestAndNewestPostgres(t *testing.T) {
	for _, version := range []string{"14", "18"} {
		t.Run(version, func(t *testing.T) {
			pg := testenv.Postgres(t, version)
			dsn := pg.Database(t)
			up, down, ok := strings.Cut(inbox.Schema("").Goose(0), "-- +goose Down\n")
			if !ok {
				t.Fatal("the migration has no way back")
			}
			pg.Exec(t, dsn, up, down, ddl)
			pg.Exec(t, dsn, "CREATE TABLE effects (n bigserial, id text, consumer text, note text)")
			p := &place{T: t, dsn: dsn, pool: open(t, dsn, 4)}
			for i := range 3 {
				if fresh, err := inbox.Pgx(p.pool).Once(t.Context(), "c", event("a"), nothing); fresh != (i == 0) || err != nil {
					t.Errorf("delivery %d: %t, %v", i, fresh, err)
				}
				if fresh, err := handleBatch(t.Context(), inbox.Pgx(p.pool), "c", event("b"), event("c")); (len(fresh) == 2) != (i == 0) || err != nil {
					t.Errorf("batch %d: %+v, %v", i, fresh, err)
				}
				p.turn()
			}
		})
	}
}

// The grants are those of the comment on DDL.
func TestAConsumerNeedsTheRightsThatTheDocumentNames(t *testing.T) {
	p := newPlace(t, "")
	role := "reader_" + p.value("SELECT current_database()")
	p.exec("CREATE ROLE " + role + " LOGIN; GRANT SELECT, INSERT ON inbox_processed TO " + role +
		"; GRANT SELECT, UPDATE ON inbox_generations TO " + role + "; GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_messages TO " + role)
	t.Cleanup(func() {
		if _, err := p.pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	p.turn() // the consumer needs no right on the new generation itself
	config, err := pgx.ParseConfig(p.dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.User = role
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for i := range 2 {
		if fresh, err := inbox.Pgx(conn).Once(t.Context(), "c", event("a"), nothing); fresh != (i == 0) || err != nil {
			t.Errorf("delivery %d: %t, %v", i, fresh, err)
		}
	}
}
