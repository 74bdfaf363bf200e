package inbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// BenchmarkOnce compares Once with the handler's transaction alone, side by side. Each turn does all
// forms one after the other, in a database with nine generations. It reports the time of each form
// for one event, and as a multiple of the bare form.
func BenchmarkOnce(b *testing.B) {
	pg := testenv.Postgres(b, "")
	dsn := pg.Database(b)
	pg.Exec(b, dsn, inbox.DDL, "CREATE TABLE effects (n bigserial, id text, consumer text, note text)")
	pool := open(b, dsn, 2)
	db := inbox.Pgx(pool)
	for range 8 {
		pg.Exec(b, dsn, "UPDATE inbox_generations SET started_at = now() - interval '2 hours' WHERE ended_at IS NULL")
		if _, err := db.Retain(b.Context(), inbox.Retention{Generation: time.Hour, Keep: 100 * time.Hour}); err != nil {
			b.Fatal(err)
		}
	}
	const batch = 100
	n := 0
	messages := func() (msgs []inbox.Message) {
		for range batch {
			n++
			msgs = append(msgs, inbox.Message{ID: fmt.Sprintf("0193a5b0-%012d", n), Topic: "t"})
		}
		return msgs
	}
	// One statement for all, as a fast handler has it.
	write := func(ctx context.Context, tx pgx.Tx, msgs []inbox.Message) error {
		ids := make([]string, len(msgs))
		for i, m := range msgs {
			ids[i] = m.ID
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects (id) SELECT unnest($1::text[])", ids)
		return err
	}
	bare := func(msgs []inbox.Message) error {
		return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return write(b.Context(), tx, msgs) })
	}
	single := func(msgs []inbox.Message) error {
		for i := range msgs {
			_, err := db.Once(b.Context(), "c", msgs[i], func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, msgs[i:i+1]) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	var seen []inbox.Message
	forms := []struct {
		name, compared string
		do             func(msgs []inbox.Message) error
	}{
		{"bare", "bare", func(msgs []inbox.Message) error {
			for i := range msgs {
				if err := bare(msgs[i : i+1]); err != nil {
					return err
				}
			}
			return nil
		}},
		{"once", "bare", func(msgs []inbox.Message) error { seen = msgs; return single(msgs) }},
		{"again", "bare", func([]inbox.Message) error { return single(seen) }},
		{"bare-batch", "bare-batch", bare},
		{"batch", "bare-batch", func(msgs []inbox.Message) error {
			for _, o := range db.Batch(b.Context(), "c", msgs, write) {
				if o.Err != nil {
					return o.Err
				}
			}
			return nil
		}},
	}
	took := map[string]time.Duration{}
	for turn := 0; b.Loop(); turn++ {
		for _, f := range forms {
			msgs := messages()
			began := time.Now()
			if err := f.do(msgs); err != nil {
				b.Fatal(err)
			}
			if turn > 0 { // the first prepares statements
				took[f.name] += time.Since(began)
			}
		}
	}
	for _, f := range forms {
		b.ReportMetric(float64(took[f.name].Microseconds())/float64(max(b.N-1, 1)*batch), f.name+"-µs/event")
		if f.name != f.compared && took[f.compared] > 0 {
			b.ReportMetric(float64(took[f.name])/float64(took[f.compared]), f.name+"/"+f.compared)
		}
	}
}
