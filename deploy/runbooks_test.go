//go:build linux || darwin

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var (
	sqlBlock    = regexp.MustCompile("(?s)```sql\n(.*?)```")
	placeholder = regexp.MustCompile(`<[a-z]+>`)
	ofService   = regexp.MustCompile(`^( *)sudo -u walpost walpost (.+) --config /etc/walpost/walpost\.yaml(.*?) +# systemd\n$`)
)

// TestRunbooksSQLRuns runs every SQL block of the runbooks, with the placeholders that their index names filled in.
func TestRunbooksSQLRuns(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"15", "17"} {
		t.Run(version, func(t *testing.T) {
			pg := testenv.Postgres(t, version, testenv.Private())
			conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('walpost_runbook', 'pgoutput')"); err != nil {
				t.Fatal(err)
			}
			fill := strings.NewReplacer("<slot>", "walpost_runbook", "<pid>", "0", "<gid>", "none", "<size>", "64GB")
			ran := 0
			for _, page := range pages {
				text, err := os.ReadFile(page)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range sqlBlock.FindAllSubmatch(text, -1) {
					statement := fill.Replace(string(m[1]))
					if left := placeholder.FindString(statement); left != "" {
						t.Errorf("%s: the index does not explain %s", filepath.Base(page), left)
					}
					if strings.Contains(statement, "pg_current_wal_lsn") && !strings.Contains(statement, "pg_is_in_recovery") {
						t.Errorf("%s: the statement fails on a standby:\n%s", filepath.Base(page), statement)
					}
					// Simple queries, one statement each; the slot is made anew where a page drops it.
					if _, err := conn.Exec(t.Context(), statement); err != nil {
						t.Errorf("%s: %v\n%s", filepath.Base(page), err, statement)
					}
					_, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot('walpost_runbook', 'pgoutput')
						WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = 'walpost_runbook')`)
					if err != nil {
						t.Fatal(err)
					}
					ran++
				}
			}
			if ran < 15 {
				t.Errorf("only %d statements", ran)
			}
		})
	}
}

// TestRunbooksKnowWhatAProviderRefuses compares the runbooks with the fix that walpost check prints on Azure.
func TestRunbooksKnowWhatAProviderRefuses(t *testing.T) {
	const name = "max_slot_wal_keep_size"
	azure, _, _ := strings.Cut(fix.Fix{fix.Setting{Name: name, Value: "50GB"}}.Text(fix.Azure), ".")
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	advise := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "`", "")), " ")
		if !strings.Contains(words, "ALTER SYSTEM SET "+name) {
			continue
		}
		if advise++; !strings.Contains(words, azure) {
			t.Errorf("%s advises to set %s and does not say: %s", filepath.Base(page), name, azure)
		}
	}
	if advise == 0 {
		t.Errorf("no page advises to set %s", name)
	}
}

// TestRunbooksHaveOneForm guards what a tired reader relies on: each page is short, and says in the same order how urgent it is (as the
// severity of its alerts does), the first command, what to do, what not to do, and why. Each command of walpost stands there for systemd and for Kubernetes.
func TestRunbooksHaveOneForm(t *testing.T) {
	severities := map[string]string{}
	for _, r := range rules(t) {
		if r.Alert != "" {
			severities[r.page()] += r.Labels["severity"]
		}
	}
	for page, severity := range severities {
		text, err := os.ReadFile(filepath.Join(runbooks, page))
		if err != nil {
			t.Error(err)
			continue
		}
		if words := len(strings.Fields(string(text))); words > 200 {
			t.Errorf("%s has %d words, and 200 are allowed", page, words)
		}
		urgent := "This week"
		switch {
		case strings.Contains(severity, "critical"):
			urgent = "Now"
		case strings.Contains(severity, "warning"):
			urgent = "Today"
		}
		form := regexp.MustCompile("(?s)^# [^\n]+\n\n\\*\\*" + urgent + "\\b.*?\n```sh\n[^\n]+# systemd\n[^\n]+# Kubernetes\n.*\n\\*\\*Don't\\*\\* .*\n\\*\\*Why\\.\\*\\* ")
		if !form.Match(text) {
			t.Errorf("%s does not have the form: %s, the first command for systemd and Kubernetes, what to do, Don't, Why", page, urgent)
		}
		for line := range strings.Lines(string(text)) {
			if m := ofService.FindStringSubmatch(line); strings.Contains(line, "walpost.yaml") && (m == nil || !strings.Contains(string(text), line+m[1]+"kubectl exec ") ||
				!regexp.MustCompile(`(?m)^ *kubectl exec (-it )?deployment/walpost -- walpost `+regexp.QuoteMeta(m[2]+m[3])+` +# Kubernetes$`).Match(text)) {
				t.Errorf("%s: not as the user walpost, with its file, and for Kubernetes, too: %s", page, line)
			}
			if strings.HasPrefix(strings.TrimSpace(line), "walpost ") {
				t.Errorf("%s: a command without its user: %s", page, line)
			}
		}
	}
}
