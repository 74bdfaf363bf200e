// Package size reads and prints numbers of bytes.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes; as text 1024, 64MiB, 10GiB, or with KB, MB, GB in powers of ten.
type Bytes int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"kB", 1e3},
	{"B", 1},
}

// UnmarshalText reads what String prints, and any whole number of a unit.
func (s *Bytes) UnmarshalText(text []byte) error {
	number, unit := string(text), int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return fmt.Errorf("must be a size such as 1024, 64MiB or 10GiB (got %q)", text)
	}
	if n > (1<<63-1)/unit || n < -(1<<63-1)/unit {
		return fmt.Errorf("must be below 8EiB (got %q)", text)
	}
	*s = Bytes(n * unit)
	return nil
}

// String prints the largest binary unit that divides the size.
func (s Bytes) String() string {
	for _, u := range sizeUnits[:4] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Roughly is the size for people: 1.5 GiB.
func (s Bytes) Roughly() string {
	v, unit := float64(s), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if math.Abs(v) < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", int64(s))
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
