package replication

import (
	"strings"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
)

// Filter is the row filter that the publication must have for a table, "" for none. f may be nil, or
// lack the table: then the table is one that a setup makes.
func (c *Config) Filter(t pg.Table, f *pg.Facts) (string, error) {
	if c.Shard.Of == 0 {
		return "", nil
	}
	rel := outboxRelation(t, c)
	if f != nil {
		for i := range f.Tables {
			if f.Tables[i].Table == t && f.Tables[i].Exists() {
				rel = f.Tables[i].Relation
			}
		}
	}
	return pg.ShardFilter(c.Shard, rel, c.Key(rel))
}

// published is a table as a publication names it. A filter that cannot be made is a precondition that
// is not met, so nobody runs the SQL without it.
func (c *Config) published(t pg.Table, f *pg.Facts) string {
	if filter, err := c.Filter(t, f); err == nil && filter != "" {
		return t.SQL() + " WHERE (" + filter + ")"
	}
	return t.SQL()
}

// PublishedTables are the tables as a publication names them.
func (c *Config) PublishedTables(f *pg.Facts) string {
	var names []string
	for _, t := range c.tables() {
		names = append(names, c.published(t, f))
	}
	return strings.Join(names, ", ")
}

// shard judges whether the publication has the rows of the shard, and no others.
func (j *judgement) shard() {
	const name = "shard"
	if j.cfg.Shard.Of == 0 {
		return
	}
	if j.f.Server.Version < pg.FilterVersion {
		j.fail(name, fix.ByWords("Upgrade to Postgres 15, or divide the rows by table or by partition (docs/sharding.md), and remove source.shard."),
			"source.shard: needs Postgres 15 or newer, which has row filters").Misconfigured = true
		return
	}
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		if !t.Exists() || t.Relation.Index(j.cfg.Key(t.Relation)) < 0 { // the router says so
			continue
		}
		filter, err := j.cfg.Filter(t.Table, j.f)
		if err != nil {
			j.fail(name, fix.ByWords(fault.Hint(err)), "source.shard: %s", err).Misconfigured = true
			continue
		}
		p := j.f.Publication
		if p == nil || p.Table(t.Table) == nil || pg.SameFilter(p.Filter(t.Table), filter) {
			continue
		}
		j.lose(name, fix.BySQL(j.cfg.RepublishSQL(t.Table, j.f)),
			"publication %s does not select the rows of %s that belong to shard %s: its row filter is %q, and must be %q", j.cfg.Publication, t.Table, j.cfg.Shard, p.Filter(t.Table), filter)
	}
}
