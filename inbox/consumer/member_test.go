//go:build linux || darwin

package consumer_test

const memberVariable = "WALPOST_INBOX_MEMBER"

func runMember() int { return 0 }
