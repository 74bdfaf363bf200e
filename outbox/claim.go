package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/walpost/walpost/internal/lib/claim"
)

// A Store keeps payloads that are too large for Kafka. Its methods can be called concurrently.
type Store interface {
	// Put stores data durably. If the key exists, it has the same data, and Put must renew its
	// time.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns what Put stored. If the key doesn't exist, the error is fs.ErrNotExist.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
}

// ErrCorrupt means that the bytes in the Store aren't the ones that the event was written with.
var ErrCorrupt = errors.New("the stored payload does not have the size or the digest that the event states")

// maxClaim is more than the length of a claim, also as a jsonb is printed.
const maxClaim = 512

var claimKey = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-)?[0-9a-f]{64}$`)

// claimFields returns the fields of a JSON object that has the field of claims, and otherwise nil.
// A map has exactly the keys of the object, while a struct also takes other spellings of its fields.
func claimFields(value []byte) map[string]json.RawMessage {
	// The letters of the name can only be escaped as \u00 and two digits.
	if !bytes.Contains(value, []byte(claim.Field)) && !bytes.Contains(value, []byte(`\u00`)) {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil || fields[claim.Field] == nil {
		return nil
	}
	return fields
}

// readClaim returns the claim that a value is. Nothing else may be in the value.
func readClaim(value []byte) (*claim.Claim, bool) {
	if len(value) > maxClaim {
		return nil, false
	}
	fields := claimFields(value)
	if len(fields) != 1 {
		return nil, false
	}
	var c claim.Claim
	d := json.NewDecoder(bytes.NewReader(fields[claim.Field]))
	d.DisallowUnknownFields()
	return &c, d.Decode(&c) == nil && claimKey.MatchString(c.Key)
}

// store puts the payload of a row into the Store, and replaces it by a claim.
func (o *Outbox) store(ctx context.Context, r row) error {
	payload := r[payloadColumn]
	c := claim.Of(payload)
	c.Key = string(r[0]) + "-" + c.Key
	if err := o.opts.Store.Put(ctx, c.Key, payload); err != nil {
		return fmt.Errorf("store %d bytes: %w", len(payload), err)
	}
	r[payloadColumn] = c.Value()
	return nil
}

func (o *Outbox) tooLarge(payload []byte) bool {
	return o.opts.MaxPayload > 0 && len(payload) > o.opts.MaxPayload
}

// Fetch returns the payload for a record's value. If the value isn't a claim, it is the payload
// itself. For a claim, Fetch reads the payload from the store, and checks its size and its SHA-256.
// The error is ErrCorrupt if they differ, and fs.ErrNotExist if the store no longer has the
// payload.
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
	if int64(len(data)) != c.Size || claim.Digest(data) != c.SHA256 {
		return nil, fmt.Errorf("outbox: payload %s: %w", c.Key, ErrCorrupt)
	}
	return data, nil
}
