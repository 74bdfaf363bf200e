package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
)

// Published is what was published, as it was at the newest look that found it unchanged. Without
// it, a publication that is changed and put back leaves no trace, and the slot silently skips the
// rows of the time between.
type Published struct {
	cdc.Published
	LSN  cdc.LSN   `json:"lsn"`  // the server's position before that look; nothing was changed up to there
	Time time.Time `json:"time"` // the server's clock before that look
	// Unpublished is the reason, found by a later look, why rows are not in the stream. It is "" if
	// there is none. Some reasons, such as another name of the table, leave no trace in the catalog
	// once they are put right.
	Unpublished string `json:"unpublished,omitempty"`
}

// Seen is what a record remembers of the publication of found, nil if there is none.
func Seen(found cdc.Identity) *Published {
	if found.Published.OID == 0 {
		return nil
	}
	return &Published{Published: found.Published, LSN: found.Server, Time: found.Time.UTC().Round(0)}
}

// Broken returns p with what a later look found to keep rows out of the stream.
func (p *Published) Broken(why string) *Published {
	broken := *p
	broken.Unpublished = strings.ToValidUTF8(why, "?")
	return &broken
}

// Looked is the position of the newest look at what is published, 0 if none is remembered.
func (r *Record) Looked() cdc.LSN {
	if r.Published == nil {
		return 0
	}
	return r.Published.LSN
}

func (p *Published) check() error {
	switch {
	case p.Publication == "":
		return errors.New("published.publication is missing")
	case !utf8.ValidString(p.Publication):
		return fmt.Errorf("published.publication is not UTF-8: %q", p.Publication)
	case p.OID == 0:
		return errors.New("published.oid must not be 0")
	case p.LSN == 0:
		return errors.New("published.lsn must not be 0/0")
	case p.Time.UTC().Year() < 0 || p.Time.UTC().Year() > 9999:
		return fmt.Errorf("published.time must be in the years 0 to 9999, in UTC (got %d)", p.Time.UTC().Year())
	}
	for i := range p.Tables {
		if name := p.Tables[i].Name; name == "" || !utf8.ValidString(name) {
			return fmt.Errorf("published.tables: %q is not a name", name)
		}
	}
	return nil
}

// A Change is how the publication, or the place of a table in it, differs from what the record
// remembers.
type Change struct {
	Publication string
	Table       string // schema.table; "" if the publication itself was changed
	How         ChangeKind
	// Before and After are the rows of the catalog before and now. After is empty if the row is gone.
	Before, After []cdc.PublishedEntry
	// Why is what kept rows out of the stream, for Mended.
	Why string
}

// A ChangeKind is how something was changed.
type ChangeKind string

// The kinds of a Change.
const (
	Altered  ChangeKind = "altered"  // the same row of the catalog with another xmin; any ALTER PUBLICATION does that
	Mended   ChangeKind = "mended"   // what kept rows out of the stream was put right
	Replaced ChangeKind = "replaced" // the publication or the table was dropped and created again
	Readded  ChangeKind = "readded"  // the table was removed from the publication and added again
	Gone     ChangeKind = "gone"     // there is no such publication
)

// findTable is the index of the table was in tables, -1 if it is not there. Its name may have changed.
func findTable(tables []cdc.PublishedTable, was *cdc.PublishedTable) int {
	i := slices.IndexFunc(tables, func(t cdc.PublishedTable) bool { return t.Name == was.Name })
	if i < 0 {
		i = slices.IndexFunc(tables, func(t cdc.PublishedTable) bool { return t.OID == was.OID })
	}
	return i
}

// shares reports whether p and found have a table in common.
func (p *Published) shares(found *cdc.Published) bool {
	return slices.ContainsFunc(p.Tables, func(was cdc.PublishedTable) bool { return findTable(found.Tables, &was) >= 0 })
}

// changes compares what p remembers with what was found. A table that only one of them has is no
// change, because the configuration named the table in one case only. The same holds for another
// publication.
func (p *Published) changes(found *cdc.Published) []Change {
	if p.Publication != found.Publication {
		return nil
	}
	was, is := cdc.PublishedEntry{OID: p.OID, XMin: p.XMin}, cdc.PublishedEntry{OID: found.OID, XMin: found.XMin}
	whole := Change{Publication: p.Publication, Before: []cdc.PublishedEntry{was}, After: []cdc.PublishedEntry{is}}
	switch {
	case found.OID == 0:
		whole.How, whole.After = Gone, nil
		return []Change{whole}
	case found.OID != p.OID:
		whole.How = Replaced
		return []Change{whole}
	}
	var all []Change
	if p.Unpublished != "" {
		all = append(all, Change{Publication: p.Publication, How: Mended, Why: p.Unpublished})
	}
	if found.XMin != p.XMin {
		whole.How = Altered
		all = append(all, whole)
	}
	for i := range p.Tables {
		was := &p.Tables[i]
		at := findTable(found.Tables, was)
		if at < 0 {
			continue
		}
		is := &found.Tables[at]
		if how := tableChange(was, is); how != "" {
			all = append(all, Change{Publication: p.Publication, Table: is.Name, How: how, Before: was.Entries, After: is.Entries})
		}
	}
	return all
}

// names lists the names of tables.
func names(tables []cdc.PublishedTable) string {
	all := make([]string, len(tables))
	for i := range tables {
		all[i] = tables[i].Name
	}
	return strings.Join(all, ", ")
}

// tableChange says how the place of a table in the publication changed, "" for not at all. A table
// is published as long as one of its entries exists, so one entry that stayed is enough. It isn't
// if its row filter had no effect until an entry by schema was removed.
func tableChange(was, is *cdc.PublishedTable) ChangeKind {
	if is.OID != was.OID {
		return Replaced
	}
	row := func(e, now cdc.PublishedEntry) bool { return now.By == e.By && now.OID == e.OID }
	unfiltered := slices.ContainsFunc(was.Entries, func(e cdc.PublishedEntry) bool {
		return e.By != cdc.PublishedByTable && !slices.ContainsFunc(is.Entries, func(now cdc.PublishedEntry) bool { return row(e, now) })
	})
	how := Readded
	for _, e := range was.Entries {
		for _, now := range is.Entries {
			switch {
			case row(e, now) && now.XMin == e.XMin && !(now.Filtered && unfiltered):
				return ""
			case row(e, now):
				how = Altered
			}
		}
	}
	return how
}

func (c *Change) String() string {
	publication := fmt.Sprintf("publication %q", c.Publication)
	switch {
	case c.How == Mended:
		return "a check found that " + c.Why
	case c.Table == "" && c.How == Altered:
		return publication + " was altered"
	case c.Table == "" && c.How == Replaced:
		return publication + " was dropped and created again"
	case c.Table == "":
		return publication + " does not exist"
	case c.How == Altered:
		return fmt.Sprintf("the entry of table %s in %s was altered", c.Table, publication)
	case c.How == Replaced:
		return fmt.Sprintf("table %s in %s was dropped and created again", c.Table, publication)
	}
	return fmt.Sprintf("table %s was removed from %s and added again", c.Table, publication)
}

// digest writes what distinguishes this change from any other.
func (c *Change) digest(w io.Writer) {
	fmt.Fprintf(w, "%q %q %s %v %v\n", c.Publication, c.Table, c.How, rows(c.Before), rows(c.After))
	if c.Why != "" {
		fmt.Fprintf(w, "%q\n", c.Why)
	}
}

// rows are the stored fields of entries: a record that was read back must give the same digest.
func rows(entries []cdc.PublishedEntry) string {
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprintf("{%s %d %d}", e.By, e.OID, e.XMin))
	}
	return "[" + strings.Join(all, " ") + "]"
}
