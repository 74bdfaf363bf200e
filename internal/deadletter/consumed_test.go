package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// consumed is the dead letter of a message, as inbox/consumer writes it. The last headers of a name count.
func consumed(offset int64, more ...string) *kgo.Record {
	values, order := map[string]string{}, []string{}
	for i, words := 0, append([]string{
		"id", "e", hReason, "attempts", hError, "no account", hTopic, "orders", hPartition, "3", hOffset, fmt.Sprint(offset),
		hTime, "1770000000123", hAttempts, "8", hID, "e", hGroup, "payments",
	}, more...); i < len(words); i += 2 {
		if _, ok := values[words[i]]; !ok {
			order = append(order, words[i])
		}
		values[words[i]] = words[i+1]
	}
	rec := &kgo.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: committed}
	for _, key := range order {
		if values[key] != "-" {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: key, Value: []byte(values[key])})
		}
	}
	return rec
}

func TestAMessageComesBackFromTheLetterOfItsConsumer(t *testing.T) {
	rec := consumed(17, hStack, "main.pay()", hStart, "position:orders/3/5@1")
	rec.Headers = append([]kgo.RecordHeader{{Key: "null", Value: nil}}, rec.Headers...)
	l, m, err := decodeConsumed(rec)
	if err != nil || m != nil {
		t.Fatal(m, err)
	}
	sent := time.UnixMilli(1770000000123).UTC()
	if l.Group != "payments" || l.Topic != "orders" || l.Partition != 3 || l.Offset != 17 || l.Attempts != 8 || l.Reason != "attempts" ||
		l.Error != "no account" || l.ID != "e" || l.Stack != "main.pay()" || !l.CommitTime.Equal(sent) {
		t.Errorf("%+v", l)
	}
	now := committed.Add(time.Hour)
	back := l.SendBack(now)
	if back.Topic != "orders" || back.Partition != 3 || string(back.Key) != "k" || string(back.Value) != "v" || !back.Time.Equal(now.Truncate(time.Millisecond)) {
		t.Errorf("%+v", back)
	}
	var headers []string
	for _, h := range back.Headers {
		headers = append(headers, fmt.Sprintf("%s=%s,%v", h.Key, h.Value, h.Value == nil))
	}
	if got := strings.Join(headers, " "); got != "null=,true id=e,false walpost.dead.group=payments,false walpost.dead.timestamp=1770000000123,false walpost.dead.position=position:orders/3/5@1,false" {
		t.Errorf("headers %s", got)
	}
	if len(l.Record.Headers) != 2 {
		t.Errorf("the letter has changed: %v", l.Record.Headers)
	}
}

func TestATokenNamesAMessageForAGroup(t *testing.T) {
	token := func(rec *kgo.Record) string {
		l, _, err := decodeConsumed(rec)
		if err != nil {
			t.Fatal(err)
		}
		return l.Token
	}
	first := token(consumed(17))
	if !strings.HasPrefix(first, "3-17-") {
		t.Errorf("token %s", first)
	}
	if again := token(consumed(17, hAttempts, "1", hError, "other", hReason, "permanent")); again != first {
		t.Errorf("the same message has the tokens %s and %s", first, again)
	}
	for _, other := range []*kgo.Record{consumed(18), consumed(17, hGroup, "stock"), consumed(17, hTopic, "refunds"), consumed(17, hTime, "1770000000124"), consumed(17, hID, "f")} {
		if token(other) == first {
			t.Errorf("another message has the token %s: %v", first, other.Headers)
		}
	}
}

// A message without a key has its letters in any partition, and the partition of a key changes when the topic gets more of them. Nothing
// orders the records of two partitions.
func TestAMarkIsForTheLettersThatItsCommandHadRead(t *testing.T) {
	at := func(rec *kgo.Record, partition int32, offset int64) *kgo.Record {
		rec.Partition, rec.Offset = partition, offset
		return rec
	}
	marks := func(state State, seen ...*kgo.Record) (all []*kgo.Record) {
		fold := NewConsumedFold()
		for _, rec := range seen {
			fold.Add(rec)
		}
		for i, rec := range fold.Entries()[0].Marks("dead", Mark{Token: fold.Entries()[0].Token, State: state, Time: committed}) {
			all = append(all, at(stored(rec, rec.Partition, 0), rec.Partition, int64(100+i)))
		}
		return all
	}
	first, again, elsewhere := at(consumed(5), 0, 1), at(consumed(5, hError, "again"), 0, 2), at(consumed(5, hError, "elsewhere"), 1, 7)
	for _, f := range []struct {
		name        string
		zero, other []*kgo.Record // the records of two partitions
		want        State
	}{
		{"a mark", append([]*kgo.Record{first}, marks(Retried, first)...), nil, Retried},
		{"a mark for two letters", append([]*kgo.Record{first, again}, marks(Dropped, first, again)...), nil, Dropped},
		{"a letter that came while the command worked", append([]*kgo.Record{first, again}, marks(Retried, first)...), nil, Open},
		{"a newer letter in another partition", append([]*kgo.Record{first}, marks(Retried, first)...), []*kgo.Record{elsewhere}, Open},
		{"a letter in another partition, with its mark", []*kgo.Record{first}, append([]*kgo.Record{elsewhere}, marks(Retried, elsewhere)...), Open},
		{"marks in both partitions", append([]*kgo.Record{first}, marks(Retried, first, elsewhere)[:1]...), append([]*kgo.Record{elsewhere}, marks(Retried, first, elsewhere)[1:]...), Retried},
	} {
		for _, order := range [][][]*kgo.Record{{f.zero, f.other}, {f.other, f.zero}} {
			fold := NewConsumedFold()
			for _, rec := range slices.Concat(order...) {
				fold.Add(rec)
			}
			if all := fold.Entries(); len(all) != 1 || all[0].State != f.want || fold.Foreign+fold.Damaged > 0 {
				t.Errorf("%s: %+v, want %s; %v", f.name, all[0], f.want, fold.Problem)
			}
		}
	}
}

func TestOtherRecordsAreForeignInTheTopicOfConsumers(t *testing.T) {
	relays, err := (&Letter{Token: "t", Attempts: 1, Partition: -1, Record: &cdc.Record{}}).Encode("dead")
	if err != nil {
		t.Fatal(err)
	}
	for name, rec := range map[string]*kgo.Record{
		"no headers": {Value: []byte("v")}, "a message that was sent back": consumed(1, hReason, "-", hTopic, "-", hPartition, "-", hOffset, "-"),
		"a relay's letter": stored(relays, 0, 0), "no group": consumed(1, hGroup, "-"),
	} {
		if l, m, err := decodeConsumed(rec); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v %v %v", name, l, m, err)
		}
	}
	for name, rec := range map[string]*kgo.Record{"partition": consumed(1, hPartition, "x"), "offset": consumed(-1), "attempts": consumed(1, hAttempts, "many")} {
		if _, _, err := decodeConsumed(rec); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("a wrong %s: %v", name, err)
		}
	}
	for _, garbage := range []string{"-1", "99999999999999999", "soon"} {
		if l, _, err := decodeConsumed(consumed(1, hTime, garbage)); err != nil || !l.CommitTime.Equal(committed) {
			t.Errorf("a time of %s: %v", garbage, err)
		}
	}
}

func TestTheTopicOfConsumersSaysWhatIsOpen(t *testing.T) {
	mark := func(rec *kgo.Record, state State) *kgo.Record {
		l, _, err := decodeConsumed(rec)
		if err != nil {
			t.Fatal(err)
		}
		return stored((&Mark{Token: l.Token, State: state, Time: committed}).Encode("dead", rec.Key, 0), 0, 0)
	}
	for _, f := range []struct {
		name  string
		topic []*kgo.Record
		want  string
	}{
		{"in the order of the messages", []*kgo.Record{consumed(9), consumed(5), consumed(7, hTime, "1")}, "5 open, 7 open, 9 open"},
		{"a letter that is written again", []*kgo.Record{consumed(5), consumed(5, hAttempts, "1", hError, "newer")}, "5 open newer"},
		{"marks", []*kgo.Record{consumed(5), consumed(6), mark(consumed(5), Retried), mark(consumed(6), Dropped)}, "5 retried, 6 dropped"},
		{"a group that failed once more", []*kgo.Record{consumed(5), mark(consumed(5), Retried), consumed(5)}, "5 open"},
		{"others", []*kgo.Record{consumed(5), {Value: []byte("v")}, consumed(5, hPartition, "x")}, "5 open, 1 foreign, 1 damaged"},
	} {
		fold := NewConsumedFold()
		for at, rec := range f.topic {
			rec.Offset = int64(at)
			fold.Add(rec)
		}
		var got []string
		for _, e := range fold.Entries() {
			got = append(got, strings.TrimSuffix(fmt.Sprintf("%d %s %s", e.Letter.Offset, e.State, e.Error), " no account"))
		}
		if fold.Foreign+fold.Damaged > 0 {
			got = append(got, fmt.Sprintf("%d foreign, %d damaged", fold.Foreign, fold.Damaged))
		}
		if text := strings.Join(got, ", "); text != f.want {
			t.Errorf("%s: %s, want %s", f.name, text, f.want)
		}
	}
}
