//go:build !race

package relay

// usualSeeds is as in race_test.go. The rarest planted fault was a write of a former session that is
// taken for one of the present session. It shows in one of 40 to 150 stories.
const usualSeeds = 150
