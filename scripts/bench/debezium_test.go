//go:build linux

package main

import (
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/testenv"
)

// debezium reads a backlog with Debezium. The time and the processor time begin with the first record
// in Kafka: they leave out the start of the worker.
func (e *env) debezium(changed settings) func(*testing.B, *backlog, string) pass {
	return func(b *testing.B, g *backlog, slot string) pass {
		topic, prefix := e.topic(b)
		adm := kadm.NewClient(e.kafka.Client(b))
		p := e.connector(b, slot, prefix, changed)
		before := e.stored(b, 1, adm, topic, p)
		began := time.Now()
		p.before = processorTime(p.cmd.Process.Pid)
		e.stored(b, g.rows, adm, topic, p)
		took := time.Since(began)
		p.after = processorTime(p.cmd.Process.Pid)
		p.end(b)
		return pass{p, g.rows - before, took, began.Sub(p.began), func() { e.compare(b, g, adm, topic) }}
	}
}

// settings are options of Debezium and of its worker that are not the defaults.
type settings struct{ connector, worker map[string]string }

// tunings are the settings of the two readers. The tuned one asks the queue often, and has room for more events in it.
var tunings = map[string]settings{
	"debezium-tuned": {
		connector: map[string]string{"poll.interval.ms": "10", "max.batch.size": "16384", "max.queue.size": "65536"},
		worker:    map[string]string{"producer.linger.ms": "0", "producer.batch.size": "262144"},
	},
}

// connector starts Debezium's connector with the Outbox EventRouter in a standalone worker of Kafka
// Connect, into Kafka. Its options are the defaults, but for the compression, which is that of
// walpost, and for changed. The JVM has its own defaults, and the heap of Kafka's scripts.
func (e *env) connector(b *testing.B, slot, prefix string, changed settings) *process {
	testenv.ConnectJars.Need(b, "Debezium")
	jars, java, _, err := testenv.ConnectJars.Open(b.Context())
	check(b, err)
	folder := b.TempDir()
	db, err := pgx.ParseConfig(e.dsn)
	check(b, err)
	worker := map[string]string{
		"bootstrap.servers": strings.Join(e.kafka.Brokers(), ","), "listeners": "http://127.0.0.1:0",
		"plugin.path": filepath.Join(jars, "plugins"), "plugin.discovery": "service_load",
		"key.converter":                "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":              "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename": filepath.Join(folder, "offsets"), "producer.compression.type": "snappy",
	}
	connector := map[string]string{
		"name": slot, "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
		"database.hostname": db.Host, "database.port": strconv.Itoa(int(db.Port)), "database.user": db.User, "database.password": db.Password,
		"database.dbname": db.Database, "database.sslmode": "disable", "topic.prefix": slot, "plugin.name": "pgoutput",
		"slot.name": slot, "publication.name": "bench", "publication.autocreate.mode": "disabled", "snapshot.mode": "no_data",
		"table.include.list": "public.outbox", "transforms": "o", "transforms.o.type": "io.debezium.transforms.outbox.EventRouter",
		"transforms.o.route.topic.replacement": prefix + "${routedByValue}",
	}
	maps.Copy(worker, changed.worker)
	maps.Copy(connector, changed.connector)
	for name, properties := range map[string]map[string]string{
		"log4j2.properties": {"rootLogger.level": "error"}, "worker.properties": worker, "connector.properties": connector,
	} {
		check(b, testenv.WriteProperties(filepath.Join(folder, name), properties))
	}
	return launch(b, java, "-Xms256M", "-Xmx2G", "-Dlog4j2.configurationFile="+filepath.Join(folder, "log4j2.properties"), "-Djava.io.tmpdir="+folder,
		"-cp", filepath.Join(jars, "lib", "*"), "org.apache.kafka.connect.cli.ConnectStandalone",
		filepath.Join(folder, "worker.properties"), filepath.Join(folder, "connector.properties"))
}
