package replication

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication/internal/pgoutput"
)

// A sessionConfig is what a Session needs to know beside its connection.
type sessionConfig struct {
	slot        string
	publication string
	role        string // of the connection
	messages    pgoutput.Messages
	// walSenderTimeout is the server's wal_sender_timeout on the replication connection; 0 is off.
	walSenderTimeout time.Duration
	// confirmKeepalives hands keepalives on as positions (Idle with Pos > 0).
	confirmKeepalives bool
	logger            zerolog.Logger

	// identity is what Open found, and what Identity returns until Start.
	identity cdc.Identity
	// recheck reads the identity and the slot once more by SQL. Start calls it when it holds the slot, and while it waits
	// for a slot in use, to name who holds it.
	recheck func(ctx context.Context) (cdc.Identity, error)
	// catalog fills the catalog fields of a relation that nobody else has seen yet, on a connection of its own. Nil if
	// nobody needs them. Next calls it, on the caller's goroutine.
	catalog func(ctx context.Context, rel *cdc.Relation) error
	// roots are the tables that partitions' rows are rows of, by the partition's OID.
	roots map[uint32]pg.Table
	// probe makes a fresh SQL connection, asks it something and closes it. The session's probe goroutine calls it.
	probe func(ctx context.Context) error
}

// A prober is an open SQL connection beside the stream (*pgx.Conn and *pgconn.PgConn are). The session owns it from
// newSession on: its probe goroutine alone uses it, and Close closes it. Nil is allowed: then only fresh connections are
// made (sessionConfig.probe).
type prober interface {
	Ping(ctx context.Context) error
	Close(ctx context.Context) error
}
