package walpost

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

const (
	sampleRows = 2000 // of each table
	sampleTime = 10 * time.Second
	// sampleTopics bounds what the brokers are asked about: a table whose rows each have a topic of their own is wrong anyway.
	sampleTopics = 100
)

// sample routes some of the rows that are in the tables now, as Run would: the topics that they go to, with the size of the largest record
// for each, and what is wrong with rows. A table that cannot be read is no precondition of the stream: what is known without it counts.
func (r *Relay) sample(ctx context.Context) (topics map[string]int, found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, 2*sampleTime)
	defer cancel()
	topics = map[string]int{}
	reader, err := r.source.ReadTables(ctx, replication.TableOptions{Timeout: sampleTime})
	if err != nil {
		return topics, nil // Examine says why the database cannot be reached, or the table not be read
	}
	defer reader.Close()
	if taker, ok := any(r.router).(relay.RunIDTaker); ok {
		taker.SetRunID("00000000-0000-7000-8000-000000000000") // as long as a real one
	}
	for _, t := range reader.Tables() {
		name := "rows of " + t.String()
		if reader.Relation(t) == nil {
			continue
		}
		looked, bad, err := r.route(ctx, reader, t, topics)
		switch {
		case err != nil:
			found = append(found, Finding{"postgres", name, "warn", "they cannot be looked at: " + err.Error(), fault.Hint(err)})
		case bad != nil:
			found = append(found, Finding{
				"postgres", name, "warn", "one of those that are there gives no record: " + bad.Error(),
				"A row like it halts the relay: walpost explain shows what is wrong with it.",
			})
		case looked > 0:
			found = append(found, Finding{"postgres", name, "ok", fmt.Sprintf("%d looked at, all can be routed", looked), ""})
		}
	}
	return topics, found
}

// route routes rows of one table into topics.
func (r *Relay) route(ctx context.Context, reader *replication.TableReader, t replication.Table, topics map[string]int) (looked int, bad, err error) {
	rows, err := reader.Select(ctx, replication.Selection{Table: t, Newest: sampleRows})
	if err != nil {
		return 0, nil, err
	}
	var rec cdc.Record
	for {
		ev, err := rows.Next()
		if ev == nil || err != nil {
			return looked, bad, err
		}
		looked++
		ok, err := r.router.Route(ev, &rec)
		switch _, known := topics[rec.Topic]; {
		case err != nil && bad == nil:
			bad = err
		case err == nil && ok && (known || len(topics) < sampleTopics):
			topics[rec.Topic] = max(topics[rec.Topic], rec.Size())
		}
	}
}
