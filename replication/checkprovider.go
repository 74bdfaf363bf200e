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

var alterSystem = regexp.MustCompile(`ALTER SYSTEM SET (\w+) = ('[^']*'|\w+);( SELECT pg_reload_conf\(\);)?( then restart Postgres)?`)

// logicalDecoding turns logical decoding on.
var logicalDecoding = map[provider]string{
	rds:      "Set rds.logical_replication = 1 in the DB parameter group; then reboot the instance.",
	aurora:   "Set rds.logical_replication = 1 in the DB cluster parameter group; then reboot the writer.",
	cloudSQL: "Set the database flag cloudsql.logical_decoding = on; the instance restarts.",
	azure:    "Set the server parameter wal_level = logical; then restart the server.",
}

// fix is a fix as the provider has it done: none of them allows ALTER SYSTEM.
func (p provider) fix(fix string) string {
	if decoding, ok := logicalDecoding[p]; ok && strings.HasPrefix(fix, "ALTER SYSTEM SET wal_level") {
		return decoding
	}
	switch p {
	case rds:
		return alterSystem.ReplaceAllString(fix, "Set $1 = $2 in the DB parameter group$4")
	case aurora:
		return alterSystem.ReplaceAllString(fix, "Set $1 = $2 in the DB cluster parameter group$4")
	case cloudSQL:
		return alterSystem.ReplaceAllString(fix, "Set the database flag $1 = $2 (gcloud sql instances patch)$4")
	case azure:
		return alterSystem.ReplaceAllString(fix, "Set the server parameter $1 = $2 (az postgres flexible-server parameter set)$4")
	}
	return fix
}
