//go:build linux || darwin

package testenv

import (
	"slices"
	"strings"
	"testing"
)

const identity = "SELECT system_identifier FROM pg_control_system()"

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestAServerNamedByTheEnvironmentIsUsedInsteadOfAnOwnOne(t *testing.T) {
	theirs := Postgres(t, "16", Private())
	t.Setenv("WALPOST_TEST_DSN", theirs.DSN("postgres"))
	t.Run("and tidied", func(t *testing.T) {
		for _, version := range []string{"", "16"} {
			pg := Postgres(t, version)
			same(t, "identity", pg.Value(t, pg.Database(t), identity), theirs.Value(t, theirs.DSN("postgres"), identity))
			if pg.Version() != 16 {
				t.Errorf("version %d, want 16", pg.Version())
			}
		}
	})
	same(t, "databases left", theirs.Value(t, theirs.DSN("postgres"), "SELECT count(*) FROM pg_database WHERE datname LIKE 'wp%'"), "0")

	skipped := false
	t.Run("another version", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Postgres(t, "17")
	})
	if !skipped {
		t.Error("a test of version 17 was not skipped")
	}
	own := Postgres(t, "16", Private())
	if own.Port() == theirs.Port() || !own.server.Running() {
		t.Error("a private server is not one of its own")
	}
}

func TestBrokersNamedByTheEnvironmentAreUsedInsteadOfOwnOnes(t *testing.T) {
	theirs := KafkaPrivate(t, 1, nil)
	t.Setenv("WALPOST_TEST_BROKERS", strings.Join(theirs.Brokers(), ","))
	topic := ""
	t.Run("and tidied", func(t *testing.T) {
		c := Kafka(t)
		if !slices.Equal(c.Brokers(), theirs.Brokers()) {
			t.Fatalf("brokers %v, want %v", c.Brokers(), theirs.Brokers())
		}
		topic = c.Topic(t, 1, nil)
		roundTrip(t, c, topic, "v")
	})
	adm, err := adminOf(theirs.Brokers()...)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	if topics, err := adm.ListTopics(within(t, timeout)); err != nil || topics.Has(topic) {
		t.Errorf("topic %s is still there (%v)", topic, err)
	}
}
