//go:build linux || darwin

package consumer_test

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// Two services that wait for each other's first event must become ready.
func TestAConsumerIsReadyWhileNoneOfItsTopicsExists(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.topic += "-later"
	other := w.topic + "-other"
	w.dead = w.topic + "-dead"
	cfg := w.config(nil)
	cfg.Topics = []string{w.topic, other}
	m := w.start(cfg)
	w.eventually("it is ready", m.Ready)
	if m.Stats().Joined {
		t.Error("it is a member of the group")
	}
	w.k.CreateTopic(t, w.topic, 1, nil)
	w.send(0, "a:1")
	w.sees("a:1")
	w.commits(0, 1)
	if !m.Ready() || !m.Stats().Joined {
		t.Error("it is not ready")
	}
	text := w.log.String()
	for _, line := range []string{
		`level=WARN msg="the topic does not exist yet: waiting for it" group=` + w.name + " topic=" + w.topic + "\n",
		`level=WARN msg="the topic does not exist yet: waiting for it" group=` + w.name + " topic=" + other + "\n",
		`level=WARN msg="the dead letter topic does not exist: create it, or a message that cannot be handled holds up its key" group=` + w.name + " topic=" + w.dead + "\n",
	} {
		if strings.Count(text, line) != 1 {
			t.Errorf("the log does not have once: %s", line)
		}
	}
	if strings.Contains(text, "UNKNOWN_TOPIC") {
		t.Error("the log has the error of the brokers")
	}
	if err := m.end(); err != nil || m.Ready() {
		t.Errorf("ready after Run: %v, %v", m.Ready(), err)
	}
}
