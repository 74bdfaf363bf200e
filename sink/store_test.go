package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/relay"
)

// stories that every store must tell alike.
func storeStories(t *testing.T, s relay.Store) {
	t.Helper()
	ctx := patient(t)
	load := func(name string, want map[string]string) {
		t.Helper()
		got, err := s.Load(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		for k, v := range got {
			have[k] = string(v)
		}
		if !maps.Equal(have, want) {
			t.Errorf("load %s: %v, want %v", name, have, want)
		}
	}
	save := func(key string, value []byte) {
		t.Helper()
		if err := s.Save(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	load("shop", map[string]string{})
	save("shop/1", []byte("one"))
	save("shop/2", []byte("two"))
	save("shop.other/1", []byte("not ours"))
	save("shop", []byte("nor this"))
	load("shop", map[string]string{"shop/1": "one", "shop/2": "two"})
	save("shop/2", []byte("\x00\xff"))
	save("shop/1", nil)
	load("shop", map[string]string{"shop/2": "\x00\xff"})
	load("shop.other", map[string]string{"shop.other/1": "not ours"})
	load("sho", map[string]string{})
}

func kafkaStore(t testing.TB, brokers []string, topic string) *KafkaStore {
	t.Helper()
	s, err := NewKafkaStore(config(brokers), topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestKafkaStore(t *testing.T) {
	c := testenv.FakeKafka(t)
	storeStories(t, kafkaStore(t, c.ListenAddrs(), "walpost.checkpoints"))
	info := c.TopicInfo("walpost.checkpoints")
	if p := info.Configs["cleanup.policy"]; p == nil || *p != "compact" || len(c.PartitionInfos("walpost.checkpoints")) != 1 {
		t.Errorf("the topic was created with %v", info.Configs)
	}
	again := kafkaStore(t, c.ListenAddrs(), "walpost.checkpoints")
	if got, err := again.Load(patient(t), "shop"); err != nil || string(got["shop/2"]) != "\x00\xff" {
		t.Errorf("another process reads %v, %v", got, err)
	}
}

func TestKafkaStoreReadsOnAfterCompaction(t *testing.T) {
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	for i := range 300 {
		if err := s.Save(patient(t), "n/1", []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Save(patient(t), "n/2", []byte("newer")); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(patient(t), "n/1", nil); err != nil {
		t.Fatal(err)
	}
	c.Compact()
	if got, err := s.Load(patient(t), "n"); err != nil || len(got) != 1 {
		t.Errorf("load: %v, %v", got, err)
	}
}

// What can not be read is an error that may pass, and never an empty answer.
func TestKafkaStoreThatCanNotBeReadIsAnError(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.UnknownServerError} {
		for _, key := range []kmsg.Key{kmsg.ListOffsets, kmsg.Fetch} {
			t.Run(e.Message+" "+key.Name(), func(t *testing.T) {
				c := testenv.FakeKafka(t)
				s := kafkaStore(t, c.ListenAddrs(), "cp")
				if err := s.Save(patient(t), "n/1", []byte("x")); err != nil {
					t.Fatal(err)
				}
				h := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: "cp", Err: e, Count: -1})
				ctx, cancel := context.WithCancel(patient(t))
				go func() {
					_ = h.Wait(ctx, 2) // an error that ends the call sooner is as good
					cancel()
				}()
				got, err := s.Load(ctx, "n")
				cancel()
				if err == nil || !fault.Retryable(err) || !strings.Contains(err.Error(), "checkpoint topic cp") {
					t.Errorf("load: %v, %v", got, err)
				}
				h.Remove()
				if got, err := s.Load(patient(t), "n"); err != nil || string(got["n/1"]) != "x" {
					t.Errorf("afterwards: %v, %v", got, err)
				}
			})
		}
	}
}

func TestKafkaStoreThatCanNotBeWrittenIsAnError(t *testing.T) {
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	if err := s.Save(patient(t), "n/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	c.Fault(kfake.Fault{Keys: produce, Topic: "cp", Err: kerr.TopicAuthorizationFailed, Count: 1})
	if err := s.Save(patient(t), "n/1", []byte("y")); err == nil || !fault.Retryable(err) || !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("save: %v", err)
	}
	if err := s.Save(patient(t), "n/1", []byte("z")); err != nil {
		t.Error(err)
	}
	// Not acknowledged in time: the error comes, and what is saved later wins.
	h := c.Fault(kfake.Fault{Keys: produce, Topic: "cp", Err: kerr.NotEnoughReplicas, Count: -1})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_ = h.Wait(patient(t), 1)
		cancel()
	}()
	if err := s.Save(ctx, "n/1", []byte("late")); err == nil || !fault.Retryable(err) {
		t.Errorf("save: %v", err)
	}
	h.Remove()
	if err := s.Save(patient(t), "n/1", []byte("newest")); err != nil {
		t.Error(err)
	}
	if got, err := s.Load(patient(t), "n"); err != nil || string(got["n/1"]) != "newest" {
		t.Errorf("load: %v, %v", got, err)
	}
}

func TestFileStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	s := NewFileStore(path)
	storeStories(t, s)
	other := NewFileStore(path)
	if _, err := other.Load(t.Context(), "shop"); err == nil || !strings.Contains(err.Error(), "used by another process") || !fault.Retryable(err) {
		t.Errorf("a second user: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := other.Load(t.Context(), "shop"); err != nil || len(got) != 1 {
		t.Errorf("afterwards: %v, %v", got, err)
	}
	_ = other.Close()
}

// A crash before any step leaves the old record or the new one, and the next start goes on.
func TestFileStoreSurvivesACrashAtEachStep(t *testing.T) {
	crash := errors.New("crash")
	for _, at := range []string{"create", "write", "sync", "rename", "sync directory"} {
		t.Run(at, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "checkpoint.json")
			s := NewFileStore(path)
			if err := s.Save(t.Context(), "n/1", []byte("old")); err != nil {
				t.Fatal(err)
			}
			s.step = func(step string) error {
				if step == at {
					return crash
				}
				return nil
			}
			if err := s.Save(t.Context(), "n/1", []byte("new")); !errors.Is(err, crash) {
				t.Fatalf("save: %v", err)
			}
			_ = s.Close() // the process is gone, and its lock with it
			next := NewFileStore(path)
			defer next.Close()
			got, err := next.Load(t.Context(), "n")
			want := "old"
			if at == "sync directory" { // renamed already
				want = "new"
			}
			if err != nil || string(got["n/1"]) != want {
				t.Errorf("the next start reads %q, %v; want %q", got["n/1"], err, want)
			}
			if err := next.Save(t.Context(), "n/1", []byte("on")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestADamagedFileIsNeverEmpty(t *testing.T) {
	for _, content := range []string{"", "{", "{}", `{"version":2,"records":{}}`, `{"version":1}`, `[1]`, `{"version":1,"records":{"a/1":"!!"}}`} {
		path := filepath.Join(t.TempDir(), "checkpoint.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s := NewFileStore(path)
		if got, err := s.Load(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q reads as %v, %v", content, got, err)
		}
		if err := s.Save(t.Context(), "a/1", []byte("x")); err == nil {
			t.Errorf("%q was overwritten", content)
		}
		_ = s.Close()
	}
	dir := NewFileStore(t.TempDir())
	defer dir.Close()
	if _, err := dir.Load(t.Context(), "a"); err == nil {
		t.Error("a directory reads as empty")
	}
}

func TestKafkaStoreDoesNotWaitForeverForWhatCanNotBeRead(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t)
	s := kafkaStore(t, c.ListenAddrs(), "cp")
	if err := s.Save(patient(t), "n/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	usual := s.patience
	s.patience = 2 * time.Second
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "cp", Err: kerr.NotLeaderForPartition, Count: -1})
	if got, err := s.Load(patient(t), "n"); err == nil || !fault.Retryable(err) || !errors.Is(err, kerr.NotLeaderForPartition) {
		t.Errorf("load: %v, %v", got, err)
	}
	h.Remove()
	s.patience = usual
	if got, err := s.Load(patient(t), "n"); err != nil || string(got["n/1"]) != "x" {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

// Only a record under a number says that a holder of the slot was there.
func TestLostRecordsAreToldByTheRecordsUnderANumber(t *testing.T) {
	for _, x := range []struct {
		start int64
		keys  []string
		lost  bool
	}{
		{0, nil, false},
		{7, nil, true},
		{7, []string{"n/12"}, false},
		{7, []string{"n/12.1aae3fbc99fb4b07"}, false},
		{7, []string{"n/halt/12", "n/skip/0"}, true},
		{7, []string{"n/halt/12", "n/3"}, false},
	} {
		f := fold(nil, "cp", "n/")
		f.Start, f.records = x.start, map[string][]byte{}
		for _, key := range x.keys {
			f.records[key] = []byte("x")
		}
		lost := f.lost()
		if (lost != nil) != x.lost {
			t.Errorf("start %d, %v: %v", x.start, x.keys, lost)
		}
		if lost == nil {
			continue
		}
		later := *lost
		later.Start++
		if later.GapToken() == lost.GapToken() || !strings.Contains(fault.Hint(fmt.Errorf("read: %w", lost)), "walpost run --accept-gap="+lost.GapToken()) {
			t.Errorf("token %s, of a later loss %s, hint %q", lost.GapToken(), later.GapToken(), lost.Hint())
		}
	}
}

// A path may be a symbolic link into a volume. To replace the link itself would leave the volume with an old record.
func TestFileStoreFollowsALink(t *testing.T) {
	for name, there := range map[string]bool{"to a file": true, "to a file that is still to be made": false} {
		t.Run(name, func(t *testing.T) {
			volume, dir := t.TempDir(), t.TempDir()
			target, link := filepath.Join(volume, "position"), filepath.Join(dir, "position")
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
			if there {
				s := NewFileStore(target)
				if err := s.Save(t.Context(), "n/1", []byte("old")); err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
			}
			s := NewFileStore(link)
			defer s.Close()
			if err := s.Save(t.Context(), "n/1", []byte("new")); err != nil {
				t.Fatal(err)
			}
			if _, err := NewFileStore(target).Load(t.Context(), "n"); err == nil || !fault.Retryable(err) {
				t.Errorf("the file is used by two: %v", err)
			}
			_ = s.Close()
			again := NewFileStore(target)
			defer again.Close()
			if got, err := again.Load(t.Context(), "n"); err != nil || string(got["n/1"]) != "new" {
				t.Errorf("the volume has %q, %v", got["n/1"], err)
			}
		})
	}
}

func TestFileStoreRefusesACycleOfLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "position")
	if err := os.Symlink(path, path); err != nil {
		t.Fatal(err)
	}
	s := NewFileStore(path)
	defer s.Close()
	if got, err := s.Load(t.Context(), "n"); err == nil {
		t.Errorf("it reads as %v", got)
	}
}

// Relays are found by the beginning of their names, while they hold their locks, and nothing is created.
func TestAStoreShowsTheRecordsOfSeveralRelays(t *testing.T) {
	type store interface {
		relay.Store
		LookNames(ctx context.Context, prefix string) (map[string][]byte, error)
	}
	c, path := testenv.FakeKafka(t), filepath.Join(t.TempDir(), "cp.json")
	file := NewFileStore(path)
	t.Cleanup(func() { _ = file.Close() })
	for kind, s := range map[string]struct{ written, read store }{
		"kafka": {kafkaStore(t, c.ListenAddrs(), "cp"), kafkaStore(t, c.ListenAddrs(), "cp")},
		"file":  {file, NewFileStore(path)},
	} {
		if got, err := s.read.LookNames(patient(t), "shop."); err != nil || len(got) > 0 {
			t.Errorf("%s: %v %v", kind, got, err)
		}
		if kind == "kafka" && c.TopicInfo("cp") != nil {
			t.Error("the topic was created")
		}
		for _, key := range []string{"shop.a/1", "shop.public.b/2.h", "shops.c/1", "shop/1"} {
			if err := s.written.Save(patient(t), key, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.read.LookNames(patient(t), "shop.")
		if keys := slices.Sorted(maps.Keys(got)); err != nil || strings.Join(keys, " ") != "shop.a/1 shop.public.b/2.h" {
			t.Errorf("%s: %v %v", kind, keys, err)
		}
	}
}
