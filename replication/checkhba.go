package replication

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// hbaRule is a line of pg_hba.conf as the file has it now, which is not what the server goes by before it is reloaded.
type hbaRule struct {
	File      string   `json:"file_name"` // 16 and newer
	Line      int      `json:"line_number"`
	Type      string   // local, host, hostssl, hostnossl, hostgssenc, hostnogssenc
	Databases []string `json:"database"`
	Users     []string `json:"user_name"`
	Address   string
	Netmask   string
	Method    string `json:"auth_method"`
	Error     string
}

// hbaClient is our connection as the server sees it.
type hbaClient struct {
	Address  string // "" is a unix socket
	SSL      bool
	Database string
	User     string
}

// answer is what can be said of a rule without the server's own knowledge of roles, names and networks.
type answer uint8

const (
	no answer = iota
	yes
	unknown
)

// examineRules reads pg_hba.conf where the role may: by default a superuser only.
func (c *Config) examineRules(ctx context.Context, conn *pgconn.PgConn, x *examined) error {
	if !x.ReadsRules {
		return nil
	}
	var err error
	x.rules, err = rows[hbaRule](ctx, conn, "read pg_hba.conf", "SELECT * FROM pg_hba_file_rules")
	return err
}

// matches follows check_db, check_role and check_hba of the server. A connection in logical replication mode is matched as any other
// of its database; the word replication is for physical replication only
// (TestTheWordReplicationInPgHbaIsNotForALogicalConnection).
func (r *hbaRule) matches(c *hbaClient) answer {
	all := yes
	for _, a := range []answer{r.matchesType(c), anyOf(r.Databases, func(name string) answer {
		switch {
		case name == "all", name == "sameuser" && c.Database == c.User:
			return yes
		case name == "samerole", name == "samegroup", strings.HasPrefix(name, "/"):
			return unknown
		case name == "replication", name == "sameuser":
			return no
		}
		return is(name == c.Database)
	}), anyOf(r.Users, func(name string) answer {
		if strings.HasPrefix(name, "+") || strings.HasPrefix(name, "/") {
			return unknown
		}
		return is(name == "all" || name == c.User)
	}), r.matchesAddress(c)} {
		if a == no {
			return no
		}
		all = max(all, a)
	}
	return all
}

func is(b bool) answer {
	if b {
		return yes
	}
	return no
}

func anyOf(names []string, judge func(name string) answer) answer {
	found := no
	for _, n := range names {
		switch judge(n) {
		case yes:
			return yes
		case unknown:
			found = unknown
		case no:
		}
	}
	return found
}

func (r *hbaRule) matchesType(c *hbaClient) answer {
	switch r.Type {
	case "local":
		return is(c.Address == "")
	case "host", "hostnogssenc": // pgconn asks for GSS encryption never
		return is(c.Address != "")
	case "hostssl":
		return is(c.Address != "" && c.SSL)
	case "hostnossl":
		return is(c.Address != "" && !c.SSL)
	}
	return no
}

func (r *hbaRule) matchesAddress(c *hbaClient) answer {
	if r.Type == "local" || r.Address == "all" {
		return yes
	}
	ip, err := netip.ParseAddr(c.Address)
	at, err2 := netip.ParseAddr(r.Address)
	mask, err3 := netip.ParseAddr(r.Netmask)
	if err != nil || err2 != nil || err3 != nil { // a host's name, samehost, samenet
		return unknown
	}
	a, b, m := ip.Unmap().AsSlice(), at.AsSlice(), mask.AsSlice()
	if len(a) != len(b) || len(a) != len(m) {
		return no
	}
	for i := range a {
		if a[i]&m[i] != b[i]&m[i] {
			return no
		}
	}
	return yes
}

func (r *hbaRule) where() string {
	if i := strings.LastIndexByte(r.File, '/'); r.File != "" && r.File[i+1:] != "pg_hba.conf" {
		return fmt.Sprintf("line %d of %s", r.Line, r.File)
	}
	return fmt.Sprintf("line %d of pg_hba.conf", r.Line)
}

// reach judges pg_hba.conf, which a connection that is open says nothing of: it may have been changed since it was loaded.
func (j *judgement) reach(x *examined) {
	const name = "pg_hba.conf"
	if len(x.rules) == 0 {
		return
	}
	c := &hbaClient{Address: x.Client, SSL: x.SSL, Database: j.f.server.Database, User: j.f.server.Role}
	add := "Add, before the lines that refuse: " + hbaLine(c) + " -- then SELECT pg_reload_conf();"
	for i := range x.rules {
		r := &x.rules[i]
		if r.Error != "" {
			j.add(Warn, name, "Correct "+r.where()+".", "%s cannot be read (%s): a reload changes nothing, and the server does not start again", r.where(), r.Error)
			return
		}
	}
	for i := range x.rules {
		r := &x.rules[i]
		switch r.matches(c) {
		case unknown:
			return // nothing can be told
		case no:
			continue
		case yes:
		}
		switch {
		case r.Method == "reject":
			j.add(Warn, name, add, "%s refuses role %s in database %s: it is in the file, and counts from the next reload on", r.where(), c.User, c.Database)
		case r.Method == "trust" && !local(x.remote):
			j.add(Warn, name, "Give it scram-sha-256 instead of trust, and the role a password.",
				"%s lets anybody at %s in as role %s without a password, and that role reads every published table", r.where(), cmp.Or(r.Address, "the host"), c.User)
		default:
			j.add(OK, name, "", "%s lets role %s in to database %s, in replication mode too", r.where(), c.User, c.Database)
		}
		return
	}
	j.add(Warn, name, add, "no line lets role %s in to database %s: that counts from the next reload on (a line for the word replication is for physical replication only)", c.User, c.Database)
}

// hbaLine is the line that lets c in.
func hbaLine(c *hbaClient) string {
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
			tls = " Where the server wants TLS (on Amazon RDS: rds.force_ssl), set sslmode=verify-full in source.dsn instead."
		}
	}
	return "Add this line to pg_hba.conf: " + hbaLine(&c) + " and reload (SELECT pg_reload_conf();). The line must name the database: " +
		"the word replication there is for physical replication only." + tls
}
