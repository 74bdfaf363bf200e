package parity

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// An Outcome is what came of a case.
type Outcome struct {
	Records []Record
	Failure string // why it ended, "" if it did not
	AtStart bool   // it was refused before it read anything

	Schemas  map[uint32]string // the text of each schema that the records name by its id; nil without a registry
	Subjects []string          // "subject version schema" of each schema that was registered
}

// A Record is one as a broker keeps it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time
	Key       []byte // nil: null
	Value     []byte
	Headers   []Header
}

// A Header is one of a record.
type Header struct {
	Key   string
	Value []byte // nil: null
}

// String is the outcome for people and for comparison: records by topic, partition and offset. What no two runs have in common is
// replaced here, and nowhere else:
//
//   - The partition of a record without a key is "any", as each producer chooses one. Such records of one topic are ordered by what
//     is in them.
//   - A timestamp within an hour of now is "clock": Debezium's is when it saw the row, walpost's when it was committed. What a case
//     has in a column is years away.
//   - [B@1b2c3d, which is how Java prints an array of bytes that a struct holds, is an address: "[B@(address)". The partition of a
//     record with such a key is "any" too.
//   - The position, the transaction, the database and the times in the record of a logical message are named.
//   - The id of a registered schema is the schema's text. The partition of a record with such a key is "any", too.
//   - The UUID in the header __debezium.context.runId is "(run)", the same in all records of a run or else "(another run)".
func (o *Outcome) String() string { return o.render(true) }

func (o *Outcome) render(withFailure bool) string {
	rows := make([]row, 0, len(o.Records))
	run := ""
	for i := range o.Records {
		rows = append(rows, o.Records[i].row(&run, o.Schemas))
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		c := cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.part, b.part))
		if c == 0 && a.part == "any" {
			return cmp.Compare(a.text, b.text)
		}
		return cmp.Or(c, cmp.Compare(a.Offset, b.Offset))
	})
	var b strings.Builder
	for i := range rows {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "topic %s\npartition %s\n%s", quote([]byte(rows[i].Topic)), rows[i].part, rows[i].text)
	}
	for i, s := range o.Subjects {
		if i == 0 && len(rows) > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "subject %s\n", s)
	}
	if o.Failure != "" && withFailure {
		if len(rows) > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "failure %s\n", quote([]byte(o.Failure)))
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

type row struct {
	*Record
	part string
	text string
}

const runHeader = "__debezium.context.runId"

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func (r *Record) row(run *string, schemas map[uint32]string) row {
	part := strconv.Itoa(int(r.Partition))
	key, byID := framed(r.Key, schemas)
	if r.Key == nil || byID || addresses.Match(r.Key) {
		part = "any"
	}
	var b strings.Builder
	stamp := "clock"
	if d := time.Since(r.Time); d > time.Hour || d < -time.Hour {
		stamp = strconv.FormatInt(r.Time.UnixMilli(), 10)
	}
	fmt.Fprintf(&b, "timestamp %s\nkey %s\n", stamp, key)
	for _, h := range r.Headers {
		value := h.Value
		if h.Key == runHeader {
			value = uuids.ReplaceAllFunc(value, func(id []byte) []byte {
				if *run == "" {
					*run = string(id)
				}
				if *run != string(id) {
					return []byte("(another run)")
				}
				return []byte("(run)")
			})
		}
		value = withoutAddress(value)
		key := h.Key
		if key == "" || strings.ContainsAny(key, " \"`") || quote([]byte(key)) != "`"+key+"`" {
			key = strconv.Quote(key)
		}
		fmt.Fprintf(&b, "header %s %s\n", key, quote(value))
	}
	value, _ := framed(r.Value, schemas)
	fmt.Fprintf(&b, "value %s\n", value)
	return row{Record: r, part: part, text: b.String()}
}

// framed shows a key or a value: one in Confluent's wire format as its schema and the bytes behind the id.
func framed(b []byte, schemas map[uint32]string) (text string, byID bool) {
	if len(b) >= 5 && b[0] == 0 {
		if schema, ok := schemas[binary.BigEndian.Uint32(b[1:])]; ok {
			return schema + " " + strconv.Quote(string(b[5:])), true
		}
	}
	return quote(withoutOrigin(withoutAddress(b))), false
}

var addresses = regexp.MustCompile(`\[B@[0-9a-f]{4,8}\b`)

func withoutAddress(b []byte) []byte {
	if !addresses.Match(b) {
		return b // also null, and empty, which are not the same
	}
	return addresses.ReplaceAll(b, []byte("[B@(address)"))
}

// What the record of a logical message says of its origin, as JSON or as Java prints a struct.
var (
	ofMessage  = regexp.MustCompile(`\bop(?:":"|=)m\b`)
	originLSN  = regexp.MustCompile(`\blsn(?:":|=)([0-9]+)`)
	originTx   = regexp.MustCompile(`\btxId(?:":|=)([0-9]+)`)
	originDB   = regexp.MustCompile(`\b(db(?:":"|=))[^",}]+`)
	noneBefore = regexp.MustCompile(`(sequence(?:":"|=)\[)null,(\\?")`)
	longNumber = regexp.MustCompile(`\b[0-9]{3,}\b`)
)

// withoutOrigin replaces where a logical message was written, and when. Debezium names no transaction before the first one that a
// new connector reads. walpost names where the stream began.
func withoutOrigin(b []byte) []byte {
	if !ofMessage.Match(b) {
		return b
	}
	group := func(re *regexp.Regexp) string {
		if found := re.FindSubmatch(b); found != nil {
			return string(found[1])
		}
		return ""
	}
	lsn, tx := group(originLSN), group(originTx)
	b = originDB.ReplaceAll(b, []byte("${1}(db)"))
	b = noneBefore.ReplaceAll(b, []byte("$1$2(before)$2,$2"))
	return longNumber.ReplaceAllFunc(b, func(digits []byte) []byte {
		n, _ := strconv.ParseInt(string(digits), 10, 64)
		near := func(t time.Time) bool { return time.Since(t).Abs() < time.Hour }
		switch at, _ := strconv.ParseInt(lsn, 10, 64); {
		case string(digits) == lsn:
			return []byte("(lsn)")
		case string(digits) == tx:
			return []byte("(tx)")
		case near(time.UnixMilli(n)):
			return []byte("(ms)")
		case near(time.UnixMicro(n)):
			return []byte("(us)")
		case near(time.Unix(0, n)):
			return []byte("(ns)")
		case n < at:
			return []byte("(before)")
		}
		return digits
	})
}

// longest is how many bytes are shown; of more there is a hash.
const longest = 6000

// quote shows bytes exactly: null, `as they are`, or "quoted as in Go" where that could be misread.
func quote(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > longest:
		return fmt.Sprintf("(%d bytes, sha256 %x, from %s)", len(b), sha256.Sum256(b), strconv.Quote(string(b[:40])))
	case utf8.Valid(b) && plain(b):
		return "`" + string(b) + "`"
	}
	return strconv.Quote(string(b))
}

func plain(b []byte) bool {
	return !bytes.ContainsRune(b, '`') && !bytes.ContainsFunc(b, func(r rune) bool { return !strconv.IsPrint(r) })
}
