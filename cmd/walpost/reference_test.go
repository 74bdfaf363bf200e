package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/configkeys"
)

// A navigation is docs/nav.yaml: sections with their pages, each with the line that lists it.
type navigation []map[string][]map[string]string

func readNavigation(t *testing.T) (nav navigation) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, "../../docs/nav.yaml")), &nav); err != nil {
		t.Fatal(err)
	}
	return nav
}

// index is the navigation as Markdown.
func (nav navigation) index() string {
	var b strings.Builder
	for _, sections := range nav {
		for title, pages := range sections {
			fmt.Fprintf(&b, "## %s\n\n", title)
			for _, page := range pages {
				for name, line := range page {
					fmt.Fprintf(&b, "* [%s](%s)\n", line, name)
				}
			}
			b.WriteString("\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// commandLine is every command as Markdown: what its help says in one line, and its flags. The flags of the configuration are
// listed once.
func commandLine(root *cobra.Command) string {
	keys := map[string]string{}
	var all []string
	for _, s := range settings {
		keys[s.flag] = s.field
		all = append(all, fmt.Sprintf("`--%s` (`%s`)", s.flag, s.field))
	}
	var b strings.Builder
	b.WriteString("## Flags of the configuration\n\n" + configkeys.Wrap(strings.Join(all, ", ")+".", "") + "\n")
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() {
			return
		}
		if cmd.HasAvailableSubCommands() {
			for _, below := range cmd.Commands() {
				each(below)
			}
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"),
			configkeys.Wrap(strings.ToUpper(cmd.Short[:1])+cmd.Short[1:]+".", ""))
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if keys[f.Name] == "" && f.Name != "config" && f.Name != "help" {
				own.AddFlag(f)
			}
		})
		if own.HasFlags() {
			fmt.Fprintf(&b, "\n```text\n%s```\n", own.FlagUsagesWrapped(100))
		}
	}
	each(root)
	return b.String()
}
