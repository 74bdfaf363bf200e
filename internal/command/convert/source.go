package convert

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/conf"
)

// writeSource converts the section source: the connection, the tables, the slot and its publication.
func writeSource(w *writer) {
	w.section("source", "")
	writeConnection(w)
	all := make([]string, len(w.chain.tables))
	for i, t := range w.chain.tables {
		all[i] = dollars(t.sql())
	}
	if len(all) == 1 {
		w.put("table", scalar(all[0]), "")
	} else if len(all) > 1 {
		w.put("tables", list(all), "")
	}
	writeMessages(w)
	writeSlot(w)
	writePublication(w)
	writeSnapshot(w)
}

// uriText escapes the characters that have a meaning in a URI.
func uriText(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func uriPath(s string) string { return strings.ReplaceAll(uriText(s), "%2F", "/") }

var hosts = regexp.MustCompile(`^[A-Za-z0-9._,:\[\]-]*$`)

// writeConnection writes the DSN. libpq's defaults, which are the same as pgjdbc's, count for what
// Debezium's options do not say.
func writeConnection(w *writer) {
	var notes []string
	part := func(option, variable string, escape func(string) string) string {
		value, found := variables(w.in.ByName[option].Parts, variable, escape)
		notes = append(notes, found...)
		w.mapped(option, "source.dsn", "%s", cmp.Or(strings.Join(found, "; "), value))
		return value
	}
	required := func(option string) bool {
		if !w.in.Has(option) {
			w.bad(option, "is required")
		}
		return w.in.Has(option)
	}
	host, port, user, dbname := "${WALPOST_SOURCE_HOST}", "5432", "", ""
	if required("database.hostname") {
		if hosts.MatchString(strings.TrimSpace(w.in.ByName["database.hostname"].Text())) {
			host = part("database.hostname", "WALPOST_SOURCE_HOST", same)
		} else {
			w.bad("database.hostname", "must be the name or address of a host: write source.dsn by hand if it is something else")
		}
	}
	if e := w.in.ByName["database.port"]; w.in.Has("database.port") && len(e.Parts) == 1 && e.Parts[0].Ref != nil {
		port = part("database.port", "WALPOST_SOURCE_PORT", same)
	} else if n, ok := w.number("database.port"); ok {
		port = strconv.Itoa(n)
		w.mapped("database.port", "source.dsn", "%s", port)
	}
	if required("database.user") {
		user = part("database.user", "WALPOST_SOURCE_USER", uriText) + "@"
	}
	if required("database.dbname") {
		if strings.ContainsAny(w.in.ByName["database.dbname"].Text(), "?&") {
			w.bad("database.dbname", "must be only the name of the database; write parameters after a ? as options or into source.dsn")
		} else {
			dbname = part("database.dbname", "WALPOST_SOURCE_DATABASE", uriText)
		}
	}
	sslmode, ok := w.literal("database.sslmode")
	sslmode = cmp.Or(sslmode, "prefer")
	query := "?sslmode=" + dollars(uriText(strings.ToLower(sslmode)))
	if ok || !w.in.Has("database.sslmode") {
		w.mapped("database.sslmode", "source.dsn", "sslmode=%s", sslmode)
	}
	for _, param := range []string{"sslrootcert", "sslcert", "sslkey"} {
		option := "database." + param
		if e := w.in.ByName[option]; w.in.Has(option) && param == "sslkey" && derKey.MatchString(strings.TrimSpace(e.Text())) {
			w.bad(option, "pgjdbc reads a binary key, and walpost reads a PEM key: openssl pkcs8 -inform DER -in key.pk8 -out key.pem (of a .p12: openssl pkcs12 -nodes -nocerts), and then sslkey=…/key.pem in source.dsn")
		} else if w.in.Has(option) {
			query += "&" + param + "=" + part(option, "WALPOST_SOURCE_"+strings.ToUpper(param), uriPath)
		}
	}
	if w.in.Has("database.sslpassword") {
		value, note := secretOf(w.in.ByName["database.sslpassword"].Parts, "WALPOST_SOURCE_SSLPASSWORD", false)
		query += "&sslpassword=" + value
		notes = append(notes, note)
		w.mapped("database.sslpassword", "source.dsn", "%s", note)
	}
	if len(notes) > 0 {
		notes = append(notes, "(percent-encode the values in the URI: %40 for @)")
	}
	w.note(notes...)
	w.put("dsn", scalar("postgres://"+user+host+":"+port+"/"+dbname+query), "")
	writePassword(w)
}

var derKey = regexp.MustCompile(`(?i)\.(?:pk8|der|p12|pfx|jks)$`)

// secretOf is the value that replaces a secret: a file if asFile is set and the secret is in one,
// and an environment variable otherwise. It never returns a part of a literal value.
func secretOf(parts []input.Part, variable string, asFile bool) (value, note string) {
	if len(parts) != 1 || parts[0].Ref == nil {
		return "${" + variable + "}", "set " + variable + ": the output does not repeat the value of the input"
	}
	ref := parts[0].Ref
	if file, ok := ref.File(); ok && asFile {
		return file, ""
	}
	name, note := ref.Variable(variable)
	return "${" + name + "}", note
}

// writePassword writes source.password or source.password_file.
func writePassword(w *writer) {
	const option = "database.password"
	if !w.in.Has(option) {
		return
	}
	value, note := secretOf(w.in.ByName[option].Parts, "WALPOST_SOURCE_PASSWORD", true)
	if note == "" {
		w.set(option, "password_file", value, "")
		return
	}
	w.mapped(option, "source.password", "%s", note)
	w.note(note)
	w.put("password", value, "")
}

// writeSlot takes over the connector's slot. The converted configuration never creates a slot, because
// the events since the connector's last flush would be missing in a new slot, without an error.
func writeSlot(w *writer) {
	switch plugin := strings.ToLower(w.or("plugin.name", "decoderbufs")); {
	case w.done["plugin.name"]:
	case plugin == "pgoutput":
		w.mapped("plugin.name", "", "walpost reads pgoutput")
	default:
		w.bad("plugin.name", "%s: walpost needs pgoutput, and a slot keeps its plugin, so create a new slot. To avoid a gap: while the connector runs, "+
			"create a publication and a new slot for walpost (another source.slot; walpost setup --make-slot --apply), stop the connector when it has caught up, and start walpost run. "+
			"Events from this time are delivered twice, and nothing is missing. Or set plugin.name=pgoutput with a new slot.name and publication in the connector first", plugin)
	}
	w.options("", slotOptions, nil)
}

func writePublication(w *writer) {
	w.options("", publicationOptions, nil)
	const skipped = "skipped.operations"
	v, ok := w.literal(skipped)
	operations := conf.SplitList(strings.ToLower(v))
	w.updates = !slices.Contains(operations, "u")
	switch {
	case ok && slices.Contains(operations, "c"):
		w.bad(skipped, "an outbox publishes nothing without inserts (c): remove c")
	case ok:
		w.mapped(skipped, "source.publish", "%s", publish)
	case !w.in.Has(skipped):
		w.mapped(skipped, "source.publish", "%s: an update of a row's primary key produces a record with Debezium", publish)
	}
	w.put("publish", publish, "")
}

// publish has updates even if skipped.operations has u. Debezium splits an update of a row's
// primary key into a delete and a create, and does not skip the create. Other updates give no
// record.
const publish = "[insert, update]"

const afterConnector = "walpost takes over the slot, and the connector's own snapshot has published the rows from before it: check that this snapshot has finished. " +
	"If the connector has never run, convert with --fresh"

func writeSnapshot(w *writer) {
	const option = "snapshot.mode"
	mode := strings.ToLower(w.or(option, "initial"))
	field, text := "source.snapshot", "never"
	switch {
	case w.done[option]:
	case mode == "initial" || mode == "when_needed" || mode == "exported":
		if w.fresh {
			text = "initial"
			w.mapped(option, field, "initial: walpost creates the slot, and publishes the existing rows first (in the order of source.order_column or track_commit_timestamp)")
			break
		}
		more := ""
		if mode == "when_needed" {
			more = ". If the slot is lost, walpost stops and says so, and walpost recover publishes what may be missing"
		}
		w.mapped(option, field, "never: %s%s", afterConnector, more)
	case mode == "no_data" || mode == "never":
		w.mapped(option, field, "never")
	default:
		w.bad(option, "%s: walpost publishes the existing rows once or never: write initial or no_data, whichever has the same effect", mode)
	}
	if w.fresh {
		w.put("create", "true", "the connector has never run: there is no slot to take over")
	} else {
		w.put("create", "false", "walpost takes over the connector's slot and publication, and must never create a new slot here")
	}
	w.put("snapshot", text, "")
}
