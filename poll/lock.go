package poll

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// The locks of a session are advisory locks of its connection, so the server frees them when the
// connection ends. The classes are the first half of their keys.
const (
	nameLock  = 0x77616c70 // exclusive, by the relay's name: one process polls for a relay
	tableLock = 0x77616c74 // shared, by table and strategy: relays with other strategies find it
	likeLock  = 0x77616c6c // shared, by table and a setting: workers with another setting find it
	ableLock  = 0x77616c61 // shared, by the relay's name: a worker that reaches the brokers, see giveUp
)

// lockEvery is the time between two tries to get a lock that another session has. A statement that
// waits for the lock would hold back VACUUM.
const lockEvery = time.Second

// digest is the second half of a lock's key.
func digest(parts ...string) int32 {
	h := fnv.New32a()
	h.Write([]byte(strings.Join(parts, "\x00"))) // it never fails
	return int32(h.Sum32())
}

// holderQuery selects the process that has a lock of this database, NULL for none.
func holderQuery(class uint32, key int32) string {
	return "(SELECT min(pid) FROM pg_locks WHERE " + lockIs(class, key) + " AND pid <> pg_backend_pid())"
}

// lockIs is the condition for the sessions in pg_locks that have a lock of this database.
func lockIs(class uint32, key int32) string {
	return fmt.Sprintf(`locktype = 'advisory' AND classid = %d AND objid = %d AND objsubid = 2 AND granted
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, class, uint32(key))
}

// Holder returns the server process that polls for the relay of a name, 0 for none.
func Holder(ctx context.Context, conn *pgconn.PgConn, name string) (pid int32, err error) {
	return process(ctx, conn, holderQuery(nameLock, digest(name)))
}

// process is the server process that a query finds, 0 for none.
func process(ctx context.Context, conn *pgconn.PgConn, query string) (pid int32, err error) {
	found, err := pg.Row[struct{ Holder int32 }](ctx, conn, "look for other relays", "SELECT "+query+" AS holder")
	return found.Holder, err
}

// lock takes the lock of the relay's name, and waits until ctx ends while another session has it. Workers
// that claim rows have it together.
func (s *Session) lock(ctx context.Context) error {
	key, mode := digest(s.src.set.Name), ""
	if s.src.set.Claims() {
		mode = "_shared"
	}
	for logged := int32(0); ; {
		got, err := pg.Row[struct {
			Got    bool
			Holder int32
		}](ctx, s.conn, "take the lock of the relay", fmt.Sprintf("SELECT pg_try_advisory_lock%s(%d, %d) AS got, %s AS holder", mode, nameLock, key, holderQuery(nameLock, key)))
		switch {
		case err != nil:
			return err
		case got.Got:
			return nil
		case got.Holder == s.src.newestProcess() && got.Holder != 0 && mode == "":
			// The server has not noticed that this process lost that connection.
			if _, err := s.conn.Exec(ctx, fmt.Sprintf("SELECT pg_terminate_backend(%d)", got.Holder)).ReadAll(); err != nil {
				return pg.Classify(fmt.Errorf("end the former session: %w", err))
			}
		case got.Holder != logged:
			logged = got.Holder
			s.src.set.Logger.Info("another process polls for this relay: waiting for it", "pid", got.Holder)
		}
		if !wait.For(ctx, lockEvery) {
			return fault.Retry(ctx.Err())
		}
	}
}

// claimTable takes the shared lock of the table, and refuses a table that a relay with another
// strategy reads.
func (s *Session) claimTable(ctx context.Context) error {
	set := &s.src.set
	table := s.facts.Table.Table.String()
	strategyKey := digest(table, set.Strategy)
	alike := s.alike()
	locks := "SELECT "
	for _, a := range alike { // before the lock by which others find this session
		locks += fmt.Sprintf("pg_advisory_lock_shared(%d, %d), ", likeLock, digest(table, a.what, a.value))
	}
	if err := s.exec(ctx, "take the lock of the table", locks+fmt.Sprintf("pg_advisory_lock_shared(%d, %d)", tableLock, strategyKey)); err != nil {
		return err
	}
	for _, other := range strategies {
		if other == set.Strategy {
			continue
		}
		pid, err := process(ctx, s.conn, holderQuery(tableLock, digest(table, other)))
		if err != nil {
			return err
		}
		if pid != 0 {
			return fault.Config(fmt.Errorf("a relay with source.poll.strategy %s reads table %s (server process %d)", other, table, pid),
				"All relays of a table must have the same strategy. Stop the other relay first.")
		}
	}
	for _, a := range alike {
		pid, err := process(ctx, s.conn, fmt.Sprintf("(SELECT min(pid) FROM pg_locks WHERE %s AND pid NOT IN (SELECT pid FROM pg_locks WHERE %s))",
			lockIs(tableLock, strategyKey), lockIs(likeLock, digest(table, a.what, a.value))))
		if err != nil {
			return err
		}
		if pid != 0 {
			return fault.Config(fmt.Errorf("a worker whose %s is not %q claims rows of table %s (server process %d)", a.what, a.value, table, pid),
				"All workers of a table must have the same name, order column, key column and event id column in walpost.yaml: otherwise the order of a key is lost. Stop the other workers first.")
		}
	}
	return nil
}

// alike are the settings that all workers of a table must have in common, none if the strategy claims no
// rows. A worker that takes another column for the key or the order has other queues.
func (s *Session) alike() []struct{ what, value string } {
	set, rel := &s.src.set, s.facts.Table.Relation
	if !set.Claims() {
		return nil
	}
	return []struct{ what, value string }{{"name", set.Name}, {"order column", set.OrderColumn}, {"key column", set.Key(rel)}, {"event id column", set.ID(rel)}}
}
