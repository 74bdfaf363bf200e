package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command and every flag that its help lists is in the manual pages, and the shells' completion offers it.
func TestTheManualAndTheCompletionHaveEveryCommandAndFlag(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	output := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, &stderr)
		}
		return stdout.String()
	}
	output("man", dir)
	commands, flags := 0, 0
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(page), `\-`, "-")
		words := strings.Fields(cmd.CommandPath())[1:]
		offered := func(prefix string) string {
			return "\n" + output(append(append([]string{"__complete"}, words...), prefix)...)
		}
		offeredCommands, offeredFlags := offered(""), offered("--")
		for _, below := range cmd.Commands() {
			if !below.IsAvailableCommand() {
				continue
			}
			commands++
			if !strings.Contains(text, cmd.Name()+"-"+below.Name()+"(1)") {
				t.Errorf("%s is not in the page of %s", below.Name(), cmd.CommandPath())
			}
			if !strings.Contains(offeredCommands, "\n"+below.Name()+"\t") {
				t.Errorf("%s %s is not offered: %s", cmd.CommandPath(), below.Name(), offeredCommands)
			}
			each(below)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			flags++
			if !strings.Contains(text, "--"+f.Name) {
				t.Errorf("--%s is not in the page of %s", f.Name, cmd.CommandPath())
			}
			if !strings.Contains(offeredFlags, "\n--"+f.Name+"\t") && !strings.Contains(offeredFlags, "\n--"+f.Name+"=\t") {
				t.Errorf("%s --%s is not offered: %s", cmd.CommandPath(), f.Name, offeredFlags)
			}
		})
	}
	root := rootCommand()
	root.InitDefaultCompletionCmd()
	each(root)
	if commands < 20 || flags < 100 {
		t.Errorf("only %d commands and %d flags", commands, flags)
	}
	page, err := os.ReadFile(filepath.Join(dir, "walpost-run.1"))
	if err != nil || !strings.Contains(string(page), "<database>.<slot>") {
		t.Errorf("the page of run lacks the default of --name, %v", err)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if script := output("completion", shell); !strings.Contains(script, "__complete") {
			t.Errorf("%s: %.200s", shell, script)
		}
	}
}
