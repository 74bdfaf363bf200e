package outbox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/outbox"
)

// BenchmarkWrite compares Write with the bare INSERT of the same events, side by side. Each turn does
// all forms one after the other, each in a transaction of its own with many calls. It reports the time
// of a call without the commit, and that of Write as a multiple of the bare INSERT.
func BenchmarkWrite(b *testing.B) {
	const calls = 100
	_, dsn := database(b, standard)
	type form struct {
		name string
		do   func() error
	}
	var forms []form
	took := map[string]time.Duration{}
	for _, library := range []string{"pgx", "database/sql with pgx", "database/sql with lib/pq"} {
		for _, events := range []int{1, 10} {
			var lines []string
			for i := range events {
				lines = append(lines, fmt.Sprintf("($%d, $%d, $%d, $%d, $%d)", 5*i+1, 5*i+2, 5*i+3, 5*i+4, 5*i+5))
			}
			insert := "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES " + strings.Join(lines, ", ")
			h, n := handles[library](b, dsn), 0
			timed := func(name string, call func(events []outbox.Event) error) form {
				name = strings.NewReplacer(" with ", "-", " ", "-").Replace(fmt.Sprintf("%s/%d", name, events))
				return form{name, func() error {
					began := time.Now()
					for range calls {
						n++
						some := make([]outbox.Event, events)
						for i := range some {
							some[i] = placed(fmt.Sprint("order-", n, "-", i))
						}
						if err := call(some); err != nil {
							return fmt.Errorf("%s: %w", name, err)
						}
					}
					took[name] += time.Since(began)
					return nil
				}}
			}
			forms = append(forms, timed(library+"/bare", func(events []outbox.Event) error {
				var args []any
				for _, e := range events {
					payload, err := json.Marshal(e.Payload)
					if err != nil {
						return err
					}
					args = append(args, outbox.NewID(), e.AggregateType, e.AggregateID, e.Type, payload)
				}
				return h.execute(b.Context(), insert, args...)
			}), timed(library+"/Write", func(events []outbox.Event) error { return outbox.Write(b.Context(), h.tx, events...) }))
		}
	}
	for turn := 0; b.Loop(); turn++ {
		for _, f := range forms {
			if err := f.do(); err != nil {
				b.Fatal(err)
			}
		}
		if turn == 0 { // the first prepares statements
			clear(took)
		}
	}
	for i := 0; i < len(forms); i += 2 {
		bare, write := forms[i].name, forms[i+1].name
		for _, name := range []string{bare, write} {
			b.ReportMetric(float64(took[name].Microseconds())/float64(max(b.N-1, 1)*calls), name+"-µs")
		}
		if took[bare] > 0 {
			b.ReportMetric(float64(took[write])/float64(took[bare]), write+"-ratio")
		}
	}
}
