package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/lib/attempts"
)

// A handler that ends its transaction fails, whatever it returns, and nothing of its work remains.
func TestAHandlerCannotEndItsTransaction(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"Commit":           func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"ignored Commit":   func(ctx context.Context, tx pgx.Tx) error { _ = tx.Commit(ctx); return nil },
		"ignored Rollback": func(ctx context.Context, tx pgx.Tx) error { _ = tx.Rollback(ctx); return nil },
		"ROLLBACK":         func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
	} {
		handle := func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(effect(ctx, tx, name, ""), end(ctx, tx))
		}
		if fresh, err := db.Once(t.Context(), "once", event(name), handle); fresh || !isEnded(err) || attempts.Of(err) != attempts.Elsewhere {
			t.Errorf("%s: %t, %v", name, fresh, err)
		}
		batch := inbox.BatchHandler(db, func(ctx context.Context, tx pgx.Tx, _ []inbox.Message) error { return handle(ctx, tx) })
		if err := batch(t.Context(), []inbox.Message{{ID: name, Topic: "t", Group: "once"}}); !isEnded(err) {
			t.Errorf("%s in a batch: %v", name, err)
		}
		if n, err := db.Store(t.Context(), name, event(name)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		w := inbox.Worker[pgx.Tx]{DB: db, Consumer: name, BackoffMin: time.Hour, Handler: func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			return handle(ctx, tx)
		}}
		handleMessages(t, w, 1)
		p.expect("pending", "SELECT state FROM inbox_messages WHERE consumer = $1 AND failures = 1", name)
		p.expect("0", "SELECT count(*) FROM effects WHERE id = $1", name)
	}
	p.expect("0", "SELECT count(*) FROM inbox_processed WHERE consumer = 'once'")
}

func TestAHandlerEndsItsSavepoints(t *testing.T) {
	p := newPlace(t, "")
	fresh, err := inbox.Pgx(p.pool).Once(t.Context(), "c", event("a"), func(ctx context.Context, tx pgx.Tx) error {
		for id, result := range map[string]error{"kept": nil, "undone": errHandler} {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return errors.Join(effect(ctx, tx, id, ""), result) })
			if !errors.Is(err, result) {
				return err
			}
		}
		return nil
	})
	if !fresh || err != nil {
		t.Errorf("%t, %v", fresh, err)
	}
	p.expect("kept", "SELECT string_agg(id, ' ') FROM effects")
}

// A *sql.Tx cannot refuse. The mark is in it, so the effect still happens once.
func TestTheCommitOfAHandlerWithDatabaseSQLIsFoundOut(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.SQL(p.openSQL("pgx"))
	handle := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES ('a')")
		return errors.Join(err, tx.Commit())
	}
	if fresh, err := db.Once(t.Context(), "once", event("a"), handle); fresh || !isEnded(err) {
		t.Errorf("%t, %v", fresh, err)
	}
	if fresh, err := db.Once(t.Context(), "once", event("a"), handle); fresh || err != nil {
		t.Errorf("the next delivery: %t, %v", fresh, err)
	}
	if n, err := db.Store(t.Context(), "stored", event("a")); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	var failures []inbox.Failure
	w := inbox.Worker[*sql.Tx]{
		DB: db, Consumer: "stored", BackoffMin: time.Nanosecond, BackoffMax: time.Nanosecond,
		Handler: func(ctx context.Context, tx *sql.Tx, _ inbox.Message) error { return handle(ctx, tx) },
		Failed:  func(f inbox.Failure) { failures = append(failures, f) },
	}
	handleMessages(t, w, 1)
	if len(failures) != 1 || !isEnded(failures[0].Err) {
		t.Errorf("failures %+v", failures)
	}
	p.expect("2", "SELECT count(*) FROM effects")
	p.expect("processed", "SELECT state FROM inbox_messages")
}
