// Package man writes the manual pages, for packages of operating systems.
package man

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Command is walpost man DIR. It is hidden, because only who makes a package needs it. The pages have the date in
// SOURCE_DATE_EPOCH, or no page is the same twice.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "writes the manual pages into a directory",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are for everybody
				return err
			}
			root := cmd.Root()
			prepare(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "walpost"}, args[0])
		},
	}
}

// prepare makes Markdown of the texts of a command and those below it. They are plain text, in which <slot> is no tag of HTML.
// The process ends after the pages, so nobody else sees the change.
func prepare(cmd *cobra.Command) {
	escape := strings.NewReplacer("<", `\<`, "*", `\*`).Replace
	cmd.Short, cmd.Long, cmd.DisableAutoGenTag = escape(cmd.Short), escape(cmd.Long), true
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = escape(f.Usage) })
	for _, c := range cmd.Commands() {
		prepare(c)
	}
}
