package shop

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// A shape is what is special about a transaction of a wild shop.
type shape int

const (
	plain    shape = iota
	large          // more rows than a window
	manyKeys       // few events of each key
	deleted        // its rows are gone when it commits, but the WAL has them
	prepared       // two-phase commit
)

func pick(rnd *rand.Rand) shape {
	switch n := rnd.IntN(100); {
	case n < 1:
		return large
	case n < 6:
		return manyKeys
	case n < 11:
		return deleted
	case n < 16:
		return prepared
	}
	return plain
}

// finishPrepared commits what a writer has prepared. A crash may have come between both steps.
func finishPrepared(ctx context.Context, conn *pgx.Conn, prefix string) error {
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)", prefix)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := conn.Exec(ctx, fmt.Sprintf("COMMIT PREPARED '%s'", id)); err != nil {
			return err
		}
	}
	return nil
}
