package main

import (
	"os"
	"testing"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

func TestMain(m *testing.M) {
	keeper.Init()
	os.Exit(testenv.Main(m))
}

// The short mix: what most often went wrong in relays, but for faults of single brokers.
func TestTheShortMixKeepsItsPromises(t *testing.T) {
	short.Skip(t, "servers and a build of walpost")
	s := start(t, 1)
	chosen, _ := find("", true, true)
	for i := range chosen {
		sc, seed := &chosen[i], uint64(i+1)
		t.Run(sc.name, func(t *testing.T) {
			out := once(t, s, sc, options{window: 500, times: 1}, seed)
			t.Log(out.String())
			if len(out.verdict.Broken) > 0 {
				t.Errorf("go run ./scripts/faults -scenario %s -seed %d: %s", sc.name, seed, &out.verdict)
			}
		})
	}
}
