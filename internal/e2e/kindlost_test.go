package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/testenv"
)

// The checkpoint is lost while the relay is stopped and 16 writers go on: its topic is deleted, its records are deleted, or its file is
// removed. A slot, and the state of the rows, tell where to go on. A relay with the strategy cursor has only the checkpoint: it does not begin
// before a person has said what becomes of the rows that are there.
func TestEachSourceAfterALostCheckpoint(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
	eachKind(t, func(t *testing.T, k kind) {
		s := k.newSetting(t, pg, kafka)
		s.pause = 100 * time.Millisecond
		topic, adm := s.prefix+"checkpoints", kadm.NewClient(kafka.Client(t))
		lines := fmt.Sprintf("halt_linger: 0s\ncheckpoint: {topic: %s}\n", topic)
		s.extra = lines
		w := s.follow()
		r := s.startReady()
		c := s.crowd(16, 31)
		for n, lost := range []struct {
			name string
			lose func()
		}{
			{"the topic is deleted", func() {
				deleteTopic(t, kafka, topic)
			}},
			{"the records are deleted", func() {
				deletes := "compact,delete"
				if _, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "cleanup.policy", Value: &deletes}}, topic); err != nil {
					t.Fatal(err)
				}
				ends, err := adm.ListEndOffsets(t.Context(), topic)
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, time.Minute, "the records are deleted", func() bool { // once the brokers know the policy
					deleted, err := adm.DeleteRecords(t.Context(), ends.Offsets())
					return err == nil && deleted.Error() == nil
				})
			}},
			{"the file is removed", func() {
				s.extra = "halt_linger: 0s\ncheckpoint: {store: file, path: " + filepath.Join(t.TempDir(), "new") + "}\n"
			}},
		} {
			w.more(t, time.Minute, 20)
			r.stopsClean()
			s.insert(pg, "own", n+1)
			lost.lose()
			r = s.start()
			eventually(t, time.Minute, "ready or ended", func() bool { return r.ended() || r.ready() })
			code, says := 0, ""
			switch {
			case n == 1: // only the topic says that it has lost records
				code, says = 3, "if source.kind is poll, events may be missing: set source.snapshot: initial"
			case k.poll == "":
				says = "its checkpoint is lost"
			case !k.claims:
				code, says = 2, "snapshot: initial"
			case k.removes:
				code, says = 2, `"initial"`
			}
			if code > 0 != r.ended() || r.ended() && r.cmd.ProcessState.ExitCode() != code || !strings.Contains(r.log.String(), says) {
				t.Fatalf("%s: it must end with %d and say %q:\n%s", lost.name, code, says, r.log)
			}
			if code > 0 {
				var with []string
				if token := tokenInHint.FindStringSubmatch(r.log.String()); token != nil {
					with = append(with, "--accept-gap="+token[1])
				}
				if k.poll != "" {
					with = append(with, "--snapshot=initial")
				}
				r = s.startReady(with...)
			}
		}
		w.more(t, time.Minute, 20)
		c.stop()
		k.holds(s, w, true)
		r.stopsClean()
	})
}

// deleteTopic deletes a topic, and returns when the broker doesn't know it any more: for a moment, it still gives its records, and takes
// new ones, which are deleted too.
func deleteTopic(t *testing.T, kafka *testenv.KafkaCluster, topic string) {
	t.Helper()
	if _, err := kadm.NewClient(kafka.Client(t)).DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	look := kadm.NewClient(kafka.Client(t)) // the other client would remember that the topic was gone
	eventually(t, time.Minute, "the broker does not know the topic", func() bool {
		found, err := look.ListTopics(t.Context(), topic)
		return err == nil && !found.Has(topic)
	})
}
