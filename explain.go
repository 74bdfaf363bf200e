package walpost

import (
	"context"

	"github.com/walpost/walpost/internal/explain"
)

// ExplainOptions say which rows are explained: exactly one of ID, Last and JSON.
type ExplainOptions = explain.Options

// An Explanation is the record that one row gives, or why it gives none.
type Explanation = explain.Explanation

// ErrNoRow says that no row of the table is the one that was asked for.
var ErrNoRow = explain.ErrNoRow

// Explain routes rows as Run would and hands each to show, valid during the call. It writes nothing, neither to the database nor to
// Kafka. The configuration must name one table.
func Explain(ctx context.Context, cfg Config, opts ExplainOptions, show func(*Explanation) error) error {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return err
	}
	by := explain.Config{From: r.rows, Router: r.router, OrderColumn: cfg.Source.OrderColumn}
	if cfg.Stdout == nil && len(cfg.Kafka.Brokers) > 0 {
		to := cfg.sink()
		by.Kafka, by.Compression = &to.Config, to.Compression
	}
	return explain.Explain(ctx, by, opts, show)
}
