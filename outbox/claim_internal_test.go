package outbox

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/lib/claim"
)

// A value from Kafka cannot name another file, and only what Write made is a claim.
func TestOnlyAClaimIsAClaim(t *testing.T) {
	store := FileStore(t.TempDir())
	key := NewID() + "-" + claim.Digest(nil)
	byDigest := `{"walpost_claim": {"key": "` + claim.Digest(nil) + `", "sha256": "x", "size": 1}}`
	good := `{"walpost_claim": {"key": "` + key + `", "sha256": "x", "size": 1}}`
	for value, want := range map[string]bool{
		good: true, byDigest: true, " " + good + "\n": true, good + good: false, `[` + good + `]`: false, good[:len(good)-1] + `, "a": 1}`: false,
		strings.Replace(good, key, "../"+key, 1): false, strings.Replace(good, key, "/etc/passwd", 1): false,
		`{"walpost_claim": null}`: false, `{}`: false, "": false, strings.Repeat(" ", maxClaim) + good: false,
	} {
		if _, is := readClaim([]byte(value)); is != want {
			t.Errorf("%s: %v", value, is)
		}
		if _, err := standard.payload([]byte(value)); want && (err == nil || !strings.Contains(err.Error(), "walpost_claim")) {
			t.Errorf("Write accepts %s: %v", value, err)
		}
	}
	inner := good[len(`{"walpost_claim": `) : len(good)-1]
	for _, refused := range []string{
		`{"walpost_claim": 1, "walpost_claim": ` + inner + `}`, `{"\u0077alpost_claim": ` + inner + `}`, `{"a": 1, "walpost\u005Fclaim": 1}`,
		"\n" + strings.Repeat(" ", maxClaim) + good, `{"walpost_claim": null}`, `{"walpost_claim": "` + strings.Repeat("x", maxClaim) + `"}`,
	} {
		if _, err := standard.payload([]byte(refused)); err == nil || !strings.Contains(err.Error(), "walpost_claim") {
			t.Errorf("Write accepts %s: %v", refused, err)
		}
	}
	for _, other := range []string{
		`{"WALPOST_CLAIM": ` + inner + `}`, `{"walpoſt_claim": ` + inner + `}`, `{"a": ` + good + `}`, `[` + good + `]`, `"walpost_claim"`, `{"a": "walpost_claim"}`,
	} {
		if _, err := standard.payload([]byte(other)); err != nil {
			t.Errorf("Write refuses %s: %v", other, err)
		}
		if got, err := Fetch(t.Context(), store, []byte(other)); err != nil || string(got) != other {
			t.Errorf("Fetch of %s: %s, %v", other, got, err)
		}
	}
	for _, outside := range []string{"../x", "/etc/passwd", "."} {
		if err := store.Put(t.Context(), outside, []byte("x")); err == nil {
			t.Errorf("wrote %s", outside)
		}
	}
	if _, err := store.Get(t.Context(), "../../etc/passwd"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read outside of the folder: %v", err)
	}
}
