package outboxtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/outbox/outboxtest"
)

func Example() {
	var t *testing.T // of the test
	var tx pgx.Tx    // in which the tested code has written

	events := outboxtest.Written(t, tx)
	if len(events) != 1 || events[0].Type != "OrderPlaced" {
		t.Errorf("events %v", events)
	}
}
