// Package doctest reads the pages of the documentation: their pieces of code, their headings and their
// links. Only tests use it.
package doctest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// A Page is one file of Markdown.
type Page struct {
	Name    string // from the root of the repository: docs/write-events.md
	Blocks  []Block
	Spans   []string        // the code within the prose, such as walpost run
	Links   []string        // the targets, without those in code
	Anchors map[string]bool // of the headings, as GitHub writes them
	Wrong   []string        // code that has no language, and what the generator of the site reads otherwise than GitHub
}

// Within returns the text of a page with another text between its marks, and false if it has none.
func Within(page, text string) (string, bool) {
	const begin, end = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	return head + begin + "\n" + text + "\n" + end + tail, ok && ok2
}

// A Block is a piece of code between fences.
type Block struct {
	Language, Text string // without the indentation of the fence
	Line           int    // of the opening fence
}

// First returns the first line of the text, which names the block in a list.
func (b Block) First() string {
	line, _, _ := strings.Cut(strings.TrimSpace(b.Text), "\n")
	return line
}

// Pages reads each page below root, except what is generated, testdata, and folders that begin with a dot.
func Pages(root string) (pages []*Page, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"build", "dist", "node_modules", "testdata"}, name)) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return err
		}
		short, err := filepath.Rel(root, path)
		pages = append(pages, Parse(filepath.ToSlash(short), string(text)))
		return err
	})
	return pages, err
}

var (
	fence   = regexp.MustCompile("^( *)```(.*)$")
	heading = regexp.MustCompile(`^#{1,6} +(.*?)\s*$`)
	shallow = regexp.MustCompile(`^ {1,3}\S`)
	item    = regexp.MustCompile(`^([*-]|\d+\.) `)
	span    = regexp.MustCompile("`+([^`]+)`+")
	link    = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()]*\))?)\)|<(https?://[^>]+)>|^\[[^\]]+\]: (\S+)`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Parse reads one page.
func Parse(name, text string) *Page {
	p := &Page{Name: name, Anchors: map[string]bool{}}
	wrong := func(n int, format string, args ...any) {
		p.Wrong = append(p.Wrong, fmt.Sprintf("%s:%d: %s", name, n, fmt.Sprintf(format, args...)))
	}
	var prose strings.Builder
	var open *Block
	indent, list, nested, blank, table := "", false, false, true, false
	for n, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open != nil && m != nil && strings.TrimSpace(m[2]) == "":
			p.Blocks, open, nested = append(p.Blocks, *open), nil, list
		case open != nil:
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		case m != nil:
			open, indent = &Block{Language: m[2], Line: n + 1}, m[1]
			if open.Language == "" {
				wrong(n+1, "the code has no language")
			}
			if indent != "" && indent != "    " {
				wrong(n+1, "code in a list is indented by 4 spaces, so that GitHub and the site read the same")
			}
		default:
			wasList := list
			list = item.MatchString(line) || list && (line == "" || line[0] == ' ')
			switch little := shallow.MatchString(line); {
			case blank && !list && strings.HasPrefix(line, "    "):
				wrong(n+1, "code stands between fences, with its language")
			case list && little && (blank || item.MatchString(strings.TrimLeft(line, " "))):
				wrong(n+1, "a paragraph or a list within a list is indented by 4 spaces")
			case nested && item.MatchString(line):
				wrong(n+1, "an empty line goes behind a paragraph or code within a list")
			case !blank && (item.MatchString(line) && !wasList || strings.HasPrefix(line, "|") && !table):
				wrong(n+1, "an empty line goes before a list and before a table")
			}
			inner := strings.TrimPrefix(line, "    ")
			nested = line != "" && !item.MatchString(line) && (nested || blank && list && inner != line && !item.MatchString(inner))
			if h := heading.FindStringSubmatch(line); h != nil {
				p.anchor(h[1])
			}
			prose.WriteString(line + "\n")
		}
		blank, table = line == "" || heading.MatchString(line) && open == nil, strings.HasPrefix(line, "|")
	}
	if open != nil {
		wrong(open.Line, "the code does not end")
	}
	for _, m := range span.FindAllStringSubmatch(prose.String(), -1) {
		p.Spans = append(p.Spans, strings.Join(strings.Fields(m[1]), " "))
	}
	for line := range strings.Lines(span.ReplaceAllString(prose.String(), "")) {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			p.Links = append(p.Links, m[1]+m[2]+m[3])
		}
	}
	return p
}

// anchor adds the anchor of a heading.
func (p *Page) anchor(title string) {
	title = linked.ReplaceAllString(title, "$1")
	slug := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, title)
	unique := slug
	for n := 1; p.Anchors[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", slug, n)
	}
	p.Anchors[unique] = true
}
