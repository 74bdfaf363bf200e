package doctor

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

// TestMain ends the shared servers and then looks for goroutines that are left.
func TestMain(m *testing.M) {
	os.Exit(testenv.MainWithoutLeaks(m))
}

// patient bounds a wait. The bound is reached only if something is wrong.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// config is what a run gives to checkKafka.
func config(brokers []string) sink.Config {
	cfg := sink.DefaultConfig()
	cfg.Brokers, cfg.WindowBytes = brokers, 64<<20
	return cfg
}

func setTopicConfig(t testing.TB, cl *kgo.Client, topic, key, value string) {
	t.Helper()
	changed, err := kadm.NewClient(cl).AlterTopicConfigs(patient(t), []kadm.AlterConfig{{Name: key, Value: &value}}, topic)
	if err == nil {
		err = changed[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}
