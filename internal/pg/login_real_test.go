//go:build linux || darwin

package pg

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// put writes a file of a server, for the user that the server runs as.
func put(t *testing.T, pg *testenv.PG, name, text string) {
	t.Helper()
	path := filepath.Join(pg.DataDir(), name)
	owner, err := os.Stat(pg.DataDir())
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err == nil {
		if is, ok := owner.Sys().(*syscall.Stat_t); ok {
			err = os.Chown(path, int(is.Uid), int(is.Gid))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a real server and the client say of each other's certificates. Each file is read again for the next connection.
func TestRealCertificates(t *testing.T) {
	pg := testenv.Postgres(t, "17", testenv.Private())
	ca, stranger := testenv.NewAuthority(t), testenv.NewAuthority(t)
	here := func(name string, of x509.Certificate) x509.Certificate {
		of.Subject, of.IPAddresses = pkix.Name{CommonName: name}, []net.IP{net.IPv4(127, 0, 0, 1)}
		return of
	}
	serve := func(a *testenv.Authority, of x509.Certificate) {
		t.Helper()
		_, cert, key := a.Issue("server", of)
		put(t, pg, "server.crt", content(t, cert))
		put(t, pg, "server.key", content(t, key))
		pg.Exec(t, pg.DSN("postgres"), "SELECT pg_reload_conf()")
	}
	put(t, pg, "ca.pem", content(t, ca.File))
	put(t, pg, "pg_hba.conf", "hostssl all certain all cert\nhostssl all secret all scram-sha-256\nhostnossl all secret all reject\n"+content(t, filepath.Join(pg.DataDir(), "pg_hba.conf")))
	serve(ca, here("server", x509.Certificate{}))
	pg.Exec(t, pg.DSN("postgres"), "ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET ssl_ca_file = 'ca.pem'", "SELECT pg_reload_conf()",
		"CREATE ROLE certain LOGIN REPLICATION", "CREATE ROLE secret LOGIN REPLICATION PASSWORD 'right'")
	_, cert, key := ca.Issue("client", here("certain", x509.Certificate{}))
	_, otherCert, otherKey := ca.Issue("other", here("other", x509.Certificate{}))
	_, oldCert, oldKey := ca.Issue("old", here("certain", x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}))
	_, strangeCert, strangeKey := stranger.Issue("client", here("certain", x509.Certificate{}))
	dsn := func(user, mode, root, cert, key string) Database {
		u, err := url.Parse(pg.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(user)
		q := u.Query()
		for name, value := range map[string]string{"sslmode": mode, "sslrootcert": root, "sslcert": cert, "sslkey": key} {
			if q.Del(name); value != "" {
				q.Set(name, value)
			}
		}
		u.RawQuery = q.Encode()
		return Database{DSN: u.String()}
	}
	// connects opens both kinds of connections, and returns the first error.
	connects := func(db Database) error {
		for _, open := range []func(context.Context) error{
			func(ctx context.Context) error { c, err := db.ConnectSQL(ctx); Close(c); return err },
			func(ctx context.Context) error { c, err := db.ConnectReplication(ctx); Close(c); return err },
		} {
			if err := open(t.Context()); err != nil {
				return err
			}
		}
		return nil
	}
	good := func(story string, db Database) {
		t.Helper()
		err := errors.New("not tried")
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // the server reads its files in a moment
			err = connects(db)
		}
		if err != nil {
			t.Errorf("%s: %v", story, err)
		}
	}
	bad := func(story string, db Database, says string) {
		t.Helper()
		var err error
		is := func() bool {
			return err != nil && strings.Contains(err.Error(), says) && !fault.Retryable(err) && !strings.Contains(err.Error(), "wrong")
		}
		for end := time.Now().Add(time.Minute); !is() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			err = connects(db)
		}
		if !is() {
			t.Errorf("%s: %v, must say %q", story, err, says)
		}
	}
	password := func(mode, root string) Database {
		db := dsn("secret", mode, root, "", "")
		db.Password = "right"
		return db
	}
	good("the name and the authority", password("verify-full", ca.File))
	good("a certificate as the login", dsn("certain", "verify-full", ca.File, cert, key))
	bad("another authority", password("verify-full", stranger.File), "certificate signed by unknown authority")
	bad("the authorities of the system", password("verify-full", "system"), "certificate signed by unknown authority")
	bad("without TLS", password("disable", ""), "pg_hba.conf rejects connection")
	bad("no certificate", dsn("certain", "verify-full", ca.File, "", ""), "requires a valid client certificate")
	bad("the certificate of another role", dsn("certain", "verify-full", ca.File, otherCert, otherKey), "certificate authentication failed")
	expired := connects(dsn("certain", "verify-full", ca.File, oldCert, oldKey))
	foreign := connects(dsn("certain", "verify-full", ca.File, strangeCert, strangeKey))
	if expired == nil || foreign == nil { // what is read first may be the alert or the end of the connection
		t.Errorf("an expired certificate: %v; one of another authority: %v", expired, foreign)
	}
	file := filepath.Join(t.TempDir(), "password")
	command := dsn("secret", "verify-full", ca.File, "", "")
	command.PasswordCommand = []string{"cat", file}
	bad("a command that fails", command, "source.password_command: cat: exit status 1: cat: ")
	for _, word := range []string{"wrong", "right"} {
		if err := os.WriteFile(file, []byte(word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if word == "wrong" {
			bad("a command that prints a wrong password", command, "password authentication failed")
		}
	}
	good("a command that prints the password", command)

	serve(ca, here("server", x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}))
	bad("a server that is out of date", password("verify-full", ca.File), "expired")
	serve(ca, x509.Certificate{DNSNames: []string{"other.test"}})
	bad("a server with another name", password("verify-full", ca.File), "x509: ")
	good("a server with another name that nobody asks for", password("verify-ca", ca.File))
	serve(stranger, here("server", x509.Certificate{}))
	root := filepath.Join(t.TempDir(), "root.pem")
	db := password("verify-full", root)
	if err := os.WriteFile(root, []byte(content(t, ca.File)), 0o600); err != nil {
		t.Fatal(err)
	}
	bad("an authority, before its file is replaced", db, "certificate signed by unknown authority")
	if err := os.WriteFile(root, []byte(content(t, ca.File)+content(t, stranger.File)), 0o600); err != nil {
		t.Fatal(err)
	}
	good("a file with both authorities", db)
	serve(ca, here("server", x509.Certificate{}))
	rotated := dsn("certain", "verify-full", ca.File, otherCert, otherKey)
	bad("the certificate of another role again", rotated, "certificate authentication failed")
	ca.Issue("other", here("certain", x509.Certificate{})) // over its files
	good("a certificate that was replaced", rotated)
}

// pretend is a server of RDS: it has TLS, asks for the password as it is, and ends the connection. It returns what it was sent.
func pretend(t *testing.T) (address string, passwords chan string) {
	t.Helper()
	pair, _, _ := testenv.NewAuthority(t).Pair("rds")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	passwords = make(chan string, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			first := make([]byte, 8)
			_, _ = conn.Read(first)
			_, _ = conn.Write([]byte("S")) // it has TLS
			secure := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}})
			b := pgproto3.NewBackend(secure, secure)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.AuthenticationCleartextPassword{})
				_ = b.Flush()
				_ = b.SetAuthType(pgproto3.AuthTypeCleartextPassword)
				if m, err := b.Receive(); err == nil {
					passwords <- m.(*pgproto3.PasswordMessage).Password
				}
				b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28000", Message: `PAM authentication failed for user "walpost"`})
				_ = b.Flush()
			}
			_ = secure.Close()
		}
	}()
	return l.Addr().String(), passwords
}

// package aws has the tests of the signature itself.
func TestATokenOfRDSIsThePassword(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "", "AWS_REGION": ""} {
		t.Setenv(name, value)
	}
	address, passwords := pretend(t)
	const host = "shop.abc123.eu-central-1.rds.amazonaws.com"
	db := Database{DSN: "postgres://walpost@" + host + ":5432/shop?sslmode=require", RDSIAM: true}
	cc, err := db.SQLConfig()
	if err != nil {
		t.Fatal(err)
	}
	cc.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cc.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	_, err = db.Connect(t.Context(), cc, "connect")
	if err == nil || strings.Contains(err.Error()+fault.Hint(err), "hunter2") || strings.Contains(err.Error(), "Signature") || !strings.Contains(fault.Hint(err), "rds.iam_auth_for_replication") {
		t.Errorf("%v: %s", err, fault.Hint(err))
	}
	if got := <-passwords; !strings.HasPrefix(got, host+":5432/?Action=connect&DBUser=walpost&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F") ||
		!strings.Contains(got, "%2Feu-central-1%2Frds-db%2Faws4_request&") || !strings.Contains(got, "&X-Amz-Expires=900&X-Amz-Signature=") {
		t.Errorf("the password is %q", got)
	}
	for dsn, want := range map[string]string{
		"postgres://walpost@" + host + "/shop?sslmode=prefer":                      "source.rds_iam: needs sslmode=verify-full",
		"postgres://walpost@" + host + "/shop?sslmode=disable":                     "source.rds_iam: needs sslmode=verify-full",
		"postgres://walpost@" + host + ",b.rds.amazonaws.com/shop?sslmode=require": "source.rds_iam: needs a DSN with one host",
	} {
		if _, err := (Database{DSN: dsn, RDSIAM: true}).Config(); err == nil || !strings.Contains(err.Error(), want) || !fault.Misconfigured(err) {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	_, err = Database{DSN: "postgres://walpost@db.internal/shop?sslmode=require", RDSIAM: true}.ConnectSQL(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
}
