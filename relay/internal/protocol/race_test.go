//go:build race

package protocol

// raceDetector says that only the small explorations run: nothing here runs in parallel, and .ci/beside
// runs all of them without the detector.
const raceDetector = true
