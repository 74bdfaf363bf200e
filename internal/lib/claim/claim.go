// Package claim has the form of a claim: the value of a record whose payload is in a store.
package claim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Field is the only field of a value that is a claim. No other value may have it.
const Field = "walpost_claim"

// A Claim says where a payload is, and what it is.
type Claim struct {
	Key    string `json:"key"` // the digest; before it the event's id and a dash, if outbox.Write stored the payload
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Of is the claim of a payload that is stored under its digest. The same payload always has the same claim.
func Of(payload []byte) Claim {
	sum := Digest(payload)
	return Claim{Key: sum, SHA256: sum, Size: int64(len(payload))}
}

// Value is the value of a record with the claim.
func (c Claim) Value() []byte {
	value, err := json.Marshal(map[string]Claim{Field: c})
	if err != nil {
		panic(err) // two texts and a number
	}
	return value
}

// Digest is the SHA-256 of a payload as hexadecimal digits.
func Digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}
