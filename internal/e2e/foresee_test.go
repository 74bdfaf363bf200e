package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// check says of the checkpoint what a run then does, and changes neither store.
func TestCheckJudgesTheCheckpointAsAStartDoes(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"file", "kafka"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "15")
			dir := t.TempDir()
			path, topic := filepath.Join(dir, "position"), unique("checkpoints")
			if store == "file" {
				w.extra += fmt.Sprintf("checkpoint: {store: file, path: %q}\n", path)
			} else {
				w.extra += fmt.Sprintf("checkpoint: {topic: %s}\n", topic)
			}
			w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			check := func(state string, want int, texts ...string) {
				t.Helper()
				code, out := w.command("check")
				if code != want || strings.Contains(out, "ready to run") != (want == 0) {
					t.Errorf("%s: exit code %d", state, code)
				}
				for _, text := range texts {
					if without, none := strings.CutPrefix(text, "!"); strings.Contains(out, without) == none {
						t.Errorf("%s: %q", state, text)
					}
				}
				if t.Failed() {
					t.Fatal(out)
				}
			}

			check("before the first run", 0, "ok    postgres: checkpoint: no checkpoint of "+w.name+" is stored: the next walpost run is the first one")
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("check left %v in the folder of the checkpoint, %v", left, err)
			}
			cl, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if topics, err := kadm.NewClient(cl).ListTopics(t.Context(), topic); err != nil || topics.Has(topic) {
				t.Errorf("check created the topic of the checkpoints, %v", err)
			}

			r := w.startReady()
			w.arrive(w.insert(10))
			epoch := r.view().Epoch
			check("beside the relay", 0, "ok    postgres: checkpoint: the slot fits checkpoint "+w.name+"/")
			if now := r.view(); now.Epoch != epoch || now.State != "streaming" {
				t.Errorf("after check, the relay is %s in epoch %d, before %d", now.State, now.Epoch, epoch)
			}

			bad := w.pg.Value(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (NULL, 'k1', 'made', '{}') RETURNING id::text")
			_, log := w.halted(r, "", bad)
			token := skipInHint.FindStringSubmatch(hintOf(log))[1]
			check("halted", 1, "FAIL  postgres: checkpoint: event "+bad+" of public.outbox in transaction ", " halted the relay: ", "walpost skip "+token+" --config ")
			if code, out := w.command("skip", token); code != 0 {
				t.Fatalf("skip: %d\n%s", code, out)
			}
			ends := "repair or delete the row to clear this warning."
			check("to be passed over", 0, ends)
			r = w.startReady()
			w.arrive(w.insert(5))
			check("passed over", 0, ends)
			w.stopCleanly(r)
			w.exec("DELETE FROM outbox WHERE aggregate_type IS NULL")
			check("the row is deleted", 0, "!"+ends)

			w.exec(dropSlot)
			for _, snapshot := range []string{"", ", snapshot: never", ", snapshot: initial", ", create: false"} {
				w.source = snapshot
				check("the slot is dropped"+snapshot, 1, `FAIL  postgres: checkpoint: slot "walpost" does not exist, but checkpoint `, "walpost recover --config ",
					"!source.snapshot must say", "!it will be created", "!pg_create_logical_replication_slot")
			}
			w.source = ""
			w.exec("SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')")
			check("the slot is made by hand", 1, `FAIL  postgres: checkpoint: slot "walpost" stands at `, "walpost recover --config ")
			other := w.dsn
			w.exec("CREATE DATABASE other TEMPLATE template0")
			w.dsn, w.source = w.pg.DSN("other"), ", slot: second"
			w.pg.Exec(t, w.dsn, "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb)")
			check("another database", 1, `FAIL  postgres: checkpoint: the database is "other", but checkpoint `)
			w.dsn, w.source = other, ""

			if store == "file" {
				if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
				check("a torn file", 1, "FAIL  postgres: checkpoint: read checkpoint: read checkpoint file "+path)
				return
			}
			w.exec(dropSlot)
			w.brokers = []string{"127.0.0.1:1"}
			check("no Kafka", 1, "FAIL  kafka: ", "!source.snapshot must say")
		})
	}
}
