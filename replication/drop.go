package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// DropSlot drops the slot, with the WAL that it holds: what was not read of it is gone. A slot that somebody reads gives an error
// that a retry may help, one that is not there gives none.
func (s *Source) DropSlot(ctx context.Context) error {
	return s.beside(ctx, func(sql *pgconn.PgConn) error {
		_, err := sql.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = "+pgname.QuoteLiteral(s.cfg.Slot)).ReadAll()
		if err != nil {
			err = pg.Classify(fmt.Errorf("drop slot %s: %w", s.cfg.Slot, err))
		}
		return err
	})
}
