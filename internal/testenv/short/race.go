//go:build race

package short

const raced = true
