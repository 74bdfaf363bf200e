package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A parkedSetting is a setting whose events are bad if they ask for a partition that their topic does not have. Its two topics have one
// partition at first. An event is known by its number.
type parkedSetting struct {
	*setting
	pg     *testenv.PG
	kafka  *testenv.KafkaCluster
	adm    *kadm.Client
	parked string // the topic of parked events
}

// newParkedSetting has walpost.yaml with more lines of delivery.
func newParkedSetting(t *testing.T, pg *testenv.PG, kafka *testenv.KafkaCluster, delivery string) *parkedSetting {
	s := &parkedSetting{setting: &setting{t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("parked")}, pg: pg, kafka: kafka, adm: kadm.NewClient(kafka.Client(t))}
	s.prefix = s.name + "."
	s.parked = s.prefix + "parked"
	pg.Exec(t, s.dsn, shop.Schema, "ALTER TABLE outbox ADD p int", "CREATE INDEX ON outbox (created_at)")
	for _, typ := range shop.Types {
		s.topics = append(s.topics, s.prefix+typ)
		kafka.CreateTopic(t, s.prefix+typ, 1, nil)
	}
	s.source, s.router = ", time_column: created_at, slot: "+s.slot(), `, table.fields.additional.placement: "p:partition"`
	s.extra = fmt.Sprintf("halt_linger: 0s\nmonitor: {interval: 1s}\ndelivery: {%s, dead_letter_topic: %sdead, parking_topic: %s}\n", delivery, s.prefix, s.parked)
	return s
}

func (s *parkedSetting) insertInto(table, typ string, n, p int, key string) {
	s.t.Helper()
	s.pg.Exec(s.t, s.dsn, fmt.Sprintf(`INSERT INTO %s (id, aggregate_type, aggregate_id, event_type, payload, p) VALUES ('00000000-0000-0000-0000-%012d', '%s', '%s', 'Changed', '%d', %d)`, table, n, typ, key, n, p))
}

func (s *parkedSetting) insert(n, p int, key string) {
	s.t.Helper()
	s.insertInto("outbox", "order", n, p, key)
}

// rows are the numbers of the rows in the table.
func (s *parkedSetting) rows() string {
	s.t.Helper()
	return s.pg.Value(s.t, s.dsn, "SELECT coalesce(string_agg(payload::text, ' ' ORDER BY id), '') FROM outbox")
}

// got are the numbers in a topic, one partition after the other.
func (s *parkedSetting) got(topic string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	ends, err := s.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		s.t.Fatal(err)
	}
	var numbers []string
	for partition := range int32(len(ends[topic])) {
		end := ends[topic][partition]
		if end.Err != nil || end.Offset == 0 {
			continue
		}
		cl := s.kafka.Client(s.t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {end.Partition: kgo.NewOffset().AtStart()}}))
		for next := int64(0); next < end.Offset; {
			fetched := cl.PollFetches(ctx)
			if err := fetched.Err(); err != nil {
				s.t.Fatal(err)
			}
			fetched.EachRecord(func(rec *kgo.Record) {
				numbers, next = append(numbers, string(rec.Value)), rec.Offset+1
			})
		}
		cl.Close()
	}
	return strings.Join(numbers, " ")
}

func (s *parkedSetting) arrives(topic, want string) {
	s.t.Helper()
	eventually(s.t, time.Minute, want+" in "+topic, func() bool { return s.got(topic) == want || s.t.Failed() })
}

func (s *parkedSetting) holds(r *relay, events int) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprint(events, " parked events"), func() bool { return r.metric("walpost_parked_events") == float64(events) })
}

// does runs a command that must succeed, and returns what it printed.
func (s *parkedSetting) does(args ...string) string {
	s.t.Helper()
	code, out := s.command(args...)
	if code != 0 {
		s.t.Fatalf("%v: code %d\n%s", args, code, out)
	}
	return out
}

// An entry is an event in the output of "dead list".
type entry struct {
	Token, State string
	ID           string `json:"event_id"`
}

// list returns the dead and the parked events by their numbers, also those that are closed.
func (s *parkedSetting) list() map[int]entry {
	s.t.Helper()
	var found struct{ Events []entry }
	out := s.does("dead", "list", "--state", "all", "--json")
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &found); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	all := map[int]entry{}
	for _, e := range found.Events {
		n, err := strconv.Atoi(e.ID[max(0, len(e.ID)-12):])
		if err != nil {
			s.t.Fatalf("%+v", e)
		}
		all[n] = e
	}
	return all
}

// refused waits for the end of a relay that halts, and returns the token of the gap.
func (s *parkedSetting) refused(r *relay) string {
	s.t.Helper()
	code, tokens := r.wait(time.Minute), regexp.MustCompile(`"error".*--accept-gap=(parked-[0-9a-f]+)`).FindAllStringSubmatch(r.log.String(), -1)
	if code != 3 || tokens == nil {
		s.t.Fatalf("code %d, tokens %v", code, tokens)
	}
	return tokens[len(tokens)-1][1]
}

// parkThree parks 2 and 3 of key a, and 5 of key c. The other events are delivered.
func (s *parkedSetting) parkThree() *relay {
	s.t.Helper()
	r := s.startReady()
	s.insert(1, 0, "a")
	s.insert(2, 1, "a")
	s.holds(r, 1) // its letter is the first one
	s.insert(3, 0, "a")
	s.insert(4, 0, "b")
	s.insert(5, 2, "c")
	s.holds(r, 3)
	s.arrives(s.topics[0], "1 4")
	return r
}

// release makes the partitions that parkThree asked for, and has everything released.
func (s *parkedSetting) release() {
	s.t.Helper()
	s.kafka.Grow(s.t, 3, s.topics[0])
	s.does("dead", "retry", "--all", "--wait")
}
