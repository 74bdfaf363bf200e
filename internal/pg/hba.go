package pg

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/walpost/walpost/internal/fix"
)

// Nothing here reads pg_hba.conf to predict what a reload of it would do. An open connection shows that the loaded file lets us
// in, and only a superuser may read the file, which walpost should not be.

// hbaClient is a connection as the server sees it.
type hbaClient struct {
	Address  string // "" is a unix socket
	SSL      bool
	Database string
	User     string
}

// hbaLine is the line of pg_hba.conf that lets c in.
func hbaLine(c hbaClient) string {
	quote := func(name string) string {
		if plainName.MatchString(name) && !slices.Contains(hbaWords, name) {
			return name
		}
		return `"` + name + `"`
	}
	names := quote(c.Database) + " " + quote(c.User)
	ip, err := netip.ParseAddr(c.Address)
	switch {
	case c.Address == "" || c.Address == "[local]":
		return "local " + names + " scram-sha-256"
	case err != nil:
		return "host " + names + " " + c.Address + " scram-sha-256"
	}
	kind := "host"
	if c.SSL {
		kind = "hostssl"
	}
	return fmt.Sprintf("%s %s %s/%d scram-sha-256", kind, names, ip.Unmap().WithZone(""), ip.Unmap().BitLen())
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9_]+$`)
	hbaWords  = []string{"all", "sameuser", "samerole", "samegroup", "replication"}
	// refusedBy reads the server's "no pg_hba.conf entry for host …" and "pg_hba.conf rejects connection for host …".
	refusedBy = regexp.MustCompile(`pg_hba\.conf.* host "([^"]*)", user "([^"]*)"(?:, database "([^"]*)")?, (SSL|no|GSS) encryption`)
)

// hbaHint is what to do where pg_hba.conf does not let us in. The server says how it sees us, which no client can know behind a
// router or a proxy.
func hbaHint(message, database, user string) string {
	c := hbaClient{Database: database, User: user, Address: "the.client's.address"}
	tls := ""
	if m := refusedBy.FindStringSubmatch(message); m != nil {
		c.Address, c.SSL = m[1], m[4] == "SSL"
		if m[4] == "no" && c.Address != "[local]" {
			tls = " If the server requires TLS (on Amazon RDS: rds.force_ssl), set sslmode=verify-full in source.dsn instead."
		}
	}
	return fix.Fix{
		fix.FileLine{File: "pg_hba.conf", Line: hbaLine(c)},
		fix.Words("The line must name the database: the word replication in place of a database name is for physical replication only." + tls),
	}.Text("")
}
