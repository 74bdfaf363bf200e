package router

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

// What Debezium itself writes is in testdata/debezium/messages.txt, without the times and positions.
func TestTheRecordOfAMessageNamesItsTransaction(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DebeziumMessages, cfg.Database, cfg.TopicPrefix = true, "shop", "p"
	cfg.Key.Name, cfg.Value.Name = "json", "json"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	values := []cdc.Value{{Bytes: []byte("one")}, {Bytes: []byte("745")}, {Bytes: []byte("0/64")}}
	ev := &cdc.Event{
		Kind: cdc.Message, LSN: 0x100000002, Time: time.Date(2026, 1, 31, 12, 0, 0, 123456000, time.UTC),
		Row: cdc.Row{Relation: cdc.MessagesWithOrigin("audit"), Values: values},
	}
	const want = `{"op":"m","ts_ms":1769860800123,"source":{"version":"3.6.1.Final","connector":"postgresql","name":"p","ts_ms":1769860800123,` +
		`"snapshot":"false","db":"shop","sequence":"[\"100\",\"4294967298\"]","ts_us":1769860800123456,"ts_ns":1769860800123456000,"schema":"","table":"",` +
		`"txId":745,"lsn":4294967298,"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,"message":{"prefix":"audit","content":"b25l"}}`
	var rec cdc.Record
	if ok, err := r.Route(ev, &rec); !ok || err != nil || string(rec.Value) != want || rec.Topic != "p.message" || rec.EventID != "1/2" {
		t.Errorf("%t, %v: %s to %s:\n%s, want\n%s", ok, err, rec.EventID, rec.Topic, rec.Value, want)
	}
	// The letter of a message that a relay with format: row could not route.
	ev.Row = cdc.Row{Relation: cdc.Messages("audit"), Values: values[:1]}
	if ok, err := r.Route(ev, &rec); !ok || err != nil || !strings.Contains(string(rec.Value), `"txId":null`) {
		t.Errorf("%t, %v: %s", ok, err, rec.Value)
	}
}

func TestAMessageThatNoRecordCanHold(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"records.value.converter": func(c *Config) { c.Value.Name = "bytes" },
		"records.key.converter":   func(c *Config) { c.Key.Name = "bytes" },
		"router.topic.rename":     func(c *Config) { c.RenameRegex, c.RenameReplacement = ".*message", "not a topic" },
	} {
		cfg := DefaultConfig()
		cfg.DebeziumMessages, cfg.Database, cfg.TopicPrefix = true, "shop", "p"
		change(&cfg)
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.CheckMessages(""); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
		var rec cdc.Record
		ev := &cdc.Event{Kind: cdc.Message, LSN: 7, Row: cdc.Row{Relation: cdc.Messages("audit"), Values: []cdc.Value{{Bytes: []byte("one")}}}}
		_, err = r.Route(ev, &rec)
		if refused := (&RowError{}); !errors.As(err, &refused) || refused.KeyFound() == (option == "records.key.converter") || refused.EventID != "0/7" {
			t.Errorf("%s: %v", option, err)
		}
	}
}
