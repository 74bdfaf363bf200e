package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
)

// CheckPolling looks at every precondition in the database of a source that polls.
func CheckPolling(ctx context.Context, set *poll.Settings) (found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, examineWithin)
	defer cancel()
	var by fix.Provider
	add := func(verdict Verdict, name string, how fix.Fix, why string, args ...any) {
		found = append(found, Finding{Side: Postgres, Name: name, Verdict: verdict, Why: fmt.Sprintf(why, args...), Fix: how, Provider: by})
	}
	conn, err := set.DB.ConnectSQL(ctx)
	if err != nil {
		add(Fail, "connection", fix.ByWords(fault.Hint(err)), "%s", err)
		return found
	}
	defer pg.Close(conn)
	add(OK, "connection", nil, "connected to %s", endpoint(conn))
	f, err := set.Describe(ctx, conn)
	if err != nil {
		add(Fail, "catalog", fix.ByWords(fault.Hint(err)), "%s", err)
		return found
	}
	by = f.Server.Provider
	unmet := set.Unmet(f)
	for _, u := range unmet {
		add(Fail, u.Name, u.Fix, "%s", u.Why)
	}
	if len(unmet) > 0 {
		return found
	}
	add(OK, "table "+set.Table.String(), nil, "table %s has what polling needs", set.Table)
	switch {
	case set.Claims():
		if sql := set.MissingIndexes(f); sql != "" {
			add(Warn, "index of unfinished rows", fix.BySQL(sql), "table %s has no index on its undelivered rows: each poll reads all rows", set.Table)
		}
	case !f.Index:
		add(Fail, "index of transactions", fix.BySQL(set.MissingIndexes(f)),
			"table %s has no index on (%s, %s): walpost would read the rows of a large transaction again for every page", set.Table, set.XIDColumn, set.OrderColumn)
	}
	if rel := f.Table.Relation; (!f.CommitTimes || set.Claims()) && rel.Index(set.TimeColumn) < 0 {
		how := "Set source.time_column to a timestamptz column, such as created_at."
		if !set.Claims() {
			how += " Or set track_commit_timestamp = on in Postgres, and restart Postgres."
		}
		add(Warn, "source.time_column", fix.ByWords(how),
			"no column holds the time at which a row was written: the record gets the time of reading as its timestamp, so a repeated event differs from the first one")
	}
	if set.Claims() && len(f.Guards) > 0 {
		add(Warn, "triggers and rules", fix.ByWords("Make sure that each trigger and rule lets the role of walpost update and delete every row: if one of them prevents this, walpost stops with an error."),
			"%s of table %s may keep walpost from writing the state of a row", strings.Join(f.Guards, ", "), set.Table)
	}
	if !f.Unique {
		add(Warn, "source.order_column", fix.ByWords("Name an identity column (bigint GENERATED ALWAYS AS IDENTITY), or create a unique index on the column."),
			"neither a sequence nor a unique index prevents two rows from having the same number in column %s: the order of such rows is not defined", set.OrderColumn)
	}
	if f.Cache > 1 {
		add(Warn, "source.order_column", fix.ByWords("Set the CACHE of its sequence to 1 (ALTER SEQUENCE … CACHE 1)."),
			"the sequence of column %s has CACHE %d: sessions take numbers in advance, so the order of a key is not kept", set.OrderColumn, f.Cache)
	}
	switch {
	case f.Notify && f.Prepares:
		add(Warn, "notification", fix.ByWords("If your services use PREPARE TRANSACTION for transactions that insert events, drop the trigger. walpost then reads the table every source.poll.interval."),
			"a trigger of %s notifies walpost, and max_prepared_transactions is above 0: Postgres refuses PREPARE TRANSACTION in a transaction that has inserted rows into the table", set.Table)
	case !f.Notify:
		add(OK, "notification", nil, "no trigger of %s notifies walpost: it looks at the table every %s", set.Table, set.Interval)
	default:
		add(OK, "notification", nil, "a trigger of %s notifies walpost of new rows", set.Table)
	}
	return found
}
