package outbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/anytx"
)

// A Store keeps payloads that are too large for Kafka. Its methods can be called at the same time.
type Store interface {
	// Put stores data durably. A key that is there already has the same data, and its time becomes
	// that of the newest Put.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns what Put stored. The error of a key that is not there is fs.ErrNotExist.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the keys that Put stored at or after a time and before another one, by the clock
	// of the store, and no other names (IsKey). An error ends the list.
	List(ctx context.Context, after, before time.Time) iter.Seq2[string, error]
	// Delete removes a key. A key that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// ErrCorrupt says that a Store does not have the bytes that the event was written with.
var ErrCorrupt = errors.New("the stored payload does not have the size or the digest that the event states")

// A claim is the payload of an event whose payload is in a Store.
type claim struct {
	Key    string `json:"key"` // the event's id, a dash and the digest, and for Emit the word emitted
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// claimField is the only field of the payload that is a claim. No other payload may have it.
const claimField = "walpost_claim"

// emitted ends the keys of the payloads of Emit. No table has their events.
const emitted = "-emitted"

// maxClaim is more than the length of a claim, also as a jsonb is printed.
const maxClaim = 512

// A key begins with the id of its event.
const (
	idLength  = len("00000000-0000-0000-0000-000000000000")
	keyLength = idLength + 1 + 2*sha256.Size
)

var claimKey = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9a-f]{64}(` + emitted + `)?$`)

// IsKey reports whether a name begins with a key of Put. The List of a Store passes over other names.
func IsKey(name string) bool {
	return len(name) >= keyLength && claimKey.MatchString(name[:keyLength])
}

// claimFields returns the fields of a JSON object that has the field of claims, and otherwise nil.
// A map has exactly the keys of the object, while a struct also takes other spellings of its fields.
func claimFields(value []byte) map[string]json.RawMessage {
	// The letters of the name can only be escaped as \u00 and two digits.
	if !bytes.Contains(value, []byte(claimField)) && !bytes.Contains(value, []byte(`\u00`)) {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil || fields[claimField] == nil {
		return nil
	}
	return fields
}

// readClaim returns the claim that a value is. Nothing else may be in the value.
func readClaim(value []byte) (*claim, bool) {
	if len(value) > maxClaim {
		return nil, false
	}
	fields := claimFields(value)
	if len(fields) != 1 {
		return nil, false
	}
	var c claim
	d := json.NewDecoder(bytes.NewReader(fields[claimField]))
	d.DisallowUnknownFields()
	return &c, d.Decode(&c) == nil && claimKey.MatchString(c.Key)
}

// store puts the payload of a row into the Store, and replaces it by a claim. The end of its key
// is empty or emitted.
func (o *Outbox) store(ctx context.Context, r row, end string) (err error) {
	payload := r[payloadColumn]
	c := claim{SHA256: digest(payload), Size: int64(len(payload))}
	c.Key = string(r[0]) + "-" + c.SHA256 + end
	if err := o.opts.Store.Put(ctx, c.Key, payload); err != nil {
		return fmt.Errorf("store %d bytes: %w", len(payload), err)
	}
	r[payloadColumn], err = json.Marshal(map[string]claim{claimField: c})
	return err
}

func (o *Outbox) tooLarge(payload []byte) bool {
	return o.opts.MaxPayload > 0 && len(payload) > o.opts.MaxPayload
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Fetch returns the payload of a record's value. A value that is no claim is the payload itself.
// For a claim, Fetch reads the payload from the store, and compares its size and its SHA-256: the
// error is ErrCorrupt if they differ, and fs.ErrNotExist if the payload is not there any more.
func Fetch(ctx context.Context, store Store, value []byte) ([]byte, error) {
	c, ok := readClaim(value)
	if !ok {
		return value, nil
	}
	r, err := store.Get(ctx, c.Key)
	if err != nil {
		return nil, fmt.Errorf("outbox: payload %s: %w", c.Key, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, c.Size+1))
	if err != nil {
		return nil, fmt.Errorf("outbox: payload %s: %w", c.Key, err)
	}
	if int64(len(data)) != c.Size || digest(data) != c.SHA256 {
		return nil, fmt.Errorf("outbox: payload %s: %w", c.Key, ErrCorrupt)
	}
	return data, nil
}

// Orphans returns the keys of payloads that were stored in a range of time, and whose events are not
// in the table: the transactions of their events were rolled back. Delete them with Store.Delete.
// Orphans leaves out the payloads of Emit, because no table has their events.
//
// The caller must choose the range so that no row written after the start of the range was removed
// from the table, and no transaction that began before its end is still open. Otherwise the payload
// of a good event looks like an orphan. tx is a transaction as for Write.
func (o *Outbox) Orphans(ctx context.Context, tx any, after, before time.Time) (orphans []string, err error) {
	from, err := anytx.Of(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if o.opts.Store == nil {
		return nil, errors.New("outbox: Options.Store is not set")
	}
	var keys []string
	for key, err := range o.opts.Store.List(ctx, after, before) {
		if err != nil {
			return nil, fmt.Errorf("outbox: list stored payloads: %w", err)
		}
		if IsKey(key) && !strings.HasSuffix(key, emitted) {
			keys = append(keys, key)
		}
	}
	for some := range slices.Chunk(keys, 1000) {
		var ids []row
		for _, key := range some {
			ids = append(ids, row{[]byte(key[:idLength])})
		}
		var found string
		err := from.QueryRow(ctx, "SELECT coalesce(json_agg(id), '[]')::text FROM "+o.table.Name.SQL()+" WHERE id = ANY($1::uuid[])",
			[]any{arrayText(ids, 0, false)}, &found)
		var present []string
		if err == nil {
			err = json.Unmarshal([]byte(found), &present)
		}
		if err != nil {
			return nil, fmt.Errorf("outbox: look for the events of stored payloads: %w", err)
		}
		for i, key := range some {
			if !slices.Contains(present, string(ids[i][0])) {
				orphans = append(orphans, key)
			}
		}
	}
	return orphans, nil
}
