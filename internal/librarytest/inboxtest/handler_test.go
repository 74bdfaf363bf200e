package inboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/inboxtest"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestAHandlerInATransactionOfTheInbox(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	up, _ := inbox.Schema("").DDL(0)
	pg.Exec(t, dsn, up, "CREATE TABLE effects (id text)")
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	const insert = "INSERT INTO effects VALUES ($1)"
	effects := func() string {
		return pg.Value(t, dsn, "SELECT count(*) FROM effects")
	}
	calls := 0
	inTx := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		calls++
		_, err := tx.Exec(ctx, insert, m.ID)
		return err
	}
	handlers := map[string]func(context.Context, inbox.Message) error{
		"inbox.Handler": inbox.Handler(inbox.Pgx(pool), inTx),
		"pgx":           inboxtest.Handler(inbox.Pgx(pool), inTx),
		"database/sql": inboxtest.Handler(inbox.SQL(db), func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
			calls++
			_, err := tx.ExecContext(ctx, insert, m.ID)
			return err
		}),
		"refuses": inboxtest.Handler(inbox.Pgx(pool), func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if _, err := tx.Exec(ctx, insert, m.ID); err != nil {
				return err
			}
			return errNo
		}),
		"forgets": func(ctx context.Context, m inbox.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return inTx(ctx, tx, m) })
		},
		"writes outside": inboxtest.Handler(inbox.Pgx(pool), func(ctx context.Context, _ pgx.Tx, m inbox.Message) error {
			_, err := pool.Exec(ctx, insert, m.ID)
			return err
		}),
	}
	for name, want := range map[string]struct {
		said  string
		calls int
	}{
		"inbox.Handler":  {"", 1},
		"pgx":            {"", 2},
		"database/sql":   {"", 2},
		"refuses":        {"the first delivery: the handler says no", 0},
		"forgets":        {"the second delivery had an effect: it was N+1 before, and is N+2 now", 2},
		"writes outside": {"a delivery that was rolled back (does the handler write outside of its transaction?) had an effect: it was N before, and is N+1 now", 0},
	} {
		calls = 0
		m := inboxtest.Message(t, inboxtest.Event{AggregateType: "order", AggregateID: "1", Type: "t"})
		var n int
		if _, err := fmt.Sscan(effects(), &n); err != nil {
			t.Fatal(err)
		}
		text := said(t, func(t testing.TB) { inboxtest.Twice(t, handlers[name], m, effects) })
		text = strings.NewReplacer(fmt.Sprintf("was %d ", n), "was N ", fmt.Sprintf("was %d ", n+1), "was N+1 ", fmt.Sprintf("is %d ", n+1), "is N+1 ", fmt.Sprintf("is %d ", n+2), "is N+2 ", "message "+m.ID+": ", "").Replace(text)
		if text != want.said || calls != want.calls {
			t.Errorf("%s: %q after %d calls, want %q after %d", name, text, calls, want.said, want.calls)
		}
	}
	bad := inboxtest.Message(t, inboxtest.Event{AggregateType: "order", AggregateID: "1", Type: "t"})
	if text := said(t, func(t testing.TB) { inboxtest.Fails(t, handlers["refuses"], bad, effects) }); text != "" {
		t.Error(text)
	}
}
