package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/lib/attempts"
	"github.com/walpost/walpost/internal/testenv"
)

// A home is a database with the tables of the package and a table for effects.
type home struct {
	*testing.T
	pg   *testenv.PG
	dsn  string
	pool *pgxpool.Pool
}

func newHome(t *testing.T, configure ...func(*pgxpool.Config)) *home {
	t.Helper()
	b := &home{T: t, pg: testenv.Postgres(t, "17")}
	b.dsn = b.pg.Database(t)
	b.pg.Exec(t, b.dsn, ddl, "CREATE TABLE effects (n bigserial, id text)")
	config, err := pgxpool.ParseConfig(b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configure {
		c(config)
	}
	if b.pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	return b
}

func (b *home) expect(want, sql string) {
	b.Helper()
	if got := b.pg.Value(b, b.dsn, sql); got != want {
		b.Errorf("%s gives %s, want %s", sql, got, want)
	}
}

func insert(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", m.ID)
	return err
}

var errNo = errors.New("the handler says no")

const unnamed = `"" cannot be the name of a consumer: it must be text of 1 to 1024 bytes`

func TestAHandlerMarksInTheNameOfTheGroup(t *testing.T) {
	b := newHome(t)
	handle := inbox.Handler(inbox.Pgx(b.pool), insert)
	m := inbox.Message{ID: "1", Topic: "t"}
	if err := handle(t.Context(), m); err == nil || err.Error() != unnamed || attempts.Of(err) != attempts.Elsewhere {
		t.Errorf("a message without a group gives %v", err)
	}
	for _, m.Group = range []string{"g", "g", "other"} {
		if err := handle(t.Context(), m); err != nil {
			t.Error(err)
		}
	}
	b.expect("2", "SELECT count(*) FROM effects")
	b.expect("g t 1,other t 1", "SELECT string_agg(concat_ws(' ', consumer, scope, event_id), ',' ORDER BY consumer) FROM inbox_processed")

	refuse := inbox.Handler(inbox.Pgx(b.pool), func(context.Context, pgx.Tx, inbox.Message) error { return inbox.Permanent(errNo) })
	m.ID = "2"
	err := refuse(t.Context(), m)
	if _, ok := errors.AsType[*inbox.HandlerError](err); !ok || !errors.Is(err, errNo) || attempts.Of(err) != attempts.Permanent {
		t.Errorf("a handler that fails gives %v", err)
	}
}

// A batch has one transaction, all or nothing, and the handler gets what is new.
func TestABatchHandlerHasOneTransaction(t *testing.T) {
	b := newHome(t)
	var got []string
	refuse := ""
	handle := inbox.BatchHandler(inbox.Pgx(b.pool), func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error {
		ids := ""
		for _, m := range fresh {
			if ids += m.ID; m.ID == refuse {
				got = append(got, ids)
				return errNo
			}
			if err := insert(ctx, tx, m); err != nil {
				return err
			}
		}
		got = append(got, ids)
		return nil
	})
	batch := func(ids string) (all []inbox.Message) {
		for _, id := range ids {
			all = append(all, inbox.Message{ID: string(id), Topic: "t", Group: "g"})
		}
		return all
	}
	for _, c := range []struct {
		ids, refuse string
		want        error
	}{{"", "", nil}, {"ab", "", nil}, {"abacd", "d", errNo}, {"dc", "", nil}, {"abcd", "", nil}} {
		refuse = c.refuse
		if err := handle(t.Context(), batch(c.ids)); !errors.Is(err, c.want) || err != nil && !errors.As(err, new(*inbox.HandlerError)) {
			t.Errorf("%s: %v", c.ids, err)
		}
	}
	if want := []string{"ab", "cd", "dc"}; !slices.Equal(got, want) {
		t.Errorf("the handler got %q, want %q", got, want)
	}
	b.expect("abdc", "SELECT string_agg(id, '' ORDER BY n) FROM effects")
	if err := handle(t.Context(), []inbox.Message{{ID: "e", Topic: "t"}}); err == nil || err.Error() != unnamed {
		t.Errorf("a batch without a group gives %v", err)
	}
	mixed := append(batch("e"), inbox.Message{ID: "f", Topic: "t", Group: "other"})
	if err := handle(t.Context(), mixed); err == nil || err.Error() != `inbox: the messages of a batch have the groups "g" and "other": a batch must have one` {
		t.Errorf("a batch of two groups gives %v", err)
	}
	b.expect("0", "SELECT count(*) FROM effects WHERE id IN ('e', 'f')")
}

func TestAMessageGoesToTheHandlerOfItsType(t *testing.T) {
	type tx struct{ calls []string }
	note := func(name string) inbox.HandlerFunc[*tx] {
		return func(_ context.Context, tx *tx, m inbox.Message) error {
			tx.calls = append(tx.calls, name+" "+m.Type())
			return errNo
		}
	}
	types := map[string]inbox.HandlerFunc[*tx]{"Placed": note("placed"), "Nil": nil}
	message := func(values ...string) (m inbox.Message) {
		for _, v := range values {
			m.Headers = append(m.Headers, inbox.Header{Key: "eventType", Value: []byte(v)}, inbox.Header{Key: "other", Value: []byte("x")})
		}
		return m
	}
	const untyped = "the message has no event type: the event must have one, and the relay must place it in the header eventType (router.table.fields.additional.placement)"
	var all tx
	if err := inbox.ByType(types, nil)(t.Context(), &all, message("Older", "Placed")); !errors.Is(err, errNo) {
		t.Error(err)
	}
	for _, c := range []struct {
		m    inbox.Message
		want string
		is   attempts.Fault
	}{
		{message("Gone"), `no function handles events of the type "Gone"`, attempts.Permanent},
		{message("Nil"), `no function handles events of the type "Nil"`, attempts.Permanent},
		{message(), untyped, attempts.Elsewhere},   // the relay doesn't place the type
		{message(""), untyped, attempts.Permanent}, // the event has none
		{inbox.Message{Headers: []inbox.Header{{Key: "eventType"}}}, untyped, attempts.Permanent},
	} {
		err := inbox.ByType(types, nil)(t.Context(), &all, c.m)
		typed, ok := errors.AsType[*inbox.TypeError](err)
		if !ok || typed.Type != c.m.Type() || err.Error() != c.want || attempts.Of(err) != c.is {
			t.Errorf("%+v gives %v", c.m, err)
		}
		if err := inbox.ByType(types, inbox.Ignore)(t.Context(), &all, c.m); err != nil {
			t.Errorf("Ignore gives %v", err)
		}
	}
	if err := inbox.ByType(types, note("unknown"))(t.Context(), &all, message("Gone")); !errors.Is(err, errNo) {
		t.Error(err)
	}
	handle := inbox.ByType(types, nil)
	delete(types, "Placed") // the caller's map is the caller's
	if err := handle(t.Context(), &tx{}, message("Placed")); !errors.Is(err, errNo) {
		t.Error(err)
	}
	if got := fmt.Sprint(all.calls); got != "[placed Placed unknown Gone]" {
		t.Error(got)
	}
}

func TestTheLastHeaderOfANameCounts(t *testing.T) {
	m := inbox.Message{Headers: []inbox.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: "b"}}}
	if got := fmt.Sprintf("%q %q %q", m.Header("a"), m.Header("b"), m.Header("c")); got != `"2" "" ""` {
		t.Error(got)
	}
}
