package walpost

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/pg"
)

// What was interrupted is no finding: nobody should be told that a server is down because of it.
func TestACheckThatIsInterruptedFindsNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://walpost@127.0.0.1:1/shop", "public.outbox", []string{"127.0.0.1:1"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := Check(ctx, cfg); !errors.Is(err, context.Canceled) || found != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// The source logs what Config.Advise returns, so New must set it.
func TestAStartIsGivenTheAdviceOfTheDoctor(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://h/shop", "public.outbox", []string{"k:9092"}
	r, err := New(cfg)
	if err != nil || r.source.Config().Advise == nil {
		t.Fatal("no advice", err)
	}
	got := r.source.Config().Advise(&pg.Facts{Server: pg.Server{SyncStandbys: "*"}})
	if len(got) != 1 || !strings.Contains(got[0].Text, "synchronous_standby_names") || !strings.Contains(got[0].Hint, "Name the standbys") {
		t.Errorf("advice %+v", got)
	}
}
