//go:build race

package relay

// usualSeeds is how many seeds of each kind of simulation run unless -seeds says otherwise. A data race
// does not need a rare story, and the race detector makes a story four times as long. .ci/run runs all
// stories without the detector.
const usualSeeds = 40
