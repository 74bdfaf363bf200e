package pg

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// The formats of values are walpost's own affair: neither the DSN nor the environment changes them.
func TestPinnedSettingsWin(t *testing.T) {
	t.Setenv("PGTZ", "Asia/Kolkata")
	dsn := testenv.Postgres(t, "14").Database(t)
	for _, more := range []string{
		"", "datestyle=German&TimeZone=Europe/Berlin&client_encoding=LATIN1",
		"options=-c%20bytea_output%3Descape%20--extra-float-digits%3D0%20-cIntervalStyle%3Diso_8601%20-c%20TimeZone%3DEurope/Berlin%20-c%20row_security%3Don",
	} {
		at := "?"
		if strings.Contains(dsn, "?") {
			at = "&"
		}
		conn, err := Database{DSN: dsn + at + more}.ConnectSQL(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pins {
			got, err := Row[struct{ Value string }](t.Context(), conn, "read", "SELECT current_setting('"+p.name+"') AS value")
			if err != nil || !p.same(got.Value) {
				t.Errorf("%q: %s is %q, %v", more, p.name, got.Value, err)
			}
		}
		Close(conn)
	}
}
