package yamlfile

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A location is where a value was written: a line of the file, a flag, an environment variable.
type location struct {
	label     string // walpost.yaml:3:7, --slot, WALPOST_SLOT; "" for nowhere
	line, col int    // orders the problems of a file; 0 for the others
	variables string // ", ${A}, ${B}": those in the value
}

func (d *Reader) locate(n *yaml.Node) location {
	return location{label: fmt.Sprintf("%s:%d:%d", d.file, n.Line, n.Column), line: n.Line, col: n.Column}
}

// Origin is where the value of a field comes from: a line of the file, with the variables in the value, a flag, a variable, or
// "default".
func (d *Reader) Origin(path string) string {
	at, written := d.locations[path]
	if !written {
		return "default"
	}
	text := at.label + at.variables
	for i := 0; ; i++ { // the items of a list have their own variables
		item, ok := d.locations[fmt.Sprintf("%s[%d]", path, i)]
		if !ok {
			return text
		}
		text += item.variables
	}
}

// Forget drops what the file says about a field, wrong or right: from replaces the field.
func (d *Reader) Forget(field, from string) {
	covers := func(f string) bool { return f == field || strings.HasPrefix(f, field+"[") }
	d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool { return covers(p.Field) })
	for f := range d.locations {
		if covers(f) {
			delete(d.locations, f)
		}
	}
	d.locations[field] = location{label: from}
}

// find is where a field was written, or else what is around it, or else the file.
func (d *Reader) find(field string) location {
	for path := field; path != ""; {
		for _, name := range []string{path, path + "_file", path + "s"} {
			if at, ok := d.locations[name]; ok {
				return at
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return location{label: d.file}
}
