package conf

import (
	"fmt"
	"time"
)

// DurationOr reads a duration, or a word that stands for a value.
func DurationOr(text []byte, word string, value time.Duration) (time.Duration, error) {
	if string(text) == word {
		return value, nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < 0 {
		return 0, fmt.Errorf("must be %s or a duration such as 10s (got %q)", word, text)
	}
	return d, nil
}
