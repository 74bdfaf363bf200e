package replication

import (
	"regexp"
	"slices"
	"strings"
)

// A provider is who runs the server, which decides how a setting is changed. "" is the user.
type provider string

const (
	rds      provider = "Amazon RDS"
	aurora   provider = "Amazon Aurora"
	cloudSQL provider = "Cloud SQL"
	azure    provider = "Azure Database"
)

func (x *examined) provider() provider {
	switch {
	case x.Aurora:
		return aurora
	case slices.Contains(x.Managed, "rds"):
		return rds
	case slices.Contains(x.Managed, "cloudsql"):
		return cloudSQL
	case slices.Contains(x.Managed, "azure"):
		return azure
	}
	return ""
}

var alterSystem = regexp.MustCompile(`ALTER SYSTEM SET (\w+) = ('[^']*'|\w+);( SELECT pg_reload_conf\(\);)?( then restart Postgres\b)?`)

// logicalDecoding turns logical decoding on.
var logicalDecoding = map[provider]string{
	rds:      "Set rds.logical_replication = 1 in the DB parameter group; then reboot the instance.",
	aurora:   "Set rds.logical_replication = 1 in the DB cluster parameter group; then reboot the writer.",
	cloudSQL: "Set the database flag cloudsql.logical_decoding = on; the instance restarts.",
	azure:    "Set the server parameter wal_level = logical; then restart the server.",
}

// units are those in which a provider takes a setting: a bare number of the setting's own unit.
var units = strings.NewReplacer("'50GB'", "51200 (in MB)", "'60s'", "60000 (in ms)")

// fix is a fix as the provider has it done: none of them allows ALTER SYSTEM, or installs a version by hand.
func (p provider) fix(fix string) string {
	if p == "" {
		return fix
	}
	if decoding, ok := logicalDecoding[p]; ok && strings.HasPrefix(fix, "ALTER SYSTEM SET wal_level") {
		return decoding
	}
	if p == azure && strings.HasPrefix(fix, "ALTER SYSTEM SET max_slot_wal_keep_size") {
		// learn.microsoft.com/azure/postgresql, "Replication / Sending Servers": allowed values -1, parameter type read-only.
		return "Azure does not let max_slot_wal_keep_size be set: let the storage grow by itself, or set monitor.wal_disk_size and monitor.breaker: stop_and_drop_slot, so that the slot goes before the disk is full."
	}
	fix = strings.ReplaceAll(fix, "Install the newest minor version of Postgres", "Upgrade the instance to the newest minor version of Postgres")
	where := map[provider]string{
		rds: "in the DB parameter group", aurora: "in the DB cluster parameter group",
		cloudSQL: "as a database flag (gcloud sql instances patch)", azure: "as a server parameter (az postgres flexible-server parameter set)",
	}[p]
	return alterSystem.ReplaceAllStringFunc(fix, func(sql string) string {
		m := alterSystem.FindStringSubmatch(sql)
		set := "Set " + m[1] + " = " + units.Replace(m[2]) + " " + where
		if m[4] != "" {
			set += ", then restart the server"
		}
		return set
	})
}
