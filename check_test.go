package walpost

import (
	"context"
	"errors"
	"testing"
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
