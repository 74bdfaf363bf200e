package router

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/cdc"
)

// A place is where a placement puts a column.
type place uint8

const (
	inHeader place = iota + 1
	inPartition
	inEnvelope
	inHeaders // each field of a JSON object: walpost's own
)

// A placement says where a further column goes: into a header or several, the partition or the
// envelope.
type placement struct {
	column, alias string
	place         place
}

// parsePlacements reads table.fields.additional.placement as Debezium's AdditionalFieldsValidator
// does: items with commas between them, each column:placement[:alias], all trimmed. An unknown
// placement is an error here; Debezium fails at the first record.
func parsePlacements(s string) ([]placement, error) {
	if s == "" {
		return nil, nil
	}
	var ps []placement
	for _, item := range javaSplit(s, ",") {
		parts := javaSplit(item, ":") // "type:header:" has no alias
		if len(parts) != 2 && len(parts) != 3 || strings.TrimSpace(parts[0]) == "" {
			return nil, fmt.Errorf("must be column:placement or column:placement:alias, separated by commas (got %q)", item)
		}
		p := placement{column: strings.TrimSpace(parts[0])}
		p.alias = p.column
		if len(parts) == 3 {
			p.alias = strings.TrimSpace(parts[2])
		}
		switch strings.ToLower(strings.TrimSpace(parts[1])) {
		case "header":
			p.place = inHeader
		case "headers":
			p.place = inHeaders
			if len(parts) == 3 {
				return nil, fmt.Errorf("the placement headers has no alias, because the object names its headers (got %q)", item)
			}
		case "partition":
			p.place = inPartition
		case "envelope":
			p.place = inEnvelope
			if p.alias == "" {
				return nil, fmt.Errorf("a field of the envelope must have a name (got %q)", item)
			}
		default:
			return nil, fmt.Errorf("placement must be header, headers, envelope or partition (got %q)", item)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// javaSplit is Java's String.split: it drops empty parts at the end, but an empty text has one
// part.
func javaSplit(s, separator string) []string {
	parts := strings.Split(s, separator)
	for len(parts) > 1 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return parts
}

// setPartition sets the partition from the column, unless the column is NULL.
func (p *plan) setPartition(row *row, rec *cdc.Record) *Problem {
	if p.partition == nil {
		return nil
	}
	raw := row.text(p.partition)
	v, err := p.partition.parse(raw)
	if err != nil {
		return p.partition.bad(raw, err)
	}
	if n, ok := v.(int64); ok {
		if n < 0 {
			return p.partition.problem(ValueValid, raw, "column %s has partition %d: it must be 0 or more", p.partition.name, n)
		}
		rec.Partition = int32(n)
	}
	return nil
}
