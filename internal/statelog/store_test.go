package statelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
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

// store makes a store in the topic.
func (w *world) store(t testing.TB) *KafkaStore {
	t.Helper()
	return openStore(t, config(w.brokers, w.topic))
}

func openStore(t testing.TB, cfg Config) *KafkaStore {
	t.Helper()
	s, err := NewKafkaStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(patient(t)) })
	return s
}

func save(t testing.TB, s interface {
	Save(ctx context.Context, key string, value []byte) error
}, key, value string,
) {
	t.Helper()
	var bytes []byte
	if value != "" {
		bytes = []byte(value)
	}
	if err := s.Save(patient(t), key, bytes); err != nil {
		t.Fatal(err)
	}
}

// loads loads until there is an answer, and compares what the record under a key begins with.
func loads(t testing.TB, s *KafkaStore, key, want string) {
	t.Helper()
	name, _, _ := strings.Cut(key, "/")
	if got, err := s.Load(patient(t), name); err != nil || !strings.HasPrefix(string(got[key]), want) || want == "" && got[key] != nil {
		t.Errorf("load: %.20q, %v; want %s", got[key], err, want)
	}
}

func TestKafkaStore(t *testing.T) { eachKafka(t, nil, kafkaStoreStories) }

func kafkaStoreStories(t *testing.T, w *world) {
	s := w.store(t)
	storeStories(t, s)
	if is := w.settings(t, slices.Collect(maps.Keys(Checkpoints[0]))...); !maps.Equal(is, Checkpoints[0]) {
		t.Errorf("created with %+v", is)
	}
	loads(t, w.store(t), "shop/2", "\x00\xff") // another process
	short.SkipSlow(t)
	// An open transaction in front of the end, which is somebody else's, makes a read wait, and not come back with less.
	tx, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.TransactionalID(w.topic), kgo.TransactionTimeout(2*patience),
		kgo.DefaultProduceTopic(w.topic))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	for _, how := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(patient(t), &kgo.Record{Key: []byte("n/1"), Value: fmt.Append(nil, bool(how))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		s.log.patience = 3 * time.Second // longer than the wait of a fetch
		waitFor(t, func() bool {
			got, err := s.Load(patient(t), "n")
			if err == nil || !fault.Retryable(err) {
				t.Fatalf("read %q over an open transaction: %v", got["n/1"], err)
			}
			return errors.Is(err, kafka.ErrOpen)
		})
		s.log.patience = patience
		if err := tx.EndTransaction(patient(t), how); err != nil {
			t.Fatal(err)
		}
		loads(t, s, "n/1", map[kgo.TransactionEndTry]string{kgo.TryAbort: "", kgo.TryCommit: "true"}[how])
	}
	// Records that are deleted from the front, as retention and kafka-delete-records.sh do, are noticed.
	save(t, s, "other/1", "x")
	at, err := s.log.Read(patient(t), 0, every)
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "cleanup.policy", "compact,delete") // otherwise the brokers refuse to delete them
	w.truncate(t, at.Next-1)
	for what, s := range map[string]*KafkaStore{"the same": s, "another": w.store(t)} {
		var lost *LostRecords
		if got, err := s.Load(patient(t), "n"); !errors.As(err, &lost) || *lost != (LostRecords{Topic: w.topic, Name: "n", Start: at.Next - 1}) || fault.Retryable(err) || !fault.NeedsPerson(err) {
			t.Errorf("%s process: %v, %v", what, got, err)
		}
		loads(t, s, "other/1", "x")
	}
	// A topic that somebody deletes under a running relay is made again, and takes checkpoints again. One that somebody makes again is
	// another one, where nothing of the former one counts.
	was := w.id(t)
	w.deleteTopic(t)
	waitFor(t, func() bool { // the first Saves may still reach the former topic, also whole
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := s.Save(short, "n/1", []byte("z"))
		if err != nil && !fault.Retryable(err) {
			t.Fatal(err)
		}
		got, unread := s.Load(patient(t), "n")
		return err == nil && unread == nil && string(got["n/1"]) == "z" && w.id(t) != was && w.id(t) != [16]byte{}
	})
	w.deleteTopic(t)
	if got, err := s.Load(patient(t), "n"); err == nil && len(got) == 0 {
		t.Error("a topic that was deleted reads as an empty one")
	}
	w.recreate(t)
	waitFor(t, func() bool {
		got, err := s.Load(patient(t), "n")
		if err != nil && !fault.Retryable(err) {
			t.Fatal(err)
		}
		return err == nil && len(got) == 0
	})
}

// What can not be read is an error that may pass, and never an empty answer.
func TestKafkaStoreThatCanNotBeReadIsAnError(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.UnknownServerError} {
		for _, key := range []kmsg.Key{kmsg.ListOffsets, kmsg.Fetch} {
			t.Run(e.Message+" "+key.Name(), func(t *testing.T) {
				w := fakeWorld(t, nil)
				s := w.store(t)
				save(t, s, "n/1", "x")
				h := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: w.topic, Err: e, Count: -1})
				ctx, cancel := context.WithCancel(patient(t))
				go func() {
					_ = h.Wait(ctx, 2) // an error that ends the call sooner is as good
					cancel()
				}()
				got, err := s.Load(ctx, "n")
				cancel()
				if err == nil || !fault.Retryable(err) || !strings.Contains(err.Error(), "checkpoint topic: ") {
					t.Errorf("load: %v, %v", got, err)
				}
				h.Remove()
				loads(t, s, "n/1", "x")
			})
		}
	}
}

// Brokers that are down are a matter for whoever runs them, or the configuration.
func TestKafkaStoreSaysWhatToDoAboutBrokersThatAreNotReached(t *testing.T) {
	w := fakeWorld(t, nil)
	s := w.store(t)
	w.fake.Close()
	s.log.patience = 3 * time.Second
	if _, err := s.Load(patient(t), "n"); err == nil || !fault.Retryable(err) || !strings.HasPrefix(fault.Hint(err), "Start the brokers, or correct kafka.brokers ") {
		t.Errorf("load: %v (%s)", err, fault.Hint(err))
	}
}

func TestKafkaStoreThatCanNotBeWrittenIsAnError(t *testing.T) {
	w := fakeWorld(t, nil)
	c, s := w.fake, w.store(t)
	save(t, s, "n/1", "x")
	c.Fault(kfake.Fault{Keys: produce, Topic: w.topic, Err: kerr.TopicAuthorizationFailed, Count: 1})
	if err := s.Save(patient(t), "n/1", []byte("y")); err == nil || !fault.Retryable(err) || !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("save: %v", err)
	}
	save(t, s, "n/1", "z")
	// Not acknowledged in time: the error comes, and what is saved later wins.
	h := c.Fault(kfake.Fault{Keys: produce, Topic: w.topic, Err: kerr.NotEnoughReplicas, Count: -1})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_ = h.Wait(patient(t), 1)
		cancel()
	}()
	if err := s.Save(ctx, "n/1", []byte("late")); err == nil || !fault.Retryable(err) {
		t.Errorf("save: %v", err)
	}
	h.Remove()
	save(t, s, "n/1", "newest")
	loads(t, s, "n/1", "newest")
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
	w := fakeWorld(t, nil)
	s := w.store(t)
	save(t, s, "n/1", "x")
	s.log.patience = 3 * time.Second
	h := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.topic, Err: kerr.NotLeaderForPartition, Count: -1})
	if got, err := s.Load(patient(t), "n"); err == nil || !fault.Retryable(err) || !errors.Is(err, kerr.NotLeaderForPartition) {
		t.Errorf("load: %v, %v", got, err)
	}
	s.log.patience = patience
	ctx, cancel := context.WithCancel(patient(t))
	go func() {
		_ = h.Wait(ctx, 1)
		cancel()
	}()
	if got, err := s.Load(ctx, "n"); err == nil || ctx.Err() == nil {
		t.Errorf("a cancelled load: %v, %v", got, err)
	}
	h.Remove()
	loads(t, s, "n/1", "x")
}

// A Load may take longer than its patience, as long as it comes further.
func TestALoadTakesAsLongAsItNeeds(t *testing.T) {
	short.SkipSlow(t)
	w := fakeWorld(t, nil)
	s := w.store(t)
	for i := range 10 { // large records, so that the topic takes several fetches
		save(t, s, "n/1", fmt.Sprint(i, " ", strings.Repeat("x", 400_000)))
	}
	const delay = 900 * time.Millisecond
	s.log.patience = 3 * time.Second
	var fetches atomic.Int32
	w.fake.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		fetches.Add(1)
		w.fake.SleepControl(func() { time.Sleep(delay) })
		return nil, nil, false
	})
	loads(t, s, "n/1", "9 ")
	if n := fetches.Load(); time.Duration(n)*delay <= s.log.patience {
		t.Errorf("the load took no longer than its patience: %d fetches", n)
	}
}

// Where the brokers refuse the settings that keep the topic small, it is made without them.
func TestACheckpointTopicIsMadeWithoutSettingsThatAreRefused(t *testing.T) {
	w := fakeWorld(t, nil)
	w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.PolicyViolation, Count: -1, When: func(req kmsg.Request) bool {
		return len(req.(*kmsg.CreateTopicsRequest).Topics[0].Configs) > 1
	}})
	var log strings.Builder
	cfg := config(w.brokers, w.topic)
	cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	if _, err := openStore(t, cfg).Load(patient(t), "n"); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); !strings.Contains(said, "POLICY_VIOLATION") || !strings.Contains(said, "the brokers refuse") {
		t.Error(said)
	}
	if is := w.settings(t, "cleanup.policy"); is["cleanup.policy"] != "compact" {
		t.Errorf("created with %v", is)
	}
}

// Only a record under a number says that a holder of the slot was there.
func TestLostRecordsAreToldByTheRecordsUnderANumber(t *testing.T) {
	for _, x := range []struct {
		keys []string
		lost bool
	}{
		{nil, true},
		{[]string{"n/12"}, false},
		{[]string{"n/12.1aae3fbc99fb4b07"}, false},
		{[]string{"n/halt/12", "n/skip/0"}, true},
		{[]string{"n/halt/12", "n/3"}, false},
	} {
		records := map[string][]byte{}
		for _, key := range x.keys {
			records[key] = []byte("x")
		}
		if held("n", records) == x.lost {
			t.Errorf("%v: held: %v", x.keys, !x.lost)
		}
	}
	lost := &LostRecords{Topic: "cp", Name: "n", Start: 7}
	later := *lost
	later.Start++
	if later.GapToken() == lost.GapToken() || !strings.Contains(fault.Hint(fmt.Errorf("read: %w", lost)), "walpost run --accept-gap="+lost.GapToken()) {
		t.Errorf("token %s, of a later loss %s, hint %q", lost.GapToken(), later.GapToken(), lost.Hint())
	}
}

// A flipped bit, or a missing end, gives an error or the same records: another position would skip events.
func TestADamagedBitIsNeverBelieved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	if err := NewFileStore(path).Save(t.Context(), "a/1.b", []byte(`{"lsn":"0/16B3748"}`)); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := NewFileStore(path).LookNames(t.Context(), "")
		if err == nil && (len(got) != 1 || string(got["a/1.b"]) != `{"lsn":"0/16B3748"}`) {
			t.Errorf("%s: %q", what, got)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d, %q", bit, i, good[i]), bad)
		}
		check(fmt.Sprintf("cut off after %d bytes", i), good[:i])
	}
}

func TestAFileThatCannotBeThereIsNoEmptyOne(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, dir + "/missing/checkpoint"} {
		f := NewFileStore(path)
		_, loaded := f.Load(t.Context(), "shop")
		_, looked := f.Look(t.Context(), "shop")
		for _, err := range []error{loaded, looked} {
			if err == nil || fault.Retryable(err) || !strings.Contains(fault.Hint(err), path) {
				t.Errorf("%s: %v", path, err)
			}
			if !fault.Passing(err, true) {
				t.Errorf("%s: a relay that has worked before doesn't wait: %v", path, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
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
	w, path := fakeWorld(t, nil), filepath.Join(t.TempDir(), "cp.json")
	file := NewFileStore(path)
	t.Cleanup(func() { _ = file.Close() })
	for kind, s := range map[string]struct{ written, read store }{
		"kafka": {w.store(t), w.store(t)},
		"file":  {file, NewFileStore(path)},
	} {
		if got, err := s.read.LookNames(patient(t), "shop."); err != nil || len(got) > 0 {
			t.Errorf("%s: %v %v", kind, got, err)
		}
		if kind == "kafka" && w.fake.TopicInfo(w.topic) != nil {
			t.Error("the topic was created")
		}
		for _, key := range []string{"shop.a/1", "shop.public.b/2.h", "shops.c/1", "shop/1"} {
			save(t, s.written, key, "x")
		}
		got, err := s.read.LookNames(patient(t), "shop.")
		if keys := slices.Sorted(maps.Keys(got)); err != nil || strings.Join(keys, " ") != "shop.a/1 shop.public.b/2.h" {
			t.Errorf("%s: %v %v", kind, keys, err)
		}
	}
}
