package pg

import (
	"strings"
	"testing"
)

// The password is SECRET in each DSN, or ends with it, or is a part of its keyword. A part that pgconn may take for a host or a database must be in no error either.
func TestNoMalformedDSNShowsItsPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"host=db user=u pasword=SECRET dbname=x":               "user=u host=db pasword=(secret) dbname=x",
		"host=db user=u pasword='a SECRET' dbname=x":           "user=u host=db pasword=(secret) dbname=x",
		`host=db pasword='a\' SECRET'`:                         "host=db pasword=(secret)",
		"host=db user=u PASSWORD=SECRET":                       "user=u host=db PASSWORD=(secret)",
		"host=db passwd=pass":                                  "host=db passwd=(secret)",
		"host=db pwd=pw":                                       "host=db pwd=(secret)",
		"host=db secret=secret":                                "host=db secret=(secret)",
		"host=db passwd=''":                                    "host=db passwd=(secret)",
		"host=db passwd=":                                      "",
		"host=db user=u password = SECRET":                     "user=u host=db",
		"host=db user=u password='a SECRET'":                   "user=u host=db",
		"host='db' user='u' sslpassword=SECRET":                "user='u' host='db'",
		"host=db user=u password='SECRET":                      "user=u host=db",
		"host=db user=u password=a SECRET":                     "",
		"host=db user=u password='a SECRET":                    "",
		"host=db user=u pass-word=SECRET":                      "",
		"host=db user=u password:SECRET":                       "",
		"host=db user=u SECRET":                                "",
		"host=db;password=SECRET":                              "",
		"Server=db;Password=SECRET;":                           "",
		"Server=db;User Id=u;Password=SECRET":                  "",
		"host=u:SECRET@db":                                     "",
		"host=postgres://u:SECRET@db/x":                        "",
		"postgres://u:SECRET@db/x":                             "postgres://u@db/x",
		"postgres://u:a@SECRET@db/x":                           "postgres://u@db/x",
		"postgres://u@db/x?pasword=SECRET&sslmode=disable":     "postgres://u@db/x?pasword=(secret)&sslmode=disable",
		"postgres://u@db/x?Password=SECRET":                    "postgres://u@db/x?Password=(secret)",
		"postgres://u@db/x?sslpassword=SECRET&sslmode=disable": "postgres://u@db/x?sslmode=disable",
		"postgres://u@db/x?pass%77ord=SECRET":                  "postgres://u@db/x",
		"postgres://u@db/x?password=SECRET;sslmode=disable":    "postgres://u@db/x?password=(secret)",
		"postgres://u:a%SECRET@db/x":                           "",
		"postgres://u:a/SECRET@db/x":                           "",
		"postgres://u:12/SECRET@db/x":                          "",
		"postgres://u:a?SECRET@db/x":                           "",
		"postgres://u:12?SECRET@db/x":                          "",
		"postgres://u:12?sslmode=SECRET@db/x":                  "",
		"postgres://u:a#SECRET@db/x":                           "",
		"postgres://u:12#SECRET@db/x":                          "",
		"postgres://u:SECRET@db:54x2/x":                        "",
		"postgres://u:SECRET db/x":                             "",
		"postgres://u%3ASECRET@db/x":                           "",
		"postgres://u;SECRET@db/x":                             "",
		"postgres:/u:SECRET@db/x":                              "",
		"postgre://u:SECRET@db/x":                              "",
		"POSTGRES://u:SECRET@db/x":                             "",
		" postgres://u:SECRET@db/x":                            "",
		"u:SECRET@db/x":                                        "",
		"jdbc:postgresql://db/x?user=u&password=SECRET":        "",
		"postgres://postgres://u:SECRET@db/x":                  "",
	} {
		text, ok := Printable(dsn)
		if ok && text != want || ok != (want != "") {
			t.Errorf("%s: printed as %q, %t", dsn, text, ok)
		}
		cc, err := Database{DSN: dsn}.Config()
		switch {
		case err != nil && strings.Contains(err.Error(), "SECRET"):
			t.Errorf("%s: %v", dsn, err)
		case err == nil && strings.Contains(cc.Host+cc.Database, "SECRET"):
			t.Errorf("%s: errors name host %q and database %q", dsn, cc.Host, cc.Database)
		}
	}
}

func TestAGoodDSNIsPrintedAsItIs(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u@db.internal:5432/shop?sslmode=require&connect_timeout=3&application_name=a%40b",
		"postgres://u@a,b:5433/shop?target_session_attrs=any", "postgres:///shop?host=/run/postgresql", "postgres://db/my%20shop",
		"user=u host=db port=5432 dbname='my shop' sslmode=disable", "dbname=shop", "",
	} {
		if text, ok := Printable(dsn); !ok || text != dsn {
			t.Errorf("%s: %q, %t", dsn, text, ok)
		}
		if _, err := (Database{DSN: dsn}).Config(); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
