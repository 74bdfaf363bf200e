package sink

import (
	"testing"

	"github.com/walpost/walpost/cdc"
)

// The hashes are those of Kafka's own UtilsTest.testMurmur2; the Java client takes them without their sign bit.
func TestAPartitionIsTheOneOfKafkasJavaClient(t *testing.T) {
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
	} {
		for _, n := range []int32{1, 3, 12, 1000} {
			rec := cdc.Record{Partition: -1, Key: []byte(key)}
			if got, want := PartitionOf(&rec, n), (hash&0x7fffffff)%n; got != want {
				t.Errorf("key %q of %d partitions: %d, must be %d", key, n, got, want)
			}
		}
	}
	if got := PartitionOf(&cdc.Record{Partition: 7, Key: []byte("21")}, 3); got != 7 {
		t.Errorf("a record that asks for partition 7 goes to %d", got)
	}
	if got := PartitionOf(&cdc.Record{Partition: -1}, 3); got != -1 {
		t.Errorf("a record without a key goes to %d", got)
	}
	if got := PartitionOf(&cdc.Record{Partition: -1, Key: []byte{}}, 3); got < 0 {
		t.Errorf("an empty key is none")
	}
}
