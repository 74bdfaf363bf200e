//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/parity"
	"github.com/walpost/walpost/internal/testenv"
)

// An env is the servers of one run.
type env struct {
	host     *host
	kafka    *testenv.KafkaCluster
	worker   *testenv.ConnectWorker
	pg       *testenv.PG
	database []string // one for each case that runs
}

// caseTime is for a connector that starts beside dozens of others.
const caseTime = time.Minute

func (e *env) start(o *options) {
	e.pg = testenv.Postgres(e.host, o.version, testenv.Param("max_connections", "500"), testenv.Param("max_wal_senders", "200"),
		testenv.Param("max_replication_slots", "200"), testenv.Param("autovacuum", "off"))
	for range o.at {
		e.database = append(e.database, e.pg.Database(e.host))
	}
	e.kafka = testenv.KafkaPrivate(e.host, 1, map[string]string{
		"auto.create.topics.enable": "true", "num.partitions": strconv.Itoa(parity.Partitions), "message.max.bytes": parity.MaxMessage,
		"log.index.size.max.bytes": "65536",
		// Timestamps of columns are years old: a broker deletes such records within minutes.
		"log.retention.ms": "-1",
		// What is compared is what is sent; a broker would refuse a timestamp of the future.
		"log.message.timestamp.after.max.ms": "9223372036854775807",
	})
	e.worker = testenv.Connect(e.host, e.kafka, map[string]string{"offset.flush.interval.ms": "200", "producer.linger.ms": "0"})
}

// record runs cases on Debezium and keeps what it gives.
func (e *env) record(ctx context.Context, o *options, files []*parity.File, cases []*parity.Case) error {
	var mu sync.Mutex
	var errs []error
	done, changed := 0, 0
	from := time.Now()
	next := make(chan *parity.Case)
	var wg sync.WaitGroup
	for i, dsn := range e.database {
		wg.Go(func() {
			for c := range next {
				got, err := e.debezium(ctx, c, dsn, i)
				mu.Lock()
				done++
				switch was := c.Want; {
				case err != nil:
					errs = append(errs, fmt.Errorf("%s: %w", c.Slug(), err))
				case was != got:
					changed++
					if o.check || was != "" {
						fmt.Printf("%s:\n%s", c.Slug(), parity.Diff(was, got))
					}
					c.Want = got
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range cases {
		if ctx.Err() != nil {
			break
		}
		next <- c
	}
	close(next)
	wg.Wait()
	fmt.Printf("%d cases in %s, %d changed, %d could not be run\n", done, time.Since(from).Round(time.Second), changed, len(errs))
	if o.check && changed > 0 {
		errs = append(errs, fmt.Errorf("%d cases differ from what is kept", changed))
	}
	if !o.check {
		for _, f := range files {
			if err := os.WriteFile(f.Path, f.Bytes(), 0o644); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// debezium runs one case in one database.
func (e *env) debezium(ctx context.Context, c *parity.Case, dsn string, place int) (text string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, caseTime, errors.New("no end after "+caseTime.String()))
	defer cancel()
	p, err := c.Put(ctx, dsn, fmt.Sprintf("parity_%d", place), 1)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Leave(context.WithoutCancel(ctx))) }()
	d := parity.Debezium{Worker: e.worker, Brokers: e.kafka.Brokers()}
	got, err := d.Run(ctx, c, p, p.Slots[0])
	return got.String(), err
}
