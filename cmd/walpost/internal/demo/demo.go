//go:build linux || darwin

// Package demo shows walpost at work: it starts a Postgres, a broker and a shop, and compares what
// the shop committed with what the relay delivered.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/shop"
)

// database is where the shop's tables are; settle is how long the last events may take once the shop is closed.
const (
	database = "postgres"
	settle   = time.Minute
)

// A Relay runs a relay of the table public.outbox until ctx ends, and logs to log. It calls started once, with the address of
// the status page, or "".
type Relay func(ctx context.Context, dsn string, brokers []string, log io.Writer, started func(*walpost.Relay, string)) error

// A demo is one run of the whole.
type demo struct {
	out *progress.Meter

	db     *localpg.Server
	broker *kfake.Cluster
	shop   *shop.Shop
	relay  *walpost.Relay
	ledger *ledger.Ledger
}

// Run runs until ctx ends or the time is over (0: never), and then checks. The error says which promise was broken. On a
// terminal, the last line of the output is written over.
func Run(ctx context.Context, out io.Writer, length time.Duration, run Relay) (err error) {
	d := &demo{out: progress.NewMeter(out), ledger: ledger.New()}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before there was anything to check
		}
		return err
	}
	// The relay is stopped last, by itself, when everything has been written and read.
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	started, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- run(relaying, d.db.DSN(database), d.broker.ListenAddrs(), d.out, func(r *walpost.Relay, page string) {
			d.relay = r
			started <- page
		})
	}()
	select {
	case err := <-ended:
		return err
	case page := <-started:
		if page != "" {
			fmt.Fprintf(out, "status page  %s\n", page)
		}
		fmt.Fprintf(out, "postgres     %s\n", d.db.DSN(database))
		fmt.Fprintf(out, "kafka        %s, topics %v\n\n", d.broker.ListenAddrs()[0], shop.Topics())
	}
	return d.play(ctx, length, ended, stopRelay)
}

// open brings up the servers and the shop's tables.
func (d *demo) open(ctx context.Context) (err error) {
	d.db, err = localpg.Start(ctx, localpg.Config{
		Version:    "17",
		Parameters: map[string]string{"max_slot_wal_keep_size": "1GB"},
		Progress:   func(step string) { fmt.Fprintln(d.out, step) },
	})
	if err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	conn, err := pgx.Connect(ctx, d.db.DSN(database))
	if err != nil {
		return fmt.Errorf("connect to the demo's Postgres: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(ctx, shop.Schema); err != nil {
		return fmt.Errorf("create the shop's tables: %w", err)
	}
	if d.broker, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	return nil
}

func (d *demo) close() error {
	if d.broker != nil {
		d.broker.Close()
	}
	if d.db == nil {
		return nil
	}
	if err := d.db.Close(); err != nil {
		return fmt.Errorf("stop Postgres: %w", err)
	}
	return nil
}

// play lets the shop write and the relay deliver, then waits for what is on its way, stops the relay and checks.
func (d *demo) play(ctx context.Context, length time.Duration, ended chan error, stopRelay func()) error {
	background := context.WithoutCancel(ctx)
	if length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, length)
		defer cancel()
	}
	following, stopFollow := context.WithCancel(background)
	defer stopFollow()
	followed, shopped := make(chan error, 1), make(chan error, 1)
	go func() {
		followed <- shop.Follow(following, d.broker.ListenAddrs(), shop.Topics(), func(r *kgo.Record) { d.ledger.Observe(shop.Entry(r)) })
	}()
	d.shop = &shop.Shop{
		DSN: d.db.DSN(database), Writers: 4, MaxRows: 20, Pause: 40 * time.Millisecond, Seed: uint64(time.Now().UnixNano()),
	}
	go func() { shopped <- d.writeWhenReady(ctx) }()

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last walpost.Status
	for open := true; open; {
		select {
		case <-tick.C:
			last = d.progress(last)
		case err := <-ended:
			d.out.End()
			return fmt.Errorf("the relay ended before the demo did: %w", err)
		case err := <-shopped:
			if err != nil {
				return fmt.Errorf("the shop: %w", err)
			}
			open = false
		}
	}
	d.out.End()
	fmt.Fprintln(d.out, "\nthe shop is closed; waiting for the events in flight")
	if err := shop.Truth(background, d.db.DSN(database), d.ledger); err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	for limit := time.Now().Add(settle); d.ledger.Missing() > 0 && time.Now().Before(limit); {
		time.Sleep(50 * time.Millisecond)
	}
	stopRelay()
	if err := <-ended; err != nil {
		return fmt.Errorf("stop the relay: %w", err)
	}
	stopFollow()
	if err := <-followed; err != nil {
		return fmt.Errorf("the consumer: %w", err)
	}
	return d.verdict()
}

// writeWhenReady opens the shop once events flow: what is written before the slot exists is not published.
func (d *demo) writeWhenReady(ctx context.Context) error {
	for !d.relay.Status().Ready {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	return d.shop.Run(ctx)
}

// progress prints one line about the time since last.
func (d *demo) progress(last walpost.Status) walpost.Status {
	st := d.relay.Status()
	arrived, _ := d.ledger.Arrived()
	lag := "-"
	if st.Slot.Known && st.Slot.UnconfirmedBytes >= 0 {
		lag = walpost.Size(st.Slot.UnconfirmedBytes).Roughly()
	}
	took := st.Latency.Since(last.Latency)
	reason := ""
	if !st.Ready {
		reason = "  not ready: " + st.Reason
	}
	d.out.Show(fmt.Sprintf("%d committed, %d arrived, %d/s, commit to ack p50 %.1f ms p99 %.1f ms, slot lag %s%s", d.shop.Committed(), arrived,
		st.Events-last.Events, 1000*took.Quantile(0.5), 1000*took.Quantile(0.99), lag, reason))
	return st
}

// verdict compares what was committed with what arrived.
func (d *demo) verdict() error {
	rep := d.ledger.Check()
	fmt.Fprintf(d.out, "\ncheck: %s\n", &rep)
	switch {
	case !rep.OK():
		return errors.New("the check failed: see the line that begins with \"check:\"")
	case rep.Duplicates > 0:
		return fmt.Errorf("%d events arrived more than once, although nothing crashed", rep.Duplicates)
	case rep.Committed == 0:
		fmt.Fprintln(d.out, "check: the demo was too short: nothing was committed")
		return nil
	}
	fmt.Fprintf(d.out, "check: ok: everything that was committed arrived once, in order per key; no rolled-back row arrived\n")
	return nil
}
