// Package short is the fast tier of the tests, go test -short ./...: no server, no network, no program that a test builds.
// Nothing else may ask for testing.Short (the linter forbidigo holds that), so what the fast tier leaves out is seen here.
package short

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Skip skips a test in the fast tier. testenv calls it for every server, so a test calls it only for what it starts by itself.
func Skip(t testing.TB, needs string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs " + needs + ": not with -short")
	}
}

// SkipSlow skips a test that waits for seconds of real time in the fast tier.
func SkipSlow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for seconds: not with -short")
	}
}

// SkipAll ends a test binary in the fast tier, for a TestMain that builds what all its tests need.
func SkipAll(needs string) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("needs " + needs + ": not with -short")
		os.Exit(0)
	}
}

// Pick is how much a long test of pure code does (seeds, rounds, steps): all of it, or less in the fast tier.
func Pick[T any](all, less T) T {
	if testing.Short() {
		return less
	}
	return all
}

// Raced is how much a random test of pure code does: all of it, or less with the race detector, which makes it four times as long. A data race
// doesn't need a rare story. .ci/beside runs all of it without the detector.
func Raced[T any](all, less T) T {
	if raced {
		return less
	}
	return all
}
