package fix

import "testing"

func TestAFixIsRenderedForTheProvider(t *testing.T) {
	keep := Setting{Name: "max_slot_wal_keep_size", Value: "50GB", Bare: "51200 (in MB)", Note: "(below the size of the disk)"}
	nothing := Setting{Name: "synchronized_standby_slots", Value: ""}
	slots := Setting{Name: "max_replication_slots", Value: "14", Restart: true}
	level := Setting{Name: "wal_level", Value: "logical", Restart: true}
	timeout := Setting{Name: "wal_sender_timeout", Value: "60s", Bare: "60000 (in ms)"}
	for _, c := range []struct {
		fix  Fix
		on   Provider
		want string
	}{
		{nil, RDS, ""},
		{Fix{keep}, "", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();" + elsewhere + " (below the size of the disk)"},
		{Fix{keep}, RDS, "Set max_slot_wal_keep_size = 51200 (in MB) in the DB parameter group. (below the size of the disk)"},
		{Fix{keep}, Azure, exceptions[Azure]["max_slot_wal_keep_size"]},
		{Fix{nothing}, "", "ALTER SYSTEM SET synchronized_standby_slots = ''; SELECT pg_reload_conf();" + elsewhere},
		{Fix{nothing}, RDS, "Set synchronized_standby_slots = '' in the DB parameter group."},
		{Fix{slots}, "", "ALTER SYSTEM SET max_replication_slots = 14; then restart Postgres." + elsewhere},
		{Fix{slots}, CloudSQL, "Set max_replication_slots = 14 as a database flag (gcloud sql instances patch), then restart the server."},
		{Fix{level}, "", "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres." + elsewhere},
		{Fix{level}, RDS, "Set rds.logical_replication = 1 in the DB parameter group; then reboot the instance."},
		{Fix{level}, CloudSQL, "Set the database flag cloudsql.logical_decoding = on; the instance restarts."},
		{Fix{level}, Azure, "Set the server parameter wal_level = logical; then restart the server."},
		{Fix{timeout}, "", "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();" + elsewhere},
		{Fix{timeout}, CloudSQL, "Set wal_sender_timeout = 60000 (in ms) as a database flag (gcloud sql instances patch)."},
		{Fix{timeout}, Azure, "Set wal_sender_timeout = 60000 (in ms) as a server parameter (az postgres flexible-server parameter set)."},
		{Fix{level}, Aurora, "Set rds.logical_replication = 1 in the DB cluster parameter group; then reboot the writer."},
		{Fix{SQL("GRANT a TO b;"), Words("Then wait.")}, Azure, "GRANT a TO b; Then wait."},
		{Fix{Command("kafka-topics.sh --create"), Words("or wait")}, "", "kafka-topics.sh --create\nor wait"},
		{Fix{Key{"source.publish", "insert"}}, "", "Set source.publish: insert."},
	} {
		if got := c.fix.Text(c.on); got != c.want {
			t.Errorf("%+v on %q: %s", c.fix, c.on, got)
		}
	}
}
