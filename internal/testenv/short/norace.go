//go:build !race

package short

const raced = false
