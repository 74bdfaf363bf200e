package pg

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"strings"
)

// keyword matches a keyword of a DSN with its value, as libpq reads it.
var keyword = regexp.MustCompile(`(?s)(\w+)\s*=\s*('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])*)\s*`)

// WithoutPassword returns dsn without its password, for another role unless role is empty, and whether it had a password.
func WithoutPassword(dsn, role string) (_ string, password bool, err error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
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

// oneAt matches a DSN whose user cannot end in two places.
var oneAt = regexp.MustCompile(`^[a-z]+://([^/@]*@)?[^@]*$|^[^:@]*$`)

// Printable returns dsn without its password, if it is certain where the password is.
func Printable(dsn string) (string, bool) {
	text, _, err := WithoutPassword(dsn, "")
	return text, err == nil && oneAt.MatchString(text)
}
