package verify

import (
	"math"

	"github.com/walpost/walpost/internal/fault"
)

// A Kind is the kind of a Finding.
type Kind string

// The kinds. The first ones are differences; the others could not be judged.
const (
	Missing      Kind = "missing"
	Changed      Kind = "changed"
	Duplicate    Kind = "duplicate"
	OutOfOrder   Kind = "out_of_order"
	Unroutable   Kind = "unroutable"
	InBothPlaces Kind = "in_both_places"

	NotConfirmed  Kind = "not_confirmed"
	Retention     Kind = "retention"
	Compaction    Kind = "compaction"
	OrderUnknown  Kind = "order_unknown"
	RepeatUnknown Kind = "duplicate_unknown"
	NoID          Kind = "no_event_id"
	IDNotUnique   Kind = "event_id_not_unique"
)

// A KindText describes a Kind to people.
type KindText struct {
	Kind       Kind
	Difference bool // otherwise verify cannot tell
	Text       string
	Hint       string
}

// Kinds are all kinds, in the order of a report. The commands of their hints have the options of this program.
func Kinds() []KindText {
	explain := fault.Command("explain", "--id", "ID")
	return []KindText{
		{Missing, true, "rows whose record is in no topic", "Look for the id in the log of run. " + explain + " prints the record."},
		{Changed, true, "rows whose record would be different now", "Compare what " + explain + " prints with the record. The row was updated, or the configuration was changed, after the delivery."},
		{Duplicate, true, "duplicates that a restart of the relay does not explain", "Find out who else writes to the topic, or who replaced the relay."},
		{OutOfOrder, true, "records after a newer record of their key", "Do not change the topic, and open an issue for walpost with the two records, their headers and their timestamps."},
		{Unroutable, true, "rows without a record", explain + " says what to change."},
		{InBothPlaces, true, "events that are in their topic and also elsewhere", fault.Command("dead", "list") + " shows them."},
		{NotConfirmed, false, "rows without a record that the relay may not have reached", "Start walpost run, or repair what it reports. If the note names an open transaction, end that first. Then verify again."},
		{Retention, false, "rows whose record may have been removed by retention", "Compare younger rows (--since)."},
		{Compaction, false, "rows whose record may have been removed by compaction", ""},
		{OrderUnknown, false, "pairs of records of one key that look reversed", "verify cannot tell the order, because the two commits were too close together, or because only source.order_column orders them. This is not a sign of a fault."},
		{RepeatUnknown, false, "duplicates that a restart of the relay may explain", "Verify again after the relay has delivered more."},
		{NoID, false, "rows without an event id (NULL)", "Give every row an event id, and name its column with router.table.field.event.id."},
		{IDNotUnique, false, "rows whose event id is shared by too many rows or records", "Set router.table.field.event.id to a column that is unique."},
	}
}

// A Finding is one difference, or one thing that could not be judged.
type Finding struct {
	Kind    Kind    `json:"kind"`
	Table   string  `json:"table,omitempty"` // "" if no row belongs to it
	EventID string  `json:"event_id"`
	Key     *string `json:"key"` // at most 200 bytes; nil for a null key, and if the row gives none
	Topic   string  `json:"topic,omitempty"`
	// Partition and Offset are -1 if they are not known. Of a row without a record, Partition is the
	// one where the record should be.
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Detail    string `json:"detail,omitempty"`
}

// A Report is what Run has found.
type Report struct {
	Rows       int64 `json:"rows"`    // that were read
	Records    int64 `json:"records"` // that were read
	Matched    int64 `json:"rows_with_record"`
	WithoutRow int64 `json:"records_without_row"` // of no row that was compared
	NoEventID  int64 `json:"records_without_event_id"`
	Repeated   int64 `json:"duplicates_contiguous"` // a restart of the relay explains them
	Marked     int64 `json:"duplicates_marked"`     // sent by a command, as the header walpost.origin says
	Late       int64 `json:"rows_sent_late"`        // a replay or a retry sent their only record, so it has no place in the order
	LeftOut    int64 `json:"rows_left_out"`         // without a record, because source.snapshot leaves them out
	Unordered  int64 `json:"pairs_without_order"`   // neighbours of one key whose order nothing tells
	// Elsewhere counts rows without a record by where their event is.
	Elsewhere map[string]int64 `json:"rows_elsewhere"`
	// NotConfirmed says why rows may still be without a record; "" if all must have one.
	NotConfirmed string `json:"not_confirmed,omitempty"`

	Counts   map[Kind]int64 `json:"-"`        // of all findings
	Findings []Finding      `json:"findings"` // at most Options.Limit of each kind
}

// Differences is the number of all differences.
func (r *Report) Differences() int64 { return r.sum(true) }

// CannotTell is the number of all findings that are not certain.
func (r *Report) CannotTell() int64 { return r.sum(false) }

func (r *Report) sum(difference bool) (n int64) {
	for _, k := range Kinds() {
		if k.Difference == difference {
			n += r.Counts[k.Kind]
		}
	}
	return n
}

// finding counts a finding about e, and keeps it if there are not too many. rec is the record, or nil
// if e says where it is or should be.
func (v *verifier) finding(k Kind, e *entry, detail string, rec *entry) {
	if v.report.Counts[k]++; v.report.Counts[k] > int64(v.Limit) {
		return
	}
	f := Finding{Kind: k, EventID: string(e.id), Partition: e.partition, Offset: e.offset, Detail: detail}
	if !e.has(nullKey | unroutable) {
		key := string(e.keyText)
		f.Key = &key
	}
	if rec != nil {
		f.Partition, f.Offset = rec.partition, rec.offset
	}
	if e.kind == ofRow && rec == nil || f.Offset == math.MaxInt64 {
		f.Offset = -1
	}
	if e.kind != ofRecord {
		f.Table = v.tables[e.table].name
	}
	if e.has(unroutable) {
		f.Partition = -1
	} else {
		f.Topic = v.topics[e.topic].name
	}
	v.report.Findings = append(v.report.Findings, f)
}
