package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
)

func keyed(key string, ids ...string) (msgs []inbox.Message) {
	for _, id := range ids {
		msgs = append(msgs, inbox.Message{ID: id, Topic: "t", Key: []byte(key)})
	}
	return msgs
}

// work runs a worker until the backlog has so many pending messages.
func (p *place) work(w *inbox.Worker[pgx.Tx], pending int64) {
	p.Helper()
	ctx, stop := context.WithCancel(p.Context())
	defer stop()
	w.DB, w.Consumer, w.Poll = inbox.Pgx(p.pool), "c", time.Millisecond
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	p.until(fmt.Sprintf("%d messages are pending", pending), func() bool {
		b, err := w.DB.Backlog(ctx, "c")
		return err == nil && b.Pending == pending
	})
	stop()
	if err := <-done; err != nil {
		p.Error(err)
	}
}

func TestAStoredMessageIsHandledAsItWasDelivered(t *testing.T) {
	p := newPlace(t, "")
	sent := []inbox.Message{
		{
			ID: "b", Topic: "t", Partition: 3, Offset: 1 << 40, Key: []byte{0, 255}, Value: []byte("v\x00\xff"),
			Headers: []inbox.Header{{Key: "h", Value: []byte{1}}, {Key: "h", Value: nil}}, Time: time.UnixMilli(1700000000123).UTC(),
		},
		{ID: "a", Topic: "t", Key: []byte{}, Time: time.UnixMilli(1).UTC()},
		{ID: "c", Topic: "t", Value: []byte{}, Time: time.UnixMilli(1).UTC()},
	}
	for i := range 2 {
		if n, err := inbox.Pgx(p.pool).Store(t.Context(), "c", append(slices.Clone(sent), sent...)...); err != nil || n != int64(3-3*i) {
			t.Errorf("stored %d, %v", n, err)
		}
		p.turn()
	}
	for _, driver := range []string{"pgx", "postgres"} { // the row is remembered although its mark is gone
		p.exec("TRUNCATE inbox_processed")
		db := inbox.SQL(p.openSQL(driver))
		if n, err := db.Store(t.Context(), "c", sent...); n != 0 || err != nil {
			t.Errorf("%s stored %d, %v", driver, n, err)
		}
		var got []inbox.Message
		w := inbox.Worker[*sql.Tx]{DB: db, Consumer: "c", Handler: func(_ context.Context, _ *sql.Tx, m inbox.Message) error {
			if m.Group != "c" || m.Attempt != 1 {
				t.Errorf("%s got the group %q and attempt %d", driver, m.Group, m.Attempt)
			}
			m.Time, m.Group, m.Attempt = m.Time.UTC(), "", 0
			got = append(got, m)
			return nil
		}}
		handleMessages(t, w, len(sent))
		slices.SortFunc(got, func(a, b inbox.Message) int {
			return slices.Index([]string{"b", "a", "c"}, a.ID) - slices.Index([]string{"b", "a", "c"}, b.ID)
		})
		if !reflect.DeepEqual(got, sent) {
			t.Errorf("%s got\n%+v, want\n%+v", driver, got, sent)
		}
		p.exec("UPDATE inbox_messages SET state = 'pending'")
	}
	if _, err := inbox.Pgx(p.pool).Store(t.Context(), "c", inbox.Message{Topic: "t"}); !errors.As(err, new(*inbox.IDError)) {
		t.Errorf("a message without an id: %v", err)
	}
}

// The bad message fails, waits, and is dead in the end. Its key waits for it, another does not.
func TestAFailedMessageHoldsUpItsKeyUntilItIsDead(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", append(keyed("x", "x1", "x2", "x3"), keyed("y", "y1", "y2")...)...); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var handled []string
	var failures []inbox.Failure
	bad := true
	w := &inbox.Worker[pgx.Tx]{
		Concurrency: 4, Attempts: 3, BackoffMin: time.Hour, BackoffMax: time.Hour,
		Handler: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if m.ID == "x1" && bad {
				_, _ = tx.Exec(ctx, "no SQL") // the transaction fails, which a savepoint repairs
				panic("bad \x00\xff")
			}
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, m.ID)
			return effect(ctx, tx, m.ID, "")
		},
		Failed: func(f inbox.Failure) {
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, f)
		},
	}
	for attempt := 1; attempt <= 2; attempt++ {
		p.exec("UPDATE inbox_messages SET next_attempt_at = now()")
		p.work(w, 3)
		p.until("the attempt fails", func() bool {
			if p.value("SELECT attempts FROM inbox_messages WHERE event_id = 'x1'") != fmt.Sprint(attempt) {
				p.work(w, 3)
				return false
			}
			return true
		})
		p.expect(fmt.Sprint(attempt), "SELECT attempts FROM inbox_messages WHERE event_id = 'x1' AND last_error LIKE 'the handler panicked: bad %' AND next_attempt_at > now() + interval '20 minutes'")
	}
	if !slices.Equal(handled, []string{"y1", "y2"}) {
		t.Errorf("while x1 fails, %v were handled", handled)
	}
	p.exec("UPDATE inbox_messages SET next_attempt_at = now()")
	p.work(w, 0)
	if !slices.Equal(handled, []string{"y1", "y2", "x2", "x3"}) {
		t.Errorf("after x1 is dead, %v were handled", handled)
	}
	if len(failures) != 3 || failures[0].Attempt != 1 || failures[0].Dead || failures[0].Pause < 30*time.Minute || !failures[2].Dead || !errors.As(failures[2].Err, new(*inbox.PanicError)) {
		t.Errorf("failures: %+v", failures)
	}
	if b, err := db.Backlog(t.Context(), "c"); b.Dead != 1 || err != nil {
		t.Errorf("backlog %+v, %v", b, err)
	}
	bad = false
	if n, err := db.RetryDead(t.Context(), "c", "t", "x2", "none"); n != 0 || err != nil {
		t.Errorf("RetryDead of others: %d, %v", n, err)
	}
	if n, err := db.RetryDead(t.Context(), "c", "t"); n != 0 || err != nil {
		t.Errorf("RetryDead of no message: %d, %v", n, err)
	}
	if n, err := db.RetryAllDead(t.Context(), "c"); n != 1 || err != nil {
		t.Errorf("RetryAllDead: %d, %v", n, err)
	}
	p.work(w, 0)
	p.expect("5", "SELECT count(DISTINCT id) FROM effects")
	if done, err := db.Retain(t.Context(), inbox.Retention{Processed: time.Nanosecond}); done.Messages != 5 || err != nil {
		t.Errorf("Retain did %+v, %v", done, err)
	}
}

// The first message of a key is in work in one transaction, so no other worker gets the second.
func TestAMessageInWorkHoldsUpItsKey(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", append(keyed("x", "x1", "x2"), inbox.Message{ID: "f1", Topic: "t"})...); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Store(t.Context(), "c", inbox.Message{ID: "f2", Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	taken, proceed := make(chan string, 4), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	w := inbox.Worker[pgx.Tx]{DB: db, Consumer: "c", Concurrency: 5, Poll: time.Millisecond, Handler: func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
		taken <- m.ID
		<-proceed
		return nil
	}}
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	inWork := []string{<-taken, <-taken, <-taken}
	slices.Sort(inWork)
	if !slices.Equal(inWork, []string{"f1", "f2", "x1"}) {
		t.Errorf("in work at the same time: %v", inWork)
	}
	select { // two workers are free, and look each millisecond
	case id := <-taken:
		t.Errorf("%s was taken while the message before it was in work", id)
	case <-time.After(200 * time.Millisecond):
	}
	close(proceed)
	if id := <-taken; id != "x2" {
		t.Errorf("then %s", id)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if b, err := db.Backlog(t.Context(), "c"); b.Pending != 0 || err != nil {
		t.Errorf("backlog %+v, %v", b, err)
	}
}

// A failure that only the COMMIT would show counts as an attempt, too.
func TestADeferredConstraintIsAFailedAttempt(t *testing.T) {
	p := newPlace(t, "")
	p.exec("CREATE TABLE strict (id int PRIMARY KEY, other int REFERENCES strict DEFERRABLE INITIALLY DEFERRED)")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", keyed("x", "x1")...); err != nil {
		t.Fatal(err)
	}
	w := inbox.Worker[pgx.Tx]{DB: db, Consumer: "c", Attempts: 1, Handler: func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
		_, err := tx.Exec(ctx, "INSERT INTO strict VALUES (1, 2)")
		return err
	}}
	handleMessages(t, w, 1)
	p.expect("dead", "SELECT state FROM inbox_messages WHERE attempts = 1")
}

// Attempts was lowered, and the row has had more attempts before.
func TestAMessageWithMoreAttemptsThanAllowedIsGivenUp(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", keyed("x", "x1")...); err != nil {
		t.Fatal(err)
	}
	w := inbox.Worker[pgx.Tx]{DB: db, Consumer: "c", Handler: func(context.Context, pgx.Tx, inbox.Message) error { return errHandler }}
	for _, c := range []struct {
		attempts int
		state    string
	}{{inbox.Unlimited, "pending"}, {9, "pending"}, {0, "dead"}, {3, "dead"}} {
		p.exec("UPDATE inbox_messages SET attempts = 7, failures = 7, state = 'pending', next_attempt_at = now()")
		w.Attempts = c.attempts
		handleMessages(t, w, 1)
		p.expect(c.state, "SELECT state FROM inbox_messages WHERE attempts = 8")
	}
}

func TestARunThatEndsFinishesWhatItHasBegun(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if _, err := db.Store(t.Context(), "c", keyed("x", "x1", "x2")...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := inbox.Worker[pgx.Tx]{DB: db, Consumer: "c", Concurrency: 1, Handler: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		stop()
		return effect(ctx, tx, m.ID, "")
	}}
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	p.expect("x1", "SELECT string_agg(id, ' ') FROM effects")
	p.expect("1", "SELECT count(*) FROM inbox_messages WHERE state = 'processed'")
}
