// Package topicname is Kafka's rule for the names of topics
// (org.apache.kafka.common.internals.Topic.validate).
package topicname

import "fmt"

// MaxLength is the length of the longest name.
const MaxLength = 249

// DefaultPrefix stands before the aggregate type in the name of an event's topic, unless the router
// has other options.
const DefaultPrefix = "outbox.event."

// Check returns why Kafka does not allow a name, or nil.
func Check(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > MaxLength {
		return fmt.Errorf("invalid topic name %.260q: it must have 1 to %d characters, and must not be . or .. alone", name, MaxLength)
	}
	for i := range len(name) {
		if !Allowed(name[i]) {
			return fmt.Errorf("invalid topic name %q: only letters, digits, '.', '_' and '-' are allowed", name)
		}
	}
	return nil
}

// Allowed reports whether a name may contain the character.
func Allowed(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
