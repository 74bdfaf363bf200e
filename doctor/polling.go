package doctor

import (
	"context"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
)

// CheckPolling looks at every condition in the database of a source that polls.
func CheckPolling(ctx context.Context, set *poll.Settings) []Finding {
	ctx, cancel := context.WithTimeout(ctx, examineWithin)
	defer cancel()
	l := condition.List{Side: Postgres}
	conn, err := set.DB.ConnectSQL(ctx)
	if err != nil {
		l.Fail("connection", fix.ByWords(fault.Hint(err)), "%s", err)
		return l.Found
	}
	defer pg.Close(conn)
	l.OK("connection", "connected to %s", endpoint(conn))
	f, err := set.Describe(ctx, conn)
	if err != nil {
		l.Fail("catalog", fix.ByWords(fault.Hint(err)), "%s", err)
		return l.Found
	}
	return append(l.Found, set.Conditions(f)...)
}
