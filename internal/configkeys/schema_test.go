package configkeys

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
)

func TestAKeyMayHaveOneValueOnly(t *testing.T) {
	k := &Key{Kind: Int, About: About{Min: "5", Max: "5"}}
	if got, err := k.bounds(); err != nil || got != (span{5, 5}) {
		t.Errorf("bounds %v, %v", got, err)
	}
}

func TestBetweenIsEveryNumberOfTheRange(t *testing.T) {
	for range 300 {
		least := rand.Uint64N(1200)
		most := least + rand.Uint64N(1200)
		pattern := regexp.MustCompile("^(?:" + between(least, most) + ")$")
		for n := range uint64(3000) {
			if got := pattern.MatchString(fmt.Sprint(n)); got != (n >= least && n <= most) {
				t.Fatalf("%d is in %d to %d: %v by %s", n, least, most, got, pattern)
			}
		}
	}
	for _, c := range []struct{ least, most uint64 }{{0, math.MaxInt64}, {1, math.MaxInt64}, {1 << 40, math.MaxInt64}, {64 << 20, 64 << 30}} {
		pattern := regexp.MustCompile("^(?:" + between(c.least, c.most) + ")$")
		for _, n := range []uint64{c.least - 1, c.least, c.least + 1, c.most - 1, c.most, c.most + 1} {
			if got := pattern.MatchString(fmt.Sprint(n)); got != (n >= c.least && n <= c.most) {
				t.Errorf("%d is in %d to %d: %v", n, c.least, c.most, got)
			}
		}
	}
}
