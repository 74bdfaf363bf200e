package pg

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// keyword matches a keyword of a DSN with its value, as libpq reads it.
var keyword = regexp.MustCompile(`(?s)(\w+)\s*=\s*('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])*)\s*`)

// WithoutPassword returns dsn without its password, for another role unless role is empty, and whether it had a password.
func WithoutPassword(dsn, role string) (_ string, password bool, err error) {
	if !isURI(dsn) {
		user := ""
		rest := keyword.ReplaceAllStringFunc(dsn, func(pair string) string {
			switch parts := keyword.FindStringSubmatch(pair); parts[1] {
			case "user":
				user = parts[2]
			case "password", "sslpassword":
				password = true
			default:
				return pair
			}
			return ""
		})
		if role != "" {
			user = "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(role) + "'"
		}
		if user != "" {
			rest = "user=" + user + " " + strings.TrimSpace(rest)
		}
		return rest, password, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", false, errors.New("the DSN is not a URI") // the error has the password
	}
	query := u.Query()
	if user := cmp.Or(role, query.Get("user"), u.User.Username()); user != "" {
		_, password = u.User.Password()
		u.User = url.User(user)
	}
	password = password || query.Has("password")
	if query.Has("user") || query.Has("password") || query.Has("sslpassword") {
		for _, key := range []string{"user", "password", "sslpassword"} {
			query.Del(key)
		}
		u.RawQuery = query.Encode()
	}
	return u.String(), password, nil
}

func isURI(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// oneAt matches a DSN whose user cannot end in two places.
var oneAt = regexp.MustCompile(`^[a-z]+://([^/@?#]*@)?[^@#]*$|^[^:@]*$`)

// keywords matches a DSN of keywords whole, and a value that cannot be two.
var keywords = regexp.MustCompile(`^\s*(?s:\w+\s*=\s*('(\\.|[^'\\])*'|(\\.|[^\s'\\;=&])+)(\s+|$))*$`)

// masked is what is printed in place of a value.
const masked = "(secret)"

// printed are the keywords whose values are no secret: those of libpq, and settings that are common in a DSN. The value of any
// other keyword may be a password whose keyword is mistyped.
var printed = strings.Fields(`host hostaddr port dbname user passfile require_auth channel_binding connect_timeout client_encoding
 options application_name fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
 gssencmode sslmode requiressl sslnegotiation sslcompression sslcert sslkey sslcertmode sslrootcert sslcrl sslcrldir sslsni requirepeer
 ssl_min_protocol_version ssl_max_protocol_version min_protocol_version max_protocol_version krbsrvname gsslib gssdelegation service
 servicefile target_session_attrs load_balance_hosts statement_timeout lock_timeout idle_in_transaction_session_timeout
 idle_session_timeout transaction_timeout search_path timezone datestyle tcp_keepalives_idle tcp_keepalives_interval tcp_keepalives_count`)

// Printable returns dsn without its password, and with a mask for the value of each keyword that is not known. It returns
// false if a password may be anywhere else.
func Printable(dsn string) (string, bool) {
	text, _, err := WithoutPassword(dsn, "")
	if err != nil || !oneAt.MatchString(text) {
		return "", false
	}
	if !isURI(text) {
		return keyword.ReplaceAllStringFunc(text, func(pair string) string {
			at := keyword.FindStringSubmatchIndex(pair)
			if slices.Contains(printed, pair[at[2]:at[3]]) {
				return pair
			}
			return pair[:at[4]] + masked + pair[at[5]:]
		}), keywords.MatchString(text)
	}
	u, err := url.Parse(text)
	if err != nil || strings.ContainsAny(u.User.Username()+u.Path, ":;=@") {
		return "", false
	}
	before, query, found := strings.Cut(text, "?")
	if !found {
		return text, true
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		if name, _, _ := strings.Cut(pair, "="); !slices.Contains(printed, name) {
			pairs[i] = name + "=" + masked
		}
	}
	return before + "?" + strings.Join(pairs, "&"), true
}

// misread reports whether a DSN was taken for another one than its author meant, so that a host or a database has a part of
// the password: a password with a slash in a URI, or a DSN of another driver.
func misread(dsn string, cc *pgconn.Config) bool {
	hosts := []string{cc.Host}
	for _, other := range cc.Fallbacks {
		hosts = append(hosts, other.Host)
	}
	if slices.ContainsFunc(hosts, func(host string) bool {
		return strings.ContainsAny(strings.TrimPrefix(host, "@"), ";=@") || strings.Contains(host, "://")
	}) {
		return true
	}
	_, rest, _ := strings.Cut(dsn, "://")
	path, _, _ := strings.Cut(rest, "?")
	_, path, _ = strings.Cut(path, "/")
	return isURI(dsn) && strings.Contains(path, "@")
}
