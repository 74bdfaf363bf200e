package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// finish heals, lets everything arrive, asks walpost verify and the judge, and stops the relays in good order.
func (r *run) finish() {
	r.Helper()
	r.heal()
	r.recovers()
	r.quiet()
	r.settle()
	r.verdict.Committed += r.earlier.Committed
	r.verdict.Duplicates += r.earlier.Duplicates
	if r.walpost() && !r.unverified {
		code, out := r.runs("verify")
		// It does not see the other rules, and it reports what comes late.
		if r.verdict.Late == 0 && (code == 0) == r.verdict.breaks("lost", "order", "identical", "replay") {
			r.verdict.Broken = append(r.verdict.Broken, Breach{"verify", fmt.Sprintf("walpost verify does not agree: code %d\n%s", code, out)})
		}
	}
	for _, p := range r.relays {
		p.stop()
	}
}

// truth has the judge know what is committed.
func (r *run) truth() {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), r.dsn)
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // it was read
	rows, err := conn.Query(r.Context(), "SELECT id::text, aggregate_id, (payload->>'n')::bigint FROM kept.outbox")
	var id, key string
	var n int64
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &key, &n}, func() error { r.judge.Commit(id, key, n); return nil })
	}
	if err != nil {
		r.Fatal(err)
	}
}

// settle waits until every committed event has arrived and nothing more comes, and asks the judge.
func (r *run) settle() {
	r.Helper()
	r.truth()
	for give, before := time.Now().Add(patience), -1; time.Now().Before(give); time.Sleep(50 * time.Millisecond) {
		missing := r.judge.Missing()
		if missing == 0 {
			break
		}
		if missing != before {
			give, before = time.Now().Add(patience), missing
		}
	}
	time.Sleep(500 * time.Millisecond) // for what comes too much
	r.verdict = r.judge.Judge()
	if r.judge.Torn() > 0 {
		r.reach(insideTransaction)
	}
}

// forget judges what was written so far, and begins with empty tables, new keys and a judge that remembers nothing, so that a
// run may have more events than fit into memory.
func (r *run) forget() {
	r.Helper()
	r.quiet()
	if r.settle(); len(r.verdict.Broken) > 0 {
		return // finish finds the same
	}
	r.earlier.Committed += r.verdict.Committed
	r.earlier.Duplicates += r.verdict.Duplicates
	r.judge.Forget()
	r.pg.Exec(r, r.dsn, "TRUNCATE outbox, kept.outbox")
	r.load.Seed, r.load.Tag = r.rnd.Uint64(), fmt.Sprintf("%d_", r.earlier.Committed)
	r.write()
}
