package size

import "testing"

func TestSizesReadWhatTheyPrint(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1024": 1024, "64MiB": 64 << 20, "10GiB": 10 << 30, "1 KiB": 1024, "2MB": 2e6, "-5": -5, "7B": 7} {
		var s, again Bytes
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %d, %v; want %d", text, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%s prints as %s, which reads as %d", text, s, again)
		}
	}
	for _, text := range []string{"", "MiB", "1.5GiB", "64 M", "99999999TiB", "9223372036854775808"} {
		var s Bytes
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q reads as %d", text, s)
		}
	}
}
