package doctor

import (
	"fmt"
	"net"
	"time"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/size"
)

// spillFacts is a row of pg_stat_replication_slots.
type spillFacts struct {
	Txns  int64      `json:"spill_txns"`
	Bytes int64      `json:"spill_bytes"`
	Since *time.Time `json:"stats_reset"` // nil: as long as the slot is there
}

// local says whether nobody is between us and the server.
func local(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// transport judges whether others can listen. The role's password opens every published table.
func (x *examination) transport() {
	const name = "TLS"
	switch {
	case x.encrypted:
		x.OK(name, "the connection uses TLS")
	case x.remote == nil || local(x.remote):
	default:
		x.Warn(name, fix.ByWords("Set sslmode=verify-full (and sslrootcert) in source.dsn; the server needs ssl = on."),
			"the connection to %s does not use TLS: every event, and with some login methods the password, can be read in transit", x.remote)
	}
}

const (
	leastStatement   = 5 * time.Second  // a question of ours may wait that long for a lock
	leastTransaction = 30 * time.Second // the longest statement outside of a cleanup
	longLook         = 10 * time.Minute // what a cleanup gives the look into a partition (package cleanup)
)

// sessions is about settings that hit our sessions, whoever made them. What connecting sets over the role's and the database's
// defaults does not: statement_timeout, lock_timeout, idle_in_transaction_session_timeout and idle_session_timeout
// (sqlConfig, connectReplication).
func (x *examination) sessions() {
	s := &x.f.Server
	set := func(setting string) fix.Fix {
		return fix.BySQL(fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET %s;", pgname.QuoteIdent(s.Role), pgname.QuoteIdent(s.Database), setting))
	}
	if x.ReadOnly && !s.Recovery {
		by := set("default_transaction_read_only = off")
		switch {
		case x.makes && x.f.Publication == nil:
			x.Fail("default_transaction_read_only", by, "default_transaction_read_only is on for role %s: publication %s cannot be created", s.Role, x.cfg.Publication)
		case x.cfg.Outbox.Cleans():
			x.Fail("default_transaction_read_only", by, "default_transaction_read_only is on for role %s: the cleanup can remove nothing", s.Role)
		}
	}
	if d := time.Duration(x.Statement) * time.Millisecond; d > 0 && d < leastStatement {
		x.Warn("statement_timeout", fix.ByWords("Remove statement_timeout from source.dsn: walpost sets its own timeouts."),
			"source.dsn sets statement_timeout to %s: on a busy server, the monitoring and the checks at startup fail", d)
	}
	least := leastTransaction
	if x.cfg.Outbox.Owns {
		least = longLook
	}
	if d := time.Duration(x.Transaction) * time.Millisecond; d > 0 && d < least {
		x.Warn("transaction_timeout", set("transaction_timeout = 0"), "transaction_timeout is %s for role %s: it ends walpost's sessions in the middle of their work", d, s.Role)
	}
}

// spilled says whether the server wrote transactions to disk before it sent them, because they did not fit into the memory of decoding.
func (x *examination) spilled() {
	const name = "logical_decoding_work_mem"
	if x.Spilled == nil {
		return
	}
	memory := size.Bytes(x.WorkMem) << 10
	if x.Spilled.Bytes == 0 {
		x.OK(name, "no transaction was too large for logical_decoding_work_mem (%s)", memory.Roughly())
		return
	}
	since := "since the slot was created"
	if x.Spilled.Since != nil {
		since = "since " + x.Spilled.Since.UTC().Format("2006-01-02 15:04")
	}
	// What the average one would have taken beside what it had.
	const most = 1 << 30
	want := size.Bytes(64 << 20)
	for want < memory+size.Bytes(x.Spilled.Bytes/max(x.Spilled.Txns, 1)) {
		want *= 2
	}
	by := fix.Fix{fix.SQL(fmt.Sprintf("ALTER ROLE %s SET logical_decoding_work_mem = '%dMB';", pgname.QuoteIdent(x.f.Server.Role), want>>20)), fix.Words("then restart walpost.")}
	if want > most {
		by = fix.ByWords("Write less in one transaction, or leave room for it on the disk that has pg_replslot. In memory, one transaction would need " + want.Roughly() + ".")
	}
	x.Warn(name, by, "%s, the server has written %d transactions (%s) to disk while it decoded them, because they did not fit into logical_decoding_work_mem (%s): changes to every table of the database use this memory",
		since, x.Spilled.Txns, size.Bytes(x.Spilled.Bytes).Roughly(), memory.Roughly())
}
