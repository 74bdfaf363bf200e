//go:build linux || darwin

package sink

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

func benchRecord(i int, key []byte, payload []byte) cdc.Record {
	return cdc.Record{
		Topic: "a", Key: key, Value: payload, Partition: -1, Time: time.Now(), Committed: time.Now(), EventID: "e",
		Headers: []cdc.Header{{Key: "id", Value: key}},
	}
}

// pump sends n records with at most window in flight, as the relay does.
func pump(b testing.TB, s *Kafka, topic string, n, window int) {
	payload, key := testenv.Incompressible(300), []byte("key-0")
	rec := benchRecord(0, key, payload)
	rec.Topic = topic
	var buf []cdc.Ack
	done := 0
	for i := 0; done < n; {
		for i < n && i-done < window {
			rec.Key = keys[i%len(keys)]
			rec.Committed = time.Now()
			s.Send(&rec, cdc.Ticket{Tx: uint64(i)})
			i++
			if i%64 == 0 {
				break
			}
		}
		if done < n && (i == n || i-done >= window) {
			<-s.Wake()
		}
		buf = s.Acks(buf[:0])
		for k := range buf {
			if buf[k].Err != nil {
				b.Fatal(buf[k].Err)
			}
		}
		done += len(buf)
	}
}

var keys = func() (out [][]byte) {
	for i := range 64 {
		out = append(out, []byte{'k', byte('0' + i/8), byte('0' + i%8)})
	}
	return out
}()

// BenchmarkSend is the path of a record through the sink and the client, against a broker that keeps nothing.
func BenchmarkSend(b *testing.B) {
	c := testenv.FakeKafka(b, kfake.SeedTopics(4, "a"), kfake.BlackholeProduce())
	s, err := Open(config(c.ListenAddrs()))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(patient(b))
	pump(b, s, "a", 10_000, 10_000)
	b.ReportAllocs()
	b.ResetTimer()
	pump(b, s, "a", b.N, 20_000)
}

// BenchmarkRealBulk is the rate into a real broker with acks=all.
func BenchmarkRealBulk(b *testing.B) {
	k := testenv.Kafka(b)
	s, err := Open(config(k.Brokers()))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(patient(b))
	topic := k.Topic(b, 4, nil)
	pump(b, s, topic, 20_000, 20_000)
	b.ReportAllocs()
	b.ResetTimer()
	pump(b, s, topic, b.N, 50_000)
}

// BenchmarkRealPaced sends at a steady rate, one record or a burst of ten at a time, and reports the time from Send to acknowledgement.
func BenchmarkRealPaced(b *testing.B) {
	for _, c := range []struct {
		name  string
		every time.Duration
		burst int
	}{{"200", 5 * time.Millisecond, 1}, {"1000", time.Millisecond, 1}, {"1000in10s", 10 * time.Millisecond, 10}, {"3000", time.Millisecond, 3}} {
		for _, l := range []struct {
			name   string
			linger Linger
		}{{"auto", 0}, {"1ms", Linger(time.Millisecond)}} {
			b.Run(c.name+"/linger="+l.name, func(b *testing.B) {
				k := testenv.Kafka(b)
				cfg := config(k.Brokers())
				cfg.Linger = l.linger
				s, err := Open(cfg)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close(patient(b))
				topic := k.Topic(b, 4, nil)
				pump(b, s, topic, 1000, 1000)
				b.ResetTimer()
				paced(b, s, topic, keys, b.N, c.every, c.burst)
			})
		}
	}
}

// BenchmarkPaced sends a record every two milliseconds to a broker whose answers take 20 ms: of many keys, and of one.
func BenchmarkPaced(b *testing.B) {
	for name, keys := range map[string][][]byte{"many keys": keys, "one key": keys[:1]} {
		b.Run(name, func(b *testing.B) {
			c := testenv.FakeKafka(b, kfake.SeedTopics(4, "a"))
			cfg := config(c.ListenAddrs())
			w := &wire{wrap: late(20 * time.Millisecond)}
			cfg.Dial = w.dial
			s, err := Open(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close(patient(b))
			pump(b, s, "a", 1000, 1000)
			b.ResetTimer()
			paced(b, s, "a", keys, b.N, 2*time.Millisecond, 1)
		})
	}
}

func paced(b *testing.B, s *Kafka, topic string, keys [][]byte, n int, every time.Duration, burst int) {
	var lat []time.Duration
	var buf []cdc.Ack
	tick := time.NewTicker(every)
	defer tick.Stop()
	payload := testenv.Incompressible(300)
	sent := 0
	for len(lat) < n {
		select {
		case <-tick.C:
			for range burst {
				if sent < n {
					rec := benchRecord(sent, keys[sent%len(keys)], payload)
					rec.Topic = topic
					s.Send(&rec, cdc.Ticket{})
					sent++
				}
			}
		case <-s.Wake():
			buf = s.Acks(buf[:0])
			for _, a := range buf {
				lat = append(lat, a.Latency)
			}
		}
	}
	slices.Sort(lat)
	b.ReportMetric(float64(lat[len(lat)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(lat[len(lat)*99/100].Microseconds()), "p99-µs")
}
