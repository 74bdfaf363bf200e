package inbox_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

// Kafka allows each of these messages. None may block those behind it, and each arrives unchanged.
func TestOddMessagesAreStoredAsTheyAre(t *testing.T) {
	p := newPlace(t, "")
	long := make([]byte, 8000)
	_, _ = rand.Read(long)
	other := append(slices.Clone(long[:7999]), long[7999]+1)
	at := time.UnixMilli(1).UTC()
	sent := []inbox.Message{
		{ID: "a", Topic: "t", Key: long, Time: at},
		{ID: "b", Topic: "t", Key: long, Time: at},
		{ID: "c", Topic: "t", Key: other, Time: at},
		{ID: strings.Repeat("i", 1024), Topic: "t", Time: time.Date(57000, 1, 2, 3, 4, 5, 6000000, time.UTC)},
		{ID: "e", Topic: "t", Time: at, Headers: []inbox.Header{{Key: "", Value: nil}, {Key: "z\x00", Value: []byte{}}, {Key: "\xff", Value: []byte("v")}, {Key: "é", Value: nil}}},
		{ID: "f", Topic: "t", Time: time.UnixMilli(1 << 62).UTC()},
		{ID: "g", Topic: "t", Time: time.UnixMilli(-1 << 62).UTC()},
		{ID: "h", Topic: "t"},
	}
	earliest, latest := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	want := slices.Clone(sent)
	want[3].Time, want[5].Time, want[6].Time = latest, latest, earliest
	for _, driver := range []string{"pgx", "postgres"} {
		db := inbox.SQL(p.openSQL(driver))
		if n, err := db.Store(t.Context(), driver, sent...); n != int64(len(sent)) || err != nil {
			t.Fatalf("%s stored %d, %v", driver, n, err)
		}
		p.expect(`{"1,2",3}`, `SELECT array_agg(ids)::text FROM (SELECT string_agg((id - first)::text, ',' ORDER BY id) AS ids
			FROM (SELECT *, min(id) OVER () - 1 AS first FROM inbox_messages WHERE consumer = $1) m
			WHERE key IS NOT NULL GROUP BY lane ORDER BY min(id)) l`, driver)
		got := map[string]inbox.Message{}
		w := inbox.Worker[*sql.Tx]{DB: db, Consumer: driver, Handler: func(_ context.Context, _ *sql.Tx, m inbox.Message) error {
			m.Time, m.Group, m.Attempt = m.Time.UTC(), "", 0
			got[m.ID] = m
			return nil
		}}
		handleMessages(t, w, len(sent))
		for _, m := range want {
			if !reflect.DeepEqual(got[m.ID], m) {
				t.Errorf("%s got\n%+v, want\n%+v", driver, got[m.ID], m)
			}
		}
	}
	p.expect("é", "SELECT headers->3->>'key' FROM inbox_messages WHERE event_id = 'e' LIMIT 1")
}

// brokenTx fails in the client, which the server does not notice.
type brokenTx struct {
	pgx.Tx
	in string
}

func (b brokenTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.Contains(sql, b.in) {
		return pgconn.CommandTag{}, errHandler
	}
	return b.Tx.Exec(ctx, sql, args...)
}

// A mark without a row would be a lost message: the next Store of it does nothing.
func TestAFailedStoreCannotBeCommitted(t *testing.T) {
	p := newPlace(t, "")
	for _, in := range []string{"pg_advisory_xact_lock", "INSERT INTO inbox_messages"} {
		tx := p.begin(pgx.ReadCommitted)
		if _, err := inbox.Store(t.Context(), brokenTx{tx, in}, "c", keyed("k", "a")...); !errors.Is(err, errHandler) {
			t.Fatalf("%s: %v", in, err)
		}
		if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("%s: the commit gives %v", in, err)
		}
	}
	tx := p.begin(pgx.ReadCommitted)
	var refused *inbox.IDError
	bad := []inbox.Message{{ID: "a", Topic: "t"}, {ID: "b", Topic: "t\x00", Partition: 3, Offset: 42}}
	if _, err := inbox.Store(t.Context(), tx, "c", bad...); !errors.As(err, &refused) || refused.Offset != 42 {
		t.Errorf("an unusable topic gives %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil { // it was refused before the first statement
		t.Error(err)
	}
	if n, err := inbox.Pgx(p.pool).Store(t.Context(), "c", keyed("k", "a")...); n != 1 || err != nil {
		t.Errorf("then %d, %v", n, err)
	}
}
