package router

import (
	"fmt"
	"strings"
)

type place uint8

const (
	inHeader place = iota + 1
	inPartition
	inEnvelope
)

// A placement puts a column somewhere beside key and payload.
type placement struct {
	column, alias string
	place         place
}

// parsePlacements reads table.fields.additional.placement as Debezium's AdditionalFieldsValidator does: items split at commas,
// each column:placement[:alias], all trimmed. An unknown placement, which Debezium lets pass and then fails on at the first record, is
// refused here.
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
		case "partition":
			p.place = inPartition
		case "envelope":
			p.place = inEnvelope
			if p.alias == "" {
				return nil, fmt.Errorf("a field of the envelope must have a name (got %q)", item)
			}
		default:
			return nil, fmt.Errorf("placement must be header, envelope or partition (got %q)", item)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// javaSplit is String.split: empty strings at the end are not part of what it gives, and an empty string is one part.
func javaSplit(s, separator string) []string {
	parts := strings.Split(s, separator)
	for len(parts) > 1 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return parts
}
