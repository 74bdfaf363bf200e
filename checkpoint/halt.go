package checkpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A Halt is an event that halted a relay. The relay stores it under Key, so that walpost skip knows
// the token. walpost skip stores it under SkipKey. Neither key has an epoch, and newest leaves both
// alone.
type Halt struct {
	Version  int          `json:"version"`
	Token    string       `json:"token"`
	Name     string       `json:"name"`
	SystemID string       `json:"system_identifier"`
	Timeline uint32       `json:"timeline"` // the one that the event was written on
	Database string       `json:"database"`
	Slot     string       `json:"slot"`
	Commit   cdc.Position `json:"commit_lsn"` // of the commit record of the event's transaction
	Row      int          `json:"row"`        // number of the event in the transaction, from 1
	Table    string       `json:"table"`      // "" for a message
	EventID  string       `json:"event_id"`   // "" if the event has none
	Topic    string       `json:"topic,omitempty"`
	Reason   cdc.Reason   `json:"reason,omitempty"`
	Error    string       `json:"error,omitempty"`
	Keyless  bool         `json:"keyless,omitempty"` // no key is known by which it could be parked
	Time     time.Time    `json:"time"`              // of the writing, for people

	// Discard and Why are of a request. With Discard the event is given up, because of Why. Without
	// it the event goes to the dead letter topic.
	Discard bool   `json:"discard,omitempty"`
	Why     string `json:"why,omitempty"`
}

// NewToken returns the token of h's event. It holds the place of the event, which people can read,
// and a digest of all that identifies the event. No other event has the token, even if event ids
// are missing or repeated. An event at the same place on another timeline has another token.
func (h *Halt) NewToken() string {
	d := sha256.New()
	fmt.Fprintf(d, "%q %q %d %q %q\n%s %d %q %q\n", h.Name, h.SystemID, h.Timeline, h.Database, h.Slot, h.Commit, h.Row, h.Table, h.EventID)
	return fmt.Sprintf("%s-%d-%x", strings.ReplaceAll(h.Commit.String(), "/", "-"), h.Row, d.Sum(nil)[:4])
}

// RowToken is the token of a row that was read from the table. Such a row has no place in the
// stream, and event ids can be missing or repeated, so the token is a digest of what the row holds.
func RowToken(name, database, table, id string, content ...[]byte) string {
	d := sha256.New()
	fmt.Fprintf(d, "%q %q %q %q\n%q\n", name, database, table, id, content)
	return fmt.Sprintf("row-%x", d.Sum(nil)[:8])
}

// Elsewhere reports whether the relay of rec, its newest record, reads another source than the one that gave the event:
// another server or database, an older timeline, or another slot, or only one of the two polls.
func (h *Halt) Elsewhere(rec *Record) bool {
	return h.SystemID != rec.SystemID || h.Timeline > rec.Timeline || h.Database != rec.Database || h.Slot != rec.Slot
}

// Event names the event for people.
func (h *Halt) Event() string { return Event(h.EventID, h.Table, h.Commit, h.Row) }

// Event names an event for people. commit is 0 for a row of the table.
func Event(id, table string, commit cdc.Position, row int) string {
	text := fmt.Sprintf("event %s of %s", cmp.Or(id, "without id"), cmp.Or(table, "unknown table"))
	if commit > 0 {
		text += fmt.Sprintf(" in transaction %s (row %d)", commit, row)
	}
	return text
}

// haltVersion is the version of the encoding of a Halt. It is not Version, so that a change of the
// Record makes no Halt unreadable.
const haltVersion = 1

const (
	haltKey = "/halt/"
	skipKey = "/skip/"
)

// Key is the key that the relay stores a halt under.
func (h *Halt) Key() string { return h.Name + haltKey + h.Token }

// SkipKey is the key of the request to pass over the event.
func (h *Halt) SkipKey() string { return h.Name + skipKey + h.Token }

// Encode returns the value to store.
func (h *Halt) Encode() []byte {
	w := *h
	w.Version, w.Time = haltVersion, w.Time.UTC().Round(0)
	value, err := json.Marshal(&w)
	if err != nil {
		panic("checkpoint: encode " + h.Key() + ": " + err.Error()) // a time after the year 9999
	}
	return value
}

// halts picks from the records of a store, for the relay with this name, the events that halted it
// and the requests to pass over events. Both are by token. A value that cannot be read is an error,
// as it is in newest.
func halts(name string, records map[string][]byte) (halts, skips map[string]*Halt, err error) {
	halts, skips = map[string]*Halt{}, map[string]*Halt{}
	for key, value := range records {
		into := halts
		token, ok := strings.CutPrefix(key, name+haltKey)
		if !ok {
			into = skips
			if token, ok = strings.CutPrefix(key, name+skipKey); !ok {
				continue
			}
		}
		h := new(Halt)
		if err = json.Unmarshal(value, h); err == nil && (h.Version != haltVersion || h.Token != token || h.Name != name || h.Commit == 0 || h.Row < 1) {
			err = fmt.Errorf("version %d and token %q do not match the record", h.Version, h.Token)
		}
		if err != nil {
			return nil, nil, fault.Person(fmt.Errorf("checkpoint record %q: %w", key, err),
				"Nothing was changed. If a newer walpost wrote the record, run that version. If the record is damaged, remove it: write a null value under its key.")
		}
		into[token] = h
	}
	return halts, skips, nil
}

// ByPlace lists halts in the order of the stream.
func ByPlace(halts map[string]*Halt) []*Halt {
	return slices.SortedFunc(maps.Values(halts), func(a, b *Halt) int {
		return cmp.Or(cmp.Compare(a.Commit, b.Commit), a.Row-b.Row)
	})
}
