package backfill

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// A later call may narrow an unfinished recover, and not pretend that it goes back to rows that were passed.
func TestSinceOfALaterCall(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	for what, c := range map[string]struct {
		spec  checkpoint.Copy
		since time.Time
		wrong string
	}{
		"later":                                 {spec: checkpoint.Copy{Since: first, Rows: 1}, since: first.Add(time.Hour)},
		"later, of any age":                     {spec: checkpoint.Copy{Rows: 1}, since: first},
		"earlier, before a row was published":   {spec: checkpoint.Copy{Since: first}, since: first.Add(-time.Hour)},
		"earlier, after a row":                  {spec: checkpoint.Copy{Since: first, Rows: 1}, since: first.Add(-time.Hour), wrong: "cannot go back"},
		"earlier, after a row that is in Kafka": {spec: checkpoint.Copy{Since: first, At: checkpoint.Mark{Table: "public.outbox", Nth: 1}}, since: first.Add(-time.Hour), wrong: "cannot go back"},
		"earlier, after a table":                {spec: checkpoint.Copy{Since: first, Finished: []string{"public.outbox"}}, since: first.Add(-time.Hour), wrong: "cannot go back"},
		"the rest of a snapshot":                {spec: checkpoint.Copy{AnyAge: true}, since: first, wrong: "the snapshot is not finished"},
	} {
		rc := &recovery{Recovering: Recovering{RecoverOptions: RecoverOptions{Since: c.since, Overlap: DefaultOverlap, Say: func(string) {}}}}
		r := &reading{spec: c.spec}
		switch err := rc.narrow(r); {
		case c.wrong == "" && (err != nil || !r.spec.Since.Equal(c.since)):
			t.Errorf("%s: %v, since %s", what, err, r.spec.Since)
		case c.wrong != "" && (err == nil || !fault.Misconfigured(err) || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v", what, err)
		}
	}
}
