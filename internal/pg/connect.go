package pg

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// ConnectSQL opens an ordinary connection. Its statements are bounded, so that nobody waits for a lock or a slow query of
// ours for long.
func (d Database) ConnectSQL(ctx context.Context) (*pgconn.PgConn, error) {
	cc, err := d.SQLConfig()
	if err != nil {
		return nil, err
	}
	return d.Connect(ctx, cc, "connect")
}

// ConnectForTables is ConnectSQL for work on the users' own tables. Its search path is the role's, because triggers of the tables
// may rely on it: statements name schemas.
func (d Database) ConnectForTables(ctx context.Context) (*pgconn.PgConn, error) {
	cc, err := d.SQLConfig()
	if err != nil {
		return nil, err
	}
	delete(cc.RuntimeParams, "search_path")
	return d.Connect(ctx, cc, "connect")
}

// SQLConfig is the configuration of ConnectSQL.
func (d Database) SQLConfig() (*pgconn.Config, error) {
	cc, err := d.Config()
	if err != nil {
		return nil, err
	}
	// Nothing that a user put on the search path may stand in for a catalog's table or function.
	cc.RuntimeParams["search_path"] = "pg_catalog"
	for name, value := range map[string]string{
		"statement_timeout": "30s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "30s",
	} {
		if _, given := cc.RuntimeParams[name]; !given {
			cc.RuntimeParams[name] = value
		}
	}
	return cc, nil
}

// ConnectReplication opens a connection in logical replication mode.
func (d Database) ConnectReplication(ctx context.Context) (*pgconn.PgConn, error) {
	cc, err := d.Config()
	if err != nil {
		return nil, err
	}
	cc.RuntimeParams["replication"] = "database"
	// A stream is one endless statement in one endless transaction. No default of the role or the database may end it.
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		cc.RuntimeParams[name] = "0"
	}
	// Without the warnings of the server a session could not see that rows are being skipped.
	cc.RuntimeParams["client_min_messages"] = "warning"
	conn, err := d.Connect(ctx, cc, "connect for replication")
	if err != nil {
		return nil, err
	}
	version, err := ServerVersion(ctx, conn)
	if err == nil && version >= FailoverVersion { // the parameter came with 17
		_, err = conn.Exec(ctx, "SET transaction_timeout = 0").ReadAll()
	}
	if err != nil {
		Close(conn)
		return nil, Classify(fmt.Errorf("connect for replication: %w", err))
	}
	return conn, nil
}

// Connect opens a connection by a configuration that d has made, and makes sure that it has the pinned settings.
func (d Database) Connect(ctx context.Context, cc *pgconn.Config, step string) (*pgconn.PgConn, error) {
	if err := d.renewPassword(ctx, cc); err != nil {
		return nil, err
	}
	conn, err := pgconn.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, classifyConnect(&attemptError{step, cc, err}, cc, d.Administrator)
	}
	// A proxy between us and Postgres may swallow settings.
	for _, p := range pins {
		if got := conn.ParameterStatus(p.name); got != "" && !p.same(got) {
			Close(conn)
			return nil, fault.WithHint(fmt.Errorf("%s: the server did not accept %s = %s (it has %q)", step, p.name, p.value, got),
				"Connect to Postgres directly, not through a proxy that drops settings.")
		}
	}
	return conn, nil
}

// Close says goodbye without waiting for long, also when the caller's context has ended.
func Close(conn *pgconn.PgConn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// An attemptError is the error of a connection attempt in one line. pgconn names an address twice if
// sslmode=prefer tried it with TLS and without.
type attemptError struct {
	step string
	to   *pgconn.Config
	err  error
}

func (e *attemptError) Error() string {
	all := leaves(e.err)
	var texts []string
	for _, leaf := range all {
		text := leaf.Error()
		address, _, _ := strings.Cut(text, ": ")
		without := func(l error) bool { return !refusesTLS(l) && strings.HasPrefix(l.Error(), address+": ") }
		if !slices.Contains(texts, text) && !(refusesTLS(leaf) && slices.ContainsFunc(all, without)) {
			texts = append(texts, text)
		}
	}
	return fmt.Sprintf("%s as %s to database %s: %s", e.step, pgname.QuoteIdent(e.to.User), pgname.QuoteIdent(databaseOf(e.to)), strings.Join(texts, "; "))
}

func (e *attemptError) Unwrap() error { return e.err }

// refusesTLS reports whether the server has no TLS. pgconn has no value for this error.
func refusesTLS(err error) bool {
	return strings.Contains(err.Error(), "server refused TLS connection")
}

// classifyConnect gives an error of a connection attempt its behaviour. With several hosts the attempt may pass later as
// soon as one of them might.
func classifyConnect(err error, cc *pgconn.Config, administrator bool) error {
	var retry bool
	var unwanted, hint string
	for _, leaf := range leaves(err) {
		var pgErr *pgconn.PgError
		switch {
		case errors.Is(leaf, pgconn.ErrStandbyConnection), errors.Is(leaf, pgconn.ErrReadOnlyConnection):
			unwanted = "source.dsn must reach a primary. To read from a standby (Postgres 16 and newer), add target_session_attrs=any."
		case errors.Is(leaf, pgconn.ErrPrimaryConnection), errors.Is(leaf, pgconn.ErrReadWriteConnection):
			unwanted = "source.dsn must reach a standby, because it sets target_session_attrs. If the standby was promoted, add another one, or set target_session_attrs=any."
		case errors.As(leaf, &pgErr):
			if h := connectHint(pgErr, cc, administrator); h != "" {
				hint = h
			} else {
				retry = retry || RetryableState(pgErr.Code)
			}
		case refusesTLS(leaf):
			hint = cmp.Or(hint, "The server has ssl = off. Set ssl = on in Postgres. Or, if you trust the network in between, write sslmode=disable in source.dsn.")
		case isTLS(leaf):
			hint = "Check sslmode and sslrootcert of source.dsn: the server's certificate must be signed by that root and must name the host."
		default:
			retry = true // the network, name resolution, a time limit
		}
	}
	switch {
	case unwanted != "":
		return fault.Retry(fault.WithHint(err, unwanted))
	case retry && unreached(err):
		return fault.Retry(fault.WithHint(err, "Start Postgres, or correct the host and port in source.dsn. Postgres must listen on that address (listen_addresses), and firewalls must let this machine through."))
	case retry:
		return fault.Retry(err)
	case hint != "":
		return fault.Repair(fault.WithHint(err, hint))
	}
	return fault.Repair(err)
}

// databaseOf is the database that the server takes: the user's name is its default.
func databaseOf(cc *pgconn.Config) string { return cmp.Or(cc.Database, cc.User) }

// hbaHint needs no names: the server's message has the host, user and database as it sees them.
const hbaHint = "Add a line for this host, user and database to pg_hba.conf, above any line that rejects them, and reload it (SELECT pg_reload_conf();). " +
	"Name the database in it: the keyword replication matches only physical replication. " +
	"If the message says \"no encryption\" and the server requires TLS (on Amazon RDS: rds.force_ssl), set sslmode=verify-full in source.dsn instead."

func connectHint(e *pgconn.PgError, cc *pgconn.Config, administrator bool) string {
	role, setup := pgname.QuoteIdent(cc.User), " "+SetupHint(cc.User)
	if administrator {
		setup = ""
	}
	switch {
	case e.Code == "28P01":
		return fmt.Sprintf("Check that role %s exists, and check its password (source.password, source.password_file, source.password_command, the DSN or ~/.pgpass).", role) + setup
	case e.Code == "28000" && strings.Contains(e.Message, "pg_hba"):
		return hbaHint
	case strings.HasPrefix(e.Code, "28") && strings.HasPrefix(e.Message, "PAM"): // RDS checks a token this way
		return fmt.Sprintf("For source.rds_iam, GRANT rds_iam TO %s; and allow rds-db:connect for it in the policy of the AWS role. The stream also needs rds.iam_auth_for_replication = 1.", role)
	case strings.HasPrefix(e.Code, "28"):
		return fmt.Sprintf("Check that role %s exists and may log in.", role) + setup
	case e.Code == "3D000":
		return fmt.Sprintf("Correct the database in source.dsn, or create it: CREATE DATABASE %s;", pgname.QuoteIdent(databaseOf(cc)))
	case e.Code == "42501" && cc.RuntimeParams["replication"] != "":
		return ReplicationRightHint(cc.User)
	case e.Code == "42501":
		return fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", pgname.QuoteIdent(databaseOf(cc)), role)
	case e.Code == "08P01" && strings.Contains(e.Message, "startup parameter"):
		return "This looks like a connection pooler. Connect to Postgres directly."
	case e.Code == "42704" && strings.Contains(e.Message, "idle_session_timeout"):
		return "Upgrade Postgres to 14 or newer: older versions do not have this setting, and walpost does not support them."
	case e.Code == "42704", e.Code == "22023":
		return "Check the parameters in source.dsn and its options."
	}
	return ""
}

// ReplicationRightHint is what gives a role the right to replicate.
func ReplicationRightHint(user string) string {
	role := pgname.QuoteIdent(user)
	return fmt.Sprintf("ALTER ROLE %s REPLICATION; (on Amazon RDS and Aurora: GRANT rds_replication TO %s;)", role, role)
}

// SetupHint says how to make a role, or what it lacks. It ends with a command.
func SetupHint(user string) string {
	return "To create role " + pgname.QuoteIdent(user) + ", or to grant what it lacks, run setup as an administrator: " + fault.SetupCommand(user)
}

// Classify gives an error of a running connection its behaviour.
func Classify(err error) error {
	if err == nil {
		return nil
	}
	var pgErr *pgconn.PgError
	switch {
	case hasBehaviour(err):
		return err
	case errors.As(err, &pgErr):
		if RetryableState(pgErr.Code) {
			return fault.Retry(err)
		}
		if pgErr.Code == StateNoRight {
			return fault.Repair(err)
		}
		if NotUTF8(pgErr.Code) {
			return fault.Person(err, RepairText+" Then start again.")
		}
		return err
	case errors.Is(err, ErrAnswer): // another attempt does not change the answer
		return err
	}
	return fault.Retry(err) // the connection or a context
}

// hasBehaviour says whether somebody below has classified err already.
func hasBehaviour(err error) bool {
	var f interface{ Retryable() bool }
	return errors.As(err, &f)
}

// RetryableState says whether a SQLSTATE may go away by itself.
func RetryableState(code string) bool {
	switch {
	case strings.HasPrefix(code, "08"), // connection
		strings.HasPrefix(code, "40"),    // serialization, deadlock
		strings.HasPrefix(code, "53"),    // resources: too many connections, disk full, out of memory
		strings.HasPrefix(code, "57"),    // shutdown, starting up, cancelled, timed out
		strings.HasPrefix(code, "58"),    // the server's own I/O
		code == "25P02", code == "25P03", // a transaction that was ended for us
		code == "55006", code == "55P03": // in use, lock not available
		return true
	}
	return false
}

func isTLS(err error) bool {
	var a x509.UnknownAuthorityError
	var b x509.HostnameError
	var c x509.CertificateInvalidError
	var d *tls.CertificateVerificationError
	return errors.As(err, &a) || errors.As(err, &b) || errors.As(err, &c) || errors.As(err, &d)
}

// unreached reports whether no server was reached: the connection was refused or took too long, or the host has no address.
func unreached(err error) bool {
	var dial *net.OpError
	var name *net.DNSError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &name)
}

// leaves takes joined errors apart.
func leaves(err error) []error {
	for e := err; e != nil; {
		if many, ok := e.(interface{ Unwrap() []error }); ok {
			var all []error
			for _, one := range many.Unwrap() {
				all = append(all, leaves(one)...)
			}
			return all
		}
		e = errors.Unwrap(e)
	}
	return []error{err}
}

// Endpoint names the server that conn is connected to.
func Endpoint(conn *pgconn.PgConn) string {
	if c := conn.Conn(); c != nil && c.RemoteAddr() != nil && c.RemoteAddr().String() != "" {
		return c.RemoteAddr().String()
	}
	return "Postgres"
}
