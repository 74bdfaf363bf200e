package testenv

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
)

// Output keeps what a program or a logger writes, and may be read meanwhile. The zero value is empty.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p. It never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Page is the address of walpost's HTTP server as its log names it, or "" before it listens.
func (o *Output) Page() string {
	for line := range strings.Lines(o.String()) {
		var l struct{ URL, Message string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "http listens" {
			return strings.TrimSuffix(l.URL, "/")
		}
	}
	return ""
}
