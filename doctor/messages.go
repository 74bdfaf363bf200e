package doctor

import (
	"strings"

	"github.com/walpost/walpost/internal/fix"
)

// messages says who may write logical messages, which no command can publish again, and what their encoding is.
func (x *examination) messages() {
	if !x.cfg.Messages.On() {
		return
	}
	which := x.cfg.Messages.String()
	const name = "source.messages"
	switch {
	case len(x.settings.EmitPublic) == 0:
		x.OK(name, "walpost publishes %s; if the slot is lost, so are its undelivered messages", which)
	default:
		functions := strings.Join(x.settings.EmitPublic, ", ")
		x.Warn(name, fix.Fix{
			fix.Words("As a superuser, let only the roles that write events write messages (docs/write-events.md). On a managed server without a superuser, this is not possible."),
			fix.SQL("REVOKE EXECUTE ON FUNCTION " + functions + " FROM PUBLIC;"), fix.SQL("GRANT EXECUTE ON FUNCTION " + functions + " TO <the application's role>;"),
		}, "every role of database %s may write messages, and walpost publishes %s", x.f.Server.Database, which)
	}
	if e := x.settings.Encoding; e != "UTF8" {
		x.Warn(name+" encoding", fix.ByWords("Write the content as bytes: pg_logical_emit_message(true, prefix, convert_to(content, 'UTF8'))."),
			"the server sends each message in the encoding of database %s, %s: walpost refuses a message with non-ASCII characters", x.f.Server.Database, e)
	}
}
