package walpost

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/relay"
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

func TestCheckSaysThatACopyIsNotFinished(t *testing.T) {
	rec := &checkpoint.Record{Name: "shop.walpost", Epoch: 3, LSN: 0x1000, Copy: &checkpoint.Copy{Origin: checkpoint.OriginSnapshot}}
	f := foreseen{Forecast: relay.Forecast{Record: rec}}
	if found := f.among(nil); len(found) != 1 || !strings.Contains(found[0].Why, "an unfinished copy of rows") {
		t.Errorf("%+v", found)
	}
}
