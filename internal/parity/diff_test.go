package parity

import (
	"slices"
	"strings"
)

// Diff returns what differs between two outcomes as lines that begin with "- " (Debezium alone), "+ " (walpost alone) or two spaces
// (both, beside a difference; "…" stands for more of them); "" where nothing differs.
func Diff(debezium, walpost string) string {
	if debezium == walpost {
		return ""
	}
	a, b := lines(debezium), lines(walpost)
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var all []string
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			all = append(all, "- "+a[i])
			i++
		default:
			all = append(all, "+ "+b[j])
			j++
		}
	}
	var out strings.Builder
	dots := false
	for n, line := range all {
		beside := slices.ContainsFunc(all[max(0, n-beside):min(len(all), n+beside+1)], func(l string) bool { return l[0] != ' ' })
		switch {
		case beside:
			out.WriteString(strings.TrimRight(line, " ") + "\n")
		case !dots:
			out.WriteString("  …\n")
		}
		dots = !beside
	}
	return out.String()
}

// beside is how many lines that do not differ are shown before and behind those that do.
const beside = 3

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}
