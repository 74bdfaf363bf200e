//go:build race

package relay

// usualSeeds is how many seeds of each kind of simulation run unless -seeds says otherwise. A data race
// doesn't need a rare story, and the race detector makes a story four times as long. .ci/run runs 150
// without the detector.
const usualSeeds = 12
