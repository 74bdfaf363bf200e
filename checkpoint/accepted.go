package checkpoint

import (
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// An Accepted is a gap that a person has accepted. Rows of the gap may not be in Kafka, so the
// cleanup removes nothing until a person closes the gap. It stays in the record over restarts and
// takeovers, whoever reads the table.
type Accepted struct {
	Token string    `json:"token"`
	Gap   string    `json:"gap"`  // what may be missing, for people
	Time  time.Time `json:"time"` // of the first start behind it
}

// closeKey is followed by the token of an accepted gap that a person has closed. The key has no
// epoch, and newest leaves it alone.
const closeKey = "/closed/"

// CloseKey is the key of the request to close an accepted gap of the relay name.
func CloseKey(name, token string) string { return name + closeKey + token }

// closed picks from the records of a store the tokens of the gaps that a person has closed.
func closed(name string, records map[string][]byte) (tokens []string) {
	for key := range records {
		if token, ok := strings.CutPrefix(key, name+closeKey); ok {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// StillOpen returns the accepted gaps that are not among the closed ones.
func StillOpen(accepted []Accepted, closed []string) []Accepted {
	return slices.DeleteFunc(slices.Clone(accepted), func(a Accepted) bool { return slices.Contains(closed, a.Token) })
}

// Accept notes in r, the first record behind the gap of ref, that a person has accepted it. Nothing is
// noted if workers claim the rows, because the table says what is not delivered, if there is no table, or if no event is missing.
func (r *Record) Accept(ref *Refusal) {
	if ref.Record != nil {
		r.Accepted = slices.Clone(ref.Record.Accepted)
	}
	if !ref.Claims() && !ref.Found.Tableless && !ref.Complete() {
		r.Accepted = append(r.Accepted, Accepted{Token: ref.Token, Gap: strings.ToValidUTF8(ref.Error(), "?"), Time: r.Time})
	}
}

func (a *Accepted) check() error {
	if a.Token == "" || !utf8.ValidString(a.Token+a.Gap) {
		return errors.New("accepted: a gap must have a token, and be UTF-8")
	}
	return nil
}
