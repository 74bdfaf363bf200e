package parity

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Place is a database that a case has been put into: its tables, a publication, slots that were made before its rows, and after
// them a logical message that says that all has been said.
type Place struct {
	DSN         string
	Publication string
	Slots       []string
	End         uint64 // LSN behind everything
	Registry    string // host:port; "" without a registry
}

// Tables returns the tables of a case, schema.table without quotes: those of table.include.list, which must name them plainly.
func (c *Case) Tables() []string {
	list := c.Option("table.include.list")
	if list == "" {
		return []string{"public.outbox"}
	}
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		names = append(names, strings.ReplaceAll(strings.TrimSpace(name), `\`, ""))
	}
	return names
}

// Put puts a case into the database of dsn, which it empties first. name begins the names of the publication and the slots.
func (c *Case) Put(ctx context.Context, dsn, name string, slots int) (*Place, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it did was answered
	p := &Place{DSN: dsn, Publication: name}
	if err := empty(ctx, conn); err != nil {
		return nil, fmt.Errorf("empty the database: %w", err)
	}
	if err := execute(ctx, conn, c.DDL); err != nil {
		return nil, fmt.Errorf("DDL: %w", err)
	}
	var tables []string
	for _, t := range c.Tables() {
		schema, table, _ := strings.Cut(t, ".")
		tables = append(tables, pgx.Identifier{schema, table}.Sanitize())
	}
	publish := fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s", pgx.Identifier{name}.Sanitize(), strings.Join(tables, ", "))
	if c.Option("publish.via.partition.root") == "true" {
		publish += " WITH (publish_via_partition_root = true)"
	}
	if _, err := conn.Exec(ctx, publish); err != nil {
		return nil, fmt.Errorf("publication: %w", err)
	}
	for n := range slots {
		slot := fmt.Sprintf("%s_%d", name, n)
		if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot); err != nil {
			return nil, fmt.Errorf("slot: %w", err)
		}
		p.Slots = append(p.Slots, slot)
	}
	if err := execute(ctx, conn, c.SQL); err != nil {
		return nil, fmt.Errorf("SQL: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'parity', 'end')"); err != nil {
		return nil, err
	}
	return p, conn.QueryRow(ctx, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").Scan(&p.End)
}

// Leave drops the slots.
func (p *Place) Leave(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("drop the slots: %w", err)
		}
	}()
	conn, err := pgx.Connect(ctx, p.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // what it did was answered
	for {
		// A walsender holds its slot for a moment after its client has gone.
		_, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY($1)", p.Slots)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "is active") {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// empty also takes away what a case left that could not be put, or not be ended.
func empty(ctx context.Context, conn *pgx.Conn) error {
	for {
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() AND active`)
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "is active") {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, find := range []string{
		`SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication`,
		`SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'`,
	} {
		rows, err := conn.Query(ctx, find)
		if err != nil {
			return err
		}
		drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, drop := range drops {
			if _, err := conn.Exec(ctx, drop); err != nil {
				return err
			}
		}
	}
	_, err := conn.Exec(ctx, "CREATE SCHEMA public")
	return err
}

// execute runs statements one by one.
func execute(ctx context.Context, conn *pgx.Conn, sql string) error {
	for len(sql) > 0 {
		// A statement ends with a semicolon at the end of a line, outside quotes.
		end, quotes := len(sql), 0
		for i := range len(sql) {
			if sql[i] == '\'' {
				quotes++
			}
			if sql[i] == ';' && quotes%2 == 0 && (i+1 == len(sql) || sql[i+1] == '\n') {
				end = i + 1
				break
			}
		}
		if _, err := conn.PgConn().Exec(ctx, sql[:end]).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", sql[:end], err)
		}
		sql = strings.TrimLeft(sql[end:], "\n")
	}
	return nil
}

// Partitions is how many a topic has, and MaxMessage is message.max.bytes.
const (
	Partitions = 3
	MaxMessage = "16777216"
)

// readTopics returns every record of the topics whose names begin with prefix, without the prefix, and the topics' whole names.
func readTopics(ctx context.Context, brokers []string, prefix string) (records []Record, topics []string, err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchMaxBytes(32<<20),
		kgo.FetchMaxPartitionBytes(16<<20))
	if err != nil {
		return nil, nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	all, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range all.Names() {
		if strings.HasPrefix(name, prefix) && name != ownTopic {
			topics = append(topics, name)
		}
	}
	if len(topics) == 0 {
		return nil, nil, nil
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, nil, err
	}
	if err := ends.Error(); err != nil {
		return nil, nil, err
	}
	left := map[string]map[int32]int64{}
	from := map[string]map[int32]kgo.Offset{}
	n := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset == 0 {
			return
		}
		if left[o.Topic] == nil {
			left[o.Topic], from[o.Topic] = map[int32]int64{}, map[int32]kgo.Offset{}
		}
		left[o.Topic][o.Partition] = o.Offset
		from[o.Topic][o.Partition] = kgo.NewOffset().At(0)
		n++
	})
	if n == 0 {
		return nil, topics, nil
	}
	cl.AddConsumePartitions(from)
	for n > 0 {
		f := cl.PollFetches(ctx)
		if err := f.Err(); err != nil {
			return nil, nil, fmt.Errorf("%w: %d records read, not yet to the ends %v", err, len(records), left)
		}
		f.EachRecord(func(r *kgo.Record) {
			end, ok := left[r.Topic][r.Partition]
			if !ok || r.Offset >= end {
				return
			}
			rec := Record{
				Topic: strings.TrimPrefix(r.Topic, prefix), Partition: r.Partition, Offset: r.Offset, Time: r.Timestamp, Key: r.Key, Value: r.Value,
			}
			for _, h := range r.Headers {
				rec.Headers = append(rec.Headers, Header{h.Key, h.Value})
			}
			records = append(records, rec)
			if r.Offset == end-1 {
				n--
				delete(left[r.Topic], r.Partition)
			}
		})
	}
	return records, topics, nil
}

// ownTopic is walpost's checkpoint topic, which is no record of a case.
const ownTopic = "walpost.checkpoints"

func deleteTopics(ctx context.Context, brokers, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	adm, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer adm.Close()
	_, err = adm.DeleteTopics(ctx, topics...)
	return err
}
