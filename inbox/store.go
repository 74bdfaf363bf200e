package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/walpost/walpost/internal/lib/anytx"
)

// Store writes messages into inbox_messages in the caller's transaction, and returns how many are
// new. Commit the offset to the broker after the transaction. A Worker handles the messages later.
//
// Store leaves out a message that is already stored or processed, for as long as its row exists or
// its mark is remembered (see Retention). Messages with the same topic and key are handled in the
// order in which they are stored: a transaction that stores messages with a key waits until other
// transactions that have done so end. If a message has no id, Store refuses the whole call with an
// *IDError.
//
// If Store fails, it makes the transaction fail, as Once does. A time before the year 1 or after
// 9999 is stored as the first or last moment of that range.
//
// Store wakes the Workers with a Postgres notification (NOTIFY). A transaction with one can't be
// prepared (PREPARE TRANSACTION), and the commits of such transactions wait for each other.
// Postgres drops a notification if no session listens, and otherwise queues it until all listening
// sessions have received it. If a session of any program listens and stays in a transaction until
// the queue reaches 8 GB, Store fails.
func Store(ctx context.Context, tx any, consumer string, msgs ...Message) (stored int64, err error) {
	return Schema("").Store(ctx, tx, consumer, msgs...)
}

// Store is the function Store with the tables of this schema.
func (s Schema) Store(ctx context.Context, tx any, consumer string, msgs ...Message) (stored int64, err error) {
	c, err := s.of(ctx, tx)
	if err != nil {
		return 0, err
	}
	return store(ctx, c, consumer, msgs)
}

// Store is the function Store in a transaction of its own.
func (db *DB[T]) Store(ctx context.Context, consumer string, msgs ...Message) (stored int64, err error) {
	err = db.retry(ctx, func(tx *transaction[T]) (err error) {
		stored, err = store(ctx, tx, consumer, msgs)
		return err
	})
	return stored, err
}

func store(ctx context.Context, c anytx.Tx, consumer string, msgs []Message) (stored int64, err error) {
	fresh, err := markAll(ctx, c, consumer, msgs)
	if err != nil || len(fresh) == 0 {
		return 0, err
	}
	// A mark without its row would be a lost message.
	err = orFail(ctx, c, func() error {
		if stored, err = insert(ctx, c, consumer, msgs, fresh); err == nil && stored > 0 {
			err = notify(ctx, c, consumer)
		}
		return err
	})
	return stored, err
}

// lane returns what the order of a message depends on, if it has an order.
func (m Message) lane() (lane string, ordered bool) {
	return m.Topic + "\x00" + string(m.Key), m.Key != nil
}

// insert writes the rows of the messages with the indexes fresh.
func insert(ctx context.Context, c anytx.Tx, consumer string, msgs []Message, fresh []int) (int64, error) {
	type row struct {
		ID, Scope  string
		Topic      string
		Partition  int32
		Position   int64
		Time       time.Time
		Headers    []storedHeader
		Lane       []byte // as are Key and Value: base64, or null
		Key, Value []byte
	}
	rows := make([]row, len(fresh))
	locks := map[uint32]bool{}
	for n, i := range fresh {
		m := msgs[i]
		lane, ordered := m.lane()
		if lane = "key " + lane; !ordered {
			lane = "id " + m.scope() + "\x00" + m.ID
		} else {
			locks[hash(lane)%laneLocks] = true
		}
		if len(lane) > maxLane {
			sum := sha256.Sum256([]byte(lane))
			lane = "sha256 " + string(sum[:])
		}
		rows[n] = row{m.ID, m.scope(), m.Topic, m.Partition, m.Offset, storable(m.Time), storedHeaders(m.Headers), []byte(lane), m.Key, m.Value}
	}
	if err := lockLanes(ctx, c, consumer, locks); err != nil {
		return 0, err
	}
	list, err := json.Marshal(rows)
	if err != nil {
		return 0, err
	}
	n, err := c.Exec(ctx, `INSERT INTO @inbox_messages
			(consumer, scope, event_id, lane, topic, partition, "offset", key, value, headers, time)
		SELECT $1::text, "Scope", "ID", decode("Lane", 'base64'), "Topic", "Partition", "Position",
			decode("Key", 'base64'), decode("Value", 'base64'), "Headers", "Time"
		FROM ROWS FROM (json_to_recordset($2::text::json) AS ("ID" text, "Scope" text, "Lane" text, "Topic" text,
			"Partition" int, "Position" bigint, "Key" text, "Value" text, "Headers" json, "Time" timestamptz)
		) WITH ORDINALITY
		ORDER BY ordinality ON CONFLICT DO NOTHING`, consumer, string(list))
	if err != nil {
		m := msgs[fresh[0]]
		return 0, fmt.Errorf("store %d messages from %s/%d/%d: %w", len(rows), m.Topic, m.Partition, m.Offset, err)
	}
	return n, nil
}

// maxLane is the length of the longest lane in bytes, beside a consumer's name in an index. A
// longer lane is stored as its digest.
const maxLane = maxScope + maxID + len("id \x00")

// A storedHeader is a Header in JSON. A name that is no text is in Bytes.
type storedHeader struct {
	Key   string `json:"key,omitempty"`
	Bytes []byte `json:"key_base64,omitempty"`
	Value []byte `json:"value"`
}

func storedHeaders(headers []Header) []storedHeader {
	var stored []storedHeader // nil, which is null, without headers
	for _, h := range headers {
		s := storedHeader{Key: h.Key, Value: h.Value}
		if !isText(h.Key) {
			s.Key, s.Bytes = "", []byte(h.Key)
		}
		stored = append(stored, s)
	}
	return stored
}

// readHeaders turns the text of a row's headers back.
func readHeaders(text string) (headers []Header, err error) {
	var stored []storedHeader
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, err
	}
	for _, s := range stored {
		headers = append(headers, Header{s.Key + string(s.Bytes), s.Value})
	}
	return headers, nil
}

// Kafka's time has 64 bits. These are the first and the last that Postgres and the drivers can
// hold.
var (
	earliest = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// storable returns the time, or the closest one that can be stored.
func storable(t time.Time) time.Time {
	switch {
	case t.Before(earliest):
		return earliest
	case t.After(latest):
		return latest
	}
	return t.UTC()
}

// laneLocks is how many locks the lanes of a consumer share. Postgres has room for some thousand
// locks of all transactions together.
const laneLocks = 64

// lockLanes makes other transactions wait that store messages of the same lanes, until this one
// ends. Otherwise the later of two messages could be committed, and handled, before the earlier
// one.
func lockLanes(ctx context.Context, c anytx.Tx, consumer string, locks map[uint32]bool) error {
	if len(locks) == 0 {
		return nil
	}
	// Sorted, so that two transactions do not deadlock.
	list, err := json.Marshal(slices.Sorted(maps.Keys(locks)))
	if err == nil {
		_, err = c.Exec(ctx, `SELECT pg_advisory_xact_lock($1::int, n::int) FROM json_array_elements_text($2::text::json) AS n`,
			int32(hash("inbox "+consumer)), string(list))
	}
	if err != nil {
		return fmt.Errorf("lock the keys: %w", err)
	}
	return nil
}

func hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return h.Sum32()
}

// A Backlog counts a consumer's messages in inbox_messages that aren't processed.
type Backlog struct {
	Pending int64         // not processed and not dead
	Failing int64         // those of Pending whose last attempt failed
	Dead    int64         // given up until RetryDead or RetryAllDead
	Age     time.Duration // of the oldest pending message
}

// Backlog counts the messages of a consumer.
func (db *DB[T]) Backlog(ctx context.Context, consumer string) (b Backlog, err error) {
	_, err = db.in(ctx, func(tx *transaction[T]) error {
		var microseconds int64
		err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'pending'),
			count(*) FILTER (WHERE state = 'pending' AND failures > 0), count(*) FILTER (WHERE state = 'dead'),
			coalesce(extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE state = 'pending')) * 1000000, 0)::bigint
			FROM @inbox_messages WHERE consumer = $1 AND state IN ('pending', 'dead')`,
			[]any{consumer}, &b.Pending, &b.Failing, &b.Dead, &microseconds)
		b.Age = time.Duration(microseconds) * time.Microsecond
		return err
	})
	return b, err
}

// RetryDead makes dead messages with these ids pending again, resets their attempts, and wakes the
// Workers. scope is the Scope of the messages, by default their topic. RetryDead returns the number
// of messages that it found. Later pending messages with the same key wait for a retried one, but
// those already processed or in progress stay ahead of it.
func (db *DB[T]) RetryDead(ctx context.Context, consumer, scope string, ids ...string) (n int64, err error) {
	list, err := json.Marshal(append([]string{}, ids...)) // [] without ids, not null
	if err != nil {
		return 0, err
	}
	return db.retryDead(ctx, "scope = $2 AND event_id IN (SELECT json_array_elements_text($3::text::json))", consumer, scope, string(list))
}

// RetryAllDead is RetryDead for all dead messages of a consumer.
func (db *DB[T]) RetryAllDead(ctx context.Context, consumer string) (n int64, err error) {
	return db.retryDead(ctx, "true", consumer)
}

func (db *DB[T]) retryDead(ctx context.Context, condition, consumer string, args ...any) (n int64, err error) {
	err = db.retry(ctx, func(tx *transaction[T]) (err error) {
		n, err = tx.Exec(ctx, `UPDATE @inbox_messages SET state = 'pending', attempts = 0, failures = 0, unclear = 0, next_attempt_at = clock_timestamp()
			WHERE consumer = $1 AND state = 'dead' AND `+condition, append([]any{consumer}, args...)...)
		if err == nil && n > 0 {
			err = notify(ctx, tx, consumer)
		}
		return err
	})
	return n, err
}
