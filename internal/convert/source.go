package convert

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// source converts the section source: the connection, the tables, the slot and its publication.
func (c *conversion) source() {
	c.out.section("source", "")
	c.connection()
	if len(c.tables) == 1 {
		c.out.put("table", scalar(dollars(c.tables[0].sql())), "")
	} else if len(c.tables) > 1 {
		all := make([]string, len(c.tables))
		for i, t := range c.tables {
			all[i] = dollars(t.sql())
		}
		c.out.put("tables", list(all), "")
	}
	c.slot()
	c.publication()
	c.snapshot()
}

// uriText escapes the characters that have a meaning in a URI.
func uriText(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if ch := s[i]; ch >= 'a' && ch <= 'z' || ch >= 'A' && ch <= 'Z' || ch >= '0' && ch <= '9' || strings.IndexByte("-._~", ch) >= 0 {
			b.WriteByte(ch)
		} else {
			fmt.Fprintf(&b, "%%%02X", ch)
		}
	}
	return b.String()
}

func uriPath(s string) string { return strings.ReplaceAll(uriText(s), "%2F", "/") }

var hosts = regexp.MustCompile(`^[A-Za-z0-9._,:\[\]-]*$`)

// connection writes the DSN. libpq's defaults, which are the same as pgjdbc's, count for what
// Debezium's options do not say.
func (c *conversion) connection() {
	var notes []string
	part := func(option, variable string, escape func(string) string) string {
		e := c.in.byName[option]
		value, found := c.variables(e, variable, escape)
		notes = append(notes, found...)
		text := value
		if len(found) > 0 {
			text = strings.Join(found, "; ")
		}
		c.mapped(option, "source.dsn", "%s", printable(text))
		return value
	}
	host, port, user, dbname := "", "5432", "", ""
	switch e := c.in.byName["database.hostname"]; {
	case !c.in.has("database.hostname"):
		c.bad("database.hostname", "is required")
	case !hosts.MatchString(strings.TrimSpace(e.text())):
		c.bad("database.hostname", "must be the name or address of a host: write source.dsn by hand if it is something else")
	default:
		host = part("database.hostname", "WALPOST_SOURCE_HOST", same)
	}
	switch e := c.in.byName["database.port"]; {
	case !c.in.has("database.port"):
	case len(e.parts) == 1 && e.parts[0].ref != nil:
		port = part("database.port", "WALPOST_SOURCE_PORT", same)
	default:
		if n, ok := c.number("database.port"); ok && n > 0 && n < 65536 {
			port = strconv.Itoa(n)
			c.mapped("database.port", "source.dsn", "%s", port)
		} else if !c.done["database.port"] {
			c.bad("database.port", "must be from 1 to 65535")
		}
	}
	if c.in.has("database.user") {
		user = part("database.user", "WALPOST_SOURCE_USER", uriText) + "@"
	} else {
		c.bad("database.user", "is required")
	}
	if e := c.in.byName["database.dbname"]; c.in.has("database.dbname") && strings.ContainsAny(e.text(), "?&") {
		c.bad("database.dbname", "must be only the name of the database; write parameters after a ? as options or into source.dsn")
	} else if c.in.has("database.dbname") {
		dbname = part("database.dbname", "WALPOST_SOURCE_DATABASE", uriText)
	} else {
		c.bad("database.dbname", "is required")
	}
	if host == "" {
		host = "${WALPOST_SOURCE_HOST}"
	}
	each := strings.Split(host, ",")
	for i, h := range each {
		if !regexp.MustCompile(`:[0-9]+$`).MatchString(h) || strings.Count(h, ":") > 1 && !strings.HasPrefix(h, "[") {
			if strings.Contains(h, ":") && !strings.HasPrefix(h, "[") && !strings.Contains(h, "$") {
				h = "[" + h + "]"
			}
			each[i] = h + ":" + port
		}
	}
	sslmode := c.or("database.sslmode", "prefer")
	query := "?sslmode=" + dollars(uriText(strings.ToLower(sslmode)))
	if !c.done["database.sslmode"] {
		c.mapped("database.sslmode", "source.dsn", "sslmode=%s", printable(sslmode))
	}
	for _, o := range []struct{ option, param string }{
		{"database.sslrootcert", "sslrootcert"}, {"database.sslcert", "sslcert"}, {"database.sslkey", "sslkey"},
	} {
		if !c.in.has(o.option) {
			continue
		}
		if e := c.in.byName[o.option]; o.param == "sslkey" && derKey.MatchString(strings.TrimSpace(e.text())) {
			c.bad(o.option, "pgjdbc reads a binary key, and walpost reads a PEM key: openssl pkcs8 -inform DER -in key.pk8 -out key.pem (of a .p12: openssl pkcs12 -nodes -nocerts), and then sslkey=…/key.pem in source.dsn")
			continue
		}
		query += "&" + o.param + "=" + part(o.option, "WALPOST_SOURCE_"+strings.ToUpper(o.param), uriPath)
	}
	if c.in.has("database.sslpassword") {
		value, note := secretOf(c.in.byName["database.sslpassword"].parts, "WALPOST_SOURCE_SSLPASSWORD", false)
		query += "&sslpassword=" + value
		notes = append(notes, note)
		c.mapped("database.sslpassword", "source.dsn", "%s", note)
	}
	c.origin["source.dsn"] = c.in.shown("database.sslmode") // walpost may refuse its value
	for _, n := range notes {
		c.out.note("%s", n)
	}
	if len(notes) > 0 {
		c.out.note("(percent-encode the values in the URI: %%40 for @)")
	}
	c.out.put("dsn", scalar("postgres://"+user+strings.Join(each, ",")+"/"+dbname+query), "")
	if c.in.has("database.password") {
		c.putSecret("database.password", c.in.byName["database.password"].parts, "source", "password", "WALPOST_SOURCE_PASSWORD")
	}
	if v, ok := c.literal("database.sslfactory"); ok {
		if strings.HasSuffix(v, "NonValidatingFactory") {
			c.bad("database.sslfactory", "this class does not verify the server: leave the option out and write database.sslmode=require, which does not verify it either")
		} else {
			c.bad("database.sslfactory", "this is a Java class: write sslmode, sslrootcert, sslcert and sslkey instead")
		}
	}
}

var derKey = regexp.MustCompile(`(?i)\.(?:pk8|der|p12|pfx|jks)$`)

// secretOf is the value that replaces a secret: a file if asFile is set and the secret is in one,
// and an environment variable otherwise. It never returns a part of a literal value.
func secretOf(parts []part, variable string, asFile bool) (value, note string) {
	if len(parts) != 1 || parts[0].ref == nil {
		return "${" + variable + "}", "set " + variable + ": the output does not repeat the value of the input"
	}
	switch ref := parts[0].ref; ref.provider {
	case "dir", "directory", "strimzidir":
		if asFile {
			return ref.file(), ""
		}
		return "${" + variable + "}", "set " + variable + " to what is in " + ref.from()
	case "env", "strimzienv":
		name := ref.variable(variable)
		note = "set " + name + " for walpost too"
		if name != ref.key {
			note = "set " + name + "; it was " + ref.from()
		}
		if ref.fallback != nil {
			note += " (the output does not repeat its default)"
		}
		return "${" + name + "}", note
	case "file", "strimzifile":
		return "${" + variable + "}", "set " + variable + " to " + ref.from() + ": this file holds several keys, so walpost cannot read it with a …_file key"
	default:
		return "${" + variable + "}", "set " + variable + " to what " + ref.from() + " gave, or mount it as a file and write …_file"
	}
}

// putSecret writes a secret's key, or its …_file.
func (c *conversion) putSecret(option string, parts []part, section, key, variable string) {
	value, note := secretOf(parts, variable, true)
	if note == "" {
		c.mapped(option, section+"."+key+"_file", "%s", printable(value))
		c.out.put(key+"_file", scalar(dollars(value)), "")
		return
	}
	c.mapped(option, section+"."+key, "%s", note)
	c.out.note("%s", note)
	c.out.put(key, value, "")
}

// slot takes over the connector's slot. The converted configuration never creates a slot, because
// the events since the connector's last flush would be missing in a new slot, without an error.
func (c *conversion) slot() {
	plugin := "decoderbufs"
	if c.managed {
		plugin = "pgoutput"
	}
	plugin = strings.ToLower(c.or("plugin.name", plugin))
	switch {
	case c.done["plugin.name"]:
	case plugin == "pgoutput":
		c.mapped("plugin.name", "", "walpost reads pgoutput")
	case plugin == "decoderbufs" || plugin == "wal2json" || strings.HasPrefix(plugin, "wal2json_"):
		c.bad("plugin.name", "%s: walpost needs pgoutput, and a slot keeps its plugin, so make a new slot. To avoid a gap: while the connector runs, "+
			"make a publication and a new slot for walpost (another source.slot; walpost setup --make-slot --apply), stop the connector when it has caught up, and start walpost run. "+
			"Events from this time come twice, and nothing is missing. Or set plugin.name=pgoutput with a new slot.name and publication in the connector first", plugin)
	default:
		c.bad("plugin.name", "must be pgoutput (got %s)", printable(plugin))
	}
	if v, ok := c.literal("slot.name"); ok {
		c.mapped("slot.name", "source.slot", "%s", printable(v))
		c.out.put("slot", scalar(dollars(v)), "")
	} else if !c.in.has("slot.name") {
		c.mapped("slot.name", "source.slot", "debezium")
		c.out.put("slot", "debezium", "Debezium's default")
	}
	if on, ok := c.boolean("slot.drop.on.stop", false); ok && on {
		c.bad("slot.drop.on.stop", "STOPPING THE CONNECTOR DROPS ITS SLOT, and then there is nothing to take over: set the option to false before you stop the connector (this restarts it)")
	}
	if on, ok := c.boolean("slot.failover", false); ok && c.in.has("slot.failover") {
		c.mapped("slot.failover", "source.failover", "%v", on)
		if on {
			c.out.put("failover", "true", "")
		}
	}
}

func (c *conversion) publication() {
	const option = "publication.name"
	if v, ok := c.literal(option); ok {
		c.mapped(option, "source.publication", "%s", printable(v))
		c.out.put("publication", scalar(dollars(v)), "")
	} else if !c.in.has(option) {
		c.mapped(option, "source.publication", "dbz_publication")
		c.out.put("publication", "dbz_publication", "Debezium's default")
	}
	c.updates = true
	const skipped = "skipped.operations"
	if v, ok := c.literal(skipped); ok {
		inserts := true
		for _, op := range names(strings.ToLower(v)) {
			switch op {
			case "c", "r":
				inserts = inserts && op == "r"
			case "u":
				c.updates = false
			}
		}
		if !inserts {
			c.bad(skipped, "an outbox publishes nothing without inserts (c): remove c")
		} else {
			c.mapped(skipped, "source.publish", "%s", publish)
		}
	} else if !c.in.has(skipped) {
		c.mapped(skipped, "source.publish", "%s: an update of a row's primary key gives a record with Debezium", publish)
	}
	c.out.put("publish", publish, "")
}

// publish has updates even if skipped.operations has u. Debezium splits an update of a row's
// primary key into a delete and a create, and does not skip the create. Other updates give no
// record.
const publish = "[insert, update]"

const afterConnector = "walpost takes over the slot, and the connector's own snapshot has published the rows from before it: check that this snapshot has finished. " +
	"If the connector has never run, convert with --fresh"

func (c *conversion) snapshot() {
	const option = "snapshot.mode"
	mode := strings.ToLower(c.or(option, "initial"))
	field, text := "source.snapshot", "never"
	switch {
	case c.done[option]:
	case mode == "initial" || mode == "when_needed" || mode == "exported":
		if c.o.Fresh {
			text = "initial"
			c.mapped(option, field, "initial: walpost makes the slot, and publishes the existing rows first (in the order of source.order_column or track_commit_timestamp)")
			break
		}
		more := ""
		if mode == "when_needed" {
			more = ". If the slot is lost, walpost stops and says so, and walpost recover publishes what may be missing"
		}
		c.mapped(option, field, "never: %s%s", afterConnector, more)
	case mode == "no_data" || mode == "never":
		c.mapped(option, field, "never")
	case mode == "always":
		c.bad(option, "always: walpost publishes the existing rows at most once (source.snapshot: initial); leave the option out")
	case mode == "initial_only":
		c.bad(option, "initial_only: walpost continues with the stream, so it cannot replace such a connector")
	case mode == "configuration_based" || mode == "custom":
		c.bad(option, "%s: write initial or no_data, whichever has the same effect", mode)
	case mode == "schema_only" || mode == "schema_only_recovery":
		c.bad(option, "%s: Debezium 2.5 and newer do not have this value; write initial or no_data", mode)
	default:
		c.bad(option, "must be initial, when_needed or no_data (got %s)", printable(mode))
	}
	if c.o.Fresh {
		c.out.put("create", "true", "the connector has never run: there is no slot to take over")
	} else {
		c.out.put("create", "false", "walpost takes over the connector's slot and publication, and must never make a new slot here")
	}
	c.out.put("snapshot", text, "")
}
