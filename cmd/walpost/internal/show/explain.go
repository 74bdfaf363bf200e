package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/walpost/walpost"
)

// Explanation is the record of a row, or why it has none.
func Explanation(x *walpost.Explanation) string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-10s %s\n", name, text) }
	line("row", fmt.Sprintf("%s, event id %s", x.Table, shown([]byte(x.EventID))))
	if x.Problem != "" {
		what := "no record: "
		if x.Record != nil {
			what = "would not be delivered: "
		}
		line("PROBLEM", what+OneLine(x.Problem))
		if x.Column != "" {
			line("column", x.Column)
		}
		if x.Option != "" {
			line("option", x.Option)
		}
		if x.Hint != "" {
			line("fix", OneLine(x.Hint))
		}
	}
	if rec := x.Record; rec != nil {
		line("topic", shown([]byte(rec.Topic)))
		if x.Partition >= 0 {
			line("partition", fmt.Sprintf("%d (%s)", x.Partition, x.PartitionFrom))
		} else {
			line("partition", x.PartitionFrom)
		}
		line("key", shown(rec.Key))
		line("timestamp", fmt.Sprintf("%s (%s)", rec.Time.UTC().Format(time.RFC3339Nano), x.TimeFrom))
		for _, h := range rec.Headers {
			line("header", shown([]byte(h.Key))+": "+shown(h.Value))
		}
		line("value", shown(rec.Value))
	}
	return b.String()
}

// recordJSON is the record of an Explanation for programs. A value that is not UTF-8 is in base64, under another name.
type recordJSON struct {
	Topic         string    `json:"topic"`
	Partition     *int32    `json:"partition"`
	PartitionFrom string    `json:"partition_from"`
	Timestamp     time.Time `json:"timestamp"`
	TimestampFrom string    `json:"timestamp_from"`
	Key           *string   `json:"key"`
	KeyB64        *string   `json:"key_base64,omitempty"`
	Headers       []header  `json:"headers"`
	Value         *string   `json:"value"`
	ValueB64      *string   `json:"value_base64,omitempty"`
}

// ExplanationJSON prints the same on one line, for programs.
func ExplanationJSON(w io.Writer, x *walpost.Explanation) error {
	v := struct {
		*walpost.Explanation
		Record *recordJSON `json:"record"`
	}{x, nil}
	if rec := x.Record; rec != nil {
		v.Record = &recordJSON{Topic: rec.Topic, PartitionFrom: x.PartitionFrom, Timestamp: rec.Time.UTC(), TimestampFrom: x.TimeFrom, Headers: headersOf(rec.Headers)}
		if x.Partition >= 0 {
			v.Record.Partition = &x.Partition
		}
		v.Record.Key, v.Record.KeyB64 = textOrBase64(rec.Key)
		v.Record.Value, v.Record.ValueB64 = textOrBase64(rec.Value)
	}
	return writeJSON(w, v, "")
}
