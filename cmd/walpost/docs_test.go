package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	ofWalpost  = regexp.MustCompile(`(?m)^\s*walpost (.*)$`)
)

// Each command that the README, the guides and the runbooks give exists, with its flags and its number of arguments.
func TestTheCommandsInTheDocumentsExist(t *testing.T) {
	pages := []string{"../../README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/runbooks/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	n := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
			for _, m := range ofWalpost.FindAllStringSubmatch(strings.ReplaceAll(block[1], "\\\n", " "), -1) {
				n++
				line, _, _ := strings.Cut(m[1], " #")
				line, _, _ = strings.Cut(line, " > ")
				line, _, _ = strings.Cut(line, " | ")
				cmd, args, err := rootCommand().Find(strings.Fields(line))
				if err == nil {
					err = cmd.ParseFlags(args)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil || !cmd.Runnable() {
					t.Errorf("%s: walpost %s: %v", filepath.Base(page), line, err)
				}
			}
		}
	}
	if n < 25 {
		t.Errorf("only %d commands", n)
	}
}
