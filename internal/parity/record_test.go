//go:build linux || darwin

package parity

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/testenv"
)

var (
	record    = flag.Bool("record", false, "run the cases of the corpus on Debezium, and keep what Debezium writes")
	check     = flag.Bool("check", false, "with -record: write nothing, and fail if Debezium writes something else than the corpus has")
	missing   = flag.Bool("missing", false, "with -record: run only the cases that have no records yet")
	confluent = flag.String("confluent", "", "with -record: a plugin.path with Confluent's JsonSchemaConverter and ProtobufConverter, for the cases that need it")
	cases     = flag.String("case", "", "a regular expression: run only the cases whose short name (group_name) matches")
	atOnce    = flag.Int("at-once", 16, "with -record or -random: how many cases run at the same time")
	version   = flag.String("postgres", "15", "with -record or -random: the major version of Postgres")
)

// caseTime is for a connector that starts beside dozens of others.
const caseTime = time.Minute

// An oracle is the servers on which Debezium runs.
type oracle struct {
	kafka    *testenv.KafkaCluster
	worker   *ConnectWorker
	registry *registry
	fake     *registry // for Confluent's converters: Apicurio Registry refuses a JSON Schema that has no properties
	database []string  // one for each case that runs
}

func startOracle(t *testing.T) *oracle {
	o := &oracle{}
	pg := testenv.Postgres(t, *version, testenv.Param("max_connections", "500"), testenv.Param("max_wal_senders", "200"),
		testenv.Param("max_replication_slots", "200"), testenv.Param("autovacuum", "off"))
	for range *atOnce {
		o.database = append(o.database, pg.Database(t))
	}
	o.kafka = testenv.KafkaPrivate(t, 1, map[string]string{
		"auto.create.topics.enable": "true", "num.partitions": strconv.Itoa(Partitions), "message.max.bytes": MaxMessage,
		"log.index.size.max.bytes": "65536",
		// Timestamps of columns are years old: a broker deletes such records within minutes.
		"log.retention.ms": "-1",
		// The test compares what is sent. A broker would refuse a timestamp of the future.
		"log.message.timestamp.after.max.ms": "9223372036854775807",
	})
	o.worker = Connect(t, o.kafka, map[string]string{"offset.flush.interval.ms": "200", "producer.linger.ms": "0"})
	return o
}

// TestRecord runs the cases of the corpus on Debezium and keeps what Debezium writes. It runs only with -record, because it
// rewrites the corpus.
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("rewrites the corpus: runs with -record")
	}
	match, err := regexp.Compile(*cases)
	if err != nil {
		t.Fatalf("-case: %v", err)
	}
	files, err := ReadCorpus(corpus)
	if err != nil {
		t.Fatal(err)
	}
	o := startOracle(t)
	o.registry = &registry{address: testenv.Registry(t)}
	fake := httptest.NewServer(http.StripPrefix(ccompat, srfake.NewRegistry().Handler()))
	defer fake.Close()
	o.fake = &registry{address: fake.Listener.Addr().String()}
	var mu sync.Mutex
	done, changed := 0, 0
	fileOf := map[*Case]*File{}
	for _, f := range files {
		for _, c := range f.Cases {
			fileOf[c] = f
		}
	}
	next := make(chan *Case)
	var wg sync.WaitGroup
	for i, dsn := range o.database {
		wg.Go(func() {
			for c := range next {
				got, err := o.debezium(t.Context(), c, dsn, i)
				mu.Lock()
				done++
				switch was := c.Want; {
				case err != nil:
					t.Errorf("%s: %v", c.Slug(), err)
				case was != got:
					changed++
					if *check || was != "" {
						fmt.Printf("%s:\n%s", c.Slug(), Diff(was, got))
					}
					c.Want = got
					if !*check { // what is recorded stays if the run is broken off
						if err := os.WriteFile(fileOf[c].Path, fileOf[c].Bytes(), 0o644); err != nil {
							t.Error(err)
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range files {
		for _, c := range f.Cases {
			if match.MatchString(c.Slug()) && (!*missing || c.Want == "") {
				next <- c
			}
		}
	}
	close(next)
	wg.Wait()
	fmt.Printf("%d cases, %d changed\n", done, changed)
	if done == 0 {
		t.Error("no cases")
	}
	if *check && changed > 0 {
		t.Errorf("%d cases differ from the corpus", changed)
	}
}

// debezium runs one case in one database.
func (o *oracle) debezium(ctx context.Context, c *Case, dsn string, place int) (text string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, caseTime, errors.New("no end after "+caseTime.String()))
	defer cancel()
	p, err := c.Put(ctx, dsn, fmt.Sprintf("parity_%d", place), 1)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Leave(context.WithoutCancel(ctx))) }()
	d := Debezium{Worker: o.worker, Brokers: o.kafka.Brokers(), Registry: o.registry}
	if c.confluent() {
		d.Registry = o.fake
	}
	p.Registry = d.Registry.address
	got, err := d.Run(ctx, c, p, p.Slots[0])
	return got.String(), err
}
