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

// commandLine is every command as Markdown: what its help says in one line, and its flags. The flags of the configuration and --json
// are listed once, and so are those that most commands of a group have.
func commandLine(root *cobra.Command) string {
	listed := map[string]bool{"config": true, "help": true, "json": true}
	var sections, all []string
	flags := map[string][]string{}
	for _, s := range settings {
		listed[s.flag] = true
		name, _, _ := strings.Cut(s.field, ".")
		if flags[name] == nil {
			sections = append(sections, name)
		}
		flags[name] = append(flags[name], "`--"+s.flag+"`")
	}
	var b strings.Builder
	b.WriteString("## Configuration flags\n\n")
	for _, name := range sections {
		line := strings.Join(flags[name], ", ")
		if len(flags[name]) > 1 {
			line += " (`" + name + "`)"
		}
		all = append(all, line)
	}
	b.WriteString(configkeys.Wrap(strings.Join(all, "; ")+".", "") + "\n")
	usages := func(cmd *cobra.Command, yes func(f *pflag.Flag) bool) string {
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !listed[f.Name] && yes(f) {
				own.AddFlag(f)
			}
		})
		if !own.HasFlags() {
			return ""
		}
		return fmt.Sprintf("\n```text\n%s```\n", own.FlagUsagesWrapped(100))
	}
	section := func(cmd *cobra.Command, flags string) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n%s", strings.TrimPrefix(strings.TrimSuffix(cmd.UseLine(), " [flags]"), "walpost "),
			configkeys.Wrap(strings.ToUpper(cmd.Short[:1])+cmd.Short[1:]+".", ""), flags)
	}
	for _, cmd := range root.Commands() {
		if !cmd.IsAvailableCommand() {
			continue
		}
		below := cmd.Commands()
		shared := map[string]int{}
		for _, c := range below {
			c.LocalFlags().VisitAll(func(f *pflag.Flag) { shared[f.Name+f.Usage]++ })
		}
		common := func(f *pflag.Flag) bool { return shared[f.Name+f.Usage] > 2 }
		if len(below) == 0 {
			section(cmd, usages(cmd, func(*pflag.Flag) bool { return true }))
			continue
		}
		if flags := usages(below[0], common); flags != "" {
			section(cmd, "\nFlags shared by most commands below:\n"+flags)
		}
		for _, c := range below {
			section(c, usages(c, func(f *pflag.Flag) bool { return !common(f) }))
		}
	}
	return b.String()
}
