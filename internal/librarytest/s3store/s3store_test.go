//go:build linux || darwin

package s3store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/walpost/walpost/internal/aws"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/s3store"
)

// bucket makes a bucket.
func bucket(t *testing.T, c *minio.Client) string {
	t.Helper()
	name := strings.ToLower(rand.Text())
	if err := c.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t *testing.T, c *minio.Client, bucket, prefix string) outbox.Store {
	t.Helper()
	s, err := s3store.New(c, bucket, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stores are all stores of walpost. written returns the time of a key.
var stores = map[string]func(t *testing.T) (s outbox.Store, written func(key string) time.Time){
	"FileStore": func(t *testing.T) (outbox.Store, func(string) time.Time) {
		folder := t.TempDir()
		return outbox.FileStore(folder), func(key string) time.Time {
			info, err := os.Stat(filepath.Join(folder, key))
			if err != nil {
				t.Fatal(err)
			}
			return info.ModTime()
		}
	},
	"s3store, signature 4": func(t *testing.T) (outbox.Store, func(string) time.Time) {
		return s3(t, credentials.NewStaticV4, "shop/payloads/")
	},
	"a relay's client": func(t *testing.T) (outbox.Store, func(string) time.Time) {
		const prefix = "shop/x-1/"
		s, written, in := s3In(t, credentials.NewStaticV4, prefix)
		return relaysStore{aws.NewBucket("http://"+shared(t).Address(), in, prefix), s}, written
	},
	"s3store, signature 2": func(t *testing.T) (outbox.Store, func(string) time.Time) { return s3(t, credentials.NewStaticV2, "") },
}

func s3(t *testing.T, sign func(id, secret, token string) *credentials.Credentials, prefix string) (outbox.Store, func(string) time.Time) {
	s, written, _ := s3In(t, sign, prefix)
	return s, written
}

// s3In is s3 with the name of the bucket.
func s3In(t *testing.T, sign func(id, secret, token string) *credentials.Credentials, prefix string) (s outbox.Store, written func(string) time.Time, b string) {
	c := shared(t).client(t, sign, secret)
	b = bucket(t, c)
	return open(t, c, b, prefix), func(key string) time.Time {
		info, err := c.StatObject(t.Context(), b, prefix+key, minio.StatObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return info.LastModified
	}, b
}

func keyOf(data []byte) string { return fmt.Sprintf("%s-%x", outbox.NewID(), sha256.Sum256(data)) }

func put(t *testing.T, s outbox.Store, data []byte) (key string) {
	t.Helper()
	key = keyOf(data)
	if err := s.Put(t.Context(), key, data); err != nil {
		t.Fatal(err)
	}
	return key
}

func TestEveryStoreKeepsTheContract(t *testing.T) {
	for contract, holds := range map[string]func(t *testing.T, s outbox.Store, written func(key string) time.Time){
		"Get returns what Put stored": func(t *testing.T, s outbox.Store, _ func(string) time.Time) {
			for _, size := range []int{0, 1, 17 << 20} {
				want := bytes.Repeat([]byte{0xff, 0, '\r', '\n'}, size/4+1)[:size]
				r, err := s.Get(t.Context(), put(t, s, want))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r)
				if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes became %d, %v", len(want), len(got), err)
				}
			}
		},
		"a key that is not there": func(t *testing.T, s outbox.Store, _ func(string) time.Time) {
			if _, err := s.Get(t.Context(), keyOf(nil)); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				t.Errorf("Get: %v", err)
			}
		},
		// A second Put of the payload of an event protects it from a rule that removes what is old.
		"a second Put renews the time": func(t *testing.T, s outbox.Store, written func(string) time.Time) {
			data := []byte("twice")
			key := put(t, s, data)
			first := written(key)
			for deadline := time.Now().Add(time.Minute); !written(key).After(first); { // some stores have times in seconds
				if err := s.Put(t.Context(), key, data); err != nil {
					t.Fatal(err)
				}
				if time.Now().After(deadline) {
					t.Fatal("the time is still that of the first Put")
				}
			}
		},
		"many put the same at the same time": func(t *testing.T, s outbox.Store, _ func(string) time.Time) {
			data := bytes.Repeat([]byte("x"), 1<<20)
			key := keyOf(data)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if err := s.Put(t.Context(), key, data); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			r, err := s.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); !bytes.Equal(got, data) || errors.Join(err, r.Close()) != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		},
	} {
		for name, start := range stores {
			t.Run(contract+"/"+name, func(t *testing.T) {
				t.Parallel()
				s, written := start(t)
				holds(t, s, written)
			})
		}
	}
}

// calls are the methods of a Store.
var calls = map[string]func(ctx context.Context, s outbox.Store) error{
	"Put": func(ctx context.Context, s outbox.Store) error { return s.Put(ctx, keyOf(nil), []byte("x")) },
	"Get": func(ctx context.Context, s outbox.Store) error { _, err := s.Get(ctx, keyOf(nil)); return err },
}

// Each fault is an error of its kind, for each method.
func TestErrorsAreValues(t *testing.T) {
	server := shared(t)
	good := server.client(t, credentials.NewStaticV4, secret)
	b := bucket(t, good)
	gone, err := minio.New("127.0.0.1:1", &minio.Options{Creds: credentials.NewStaticV4(identity, secret, ""), MaxRetries: 1, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for fault, c := range map[string]struct {
		store             outbox.Store
		ctx               context.Context
		denied, retryable bool
		says              string
	}{
		"wrong secret, signature 4": {open(t, server.client(t, credentials.NewStaticV4, "wrong"), b, "p/"), t.Context(), true, false, "SignatureDoesNotMatch"},
		"wrong secret, signature 2": {open(t, server.client(t, credentials.NewStaticV2, "wrong"), b, "p/"), t.Context(), true, false, "SignatureDoesNotMatch"},
		"no bucket":                 {open(t, good, "nobucket", "p/"), t.Context(), false, false, "NoSuchBucket"},
		"no server":                 {open(t, gone, b, "p/"), t.Context(), false, true, "connection refused"},
		"context that has ended":    {open(t, good, b, "p/"), ended, false, false, "context canceled"},
	} {
		for method, call := range calls {
			err := call(c.ctx, c.store)
			var e *s3store.Error
			if !errors.As(err, &e) {
				t.Errorf("%s, %s: %v", fault, method, err)
				continue
			}
			if errors.Is(err, fs.ErrPermission) != c.denied || e.Retryable() != c.retryable || errors.Is(err, fs.ErrNotExist) ||
				!strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "s3://"+e.Bucket+"/p/") {
				t.Errorf("%s, %s: %v (denied %v, retryable %v, not there %v)", fault, method, err, errors.Is(err, fs.ErrPermission), e.Retryable(), errors.Is(err, fs.ErrNotExist))
			}
		}
	}
}

// A deadline ends each method while the server does not answer, also between the parts of an object.
func TestADeadlineEndsEachCall(t *testing.T) {
	server := shared(t)
	c := server.client(t, credentials.NewStaticV4, secret)
	s := open(t, c, bucket(t, c), "")
	key := put(t, s, make([]byte, 16<<20)) // more than the buffers of a connection
	var (
		ctx context.Context
		r   io.ReadCloser
	)
	for limit, err := 5*time.Second, context.DeadlineExceeded; err != nil; limit *= 2 {
		var cancel func()
		ctx, cancel = context.WithTimeout(t.Context(), limit)
		defer cancel()
		if r, err = s.Get(ctx, key); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	defer r.Close()
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	for method, call := range calls {
		err := call(ctx, s)
		var e *s3store.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || !e.Retryable() {
			t.Errorf("%s: %v", method, err)
		}
	}
	_, err := io.Copy(io.Discard, r)
	var e *s3store.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || !e.Retryable() {
		t.Errorf("read: %v", err)
	}
}

func TestNewRefusesWhatIsNoPlace(t *testing.T) {
	c, err := minio.New("127.0.0.1:1", &minio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]struct {
		client         *minio.Client
		bucket, prefix string
	}{"client": {nil, "bucket", ""}, "bucket": {c, "", ""}, "bucket \"A_B\"": {c, "A_B", ""}, "prefix": {c, "bucket", "\xff"}} {
		if s, err := s3store.New(p.client, p.bucket, p.prefix); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v %v", name, s, err)
		}
	}
}

// A large payload goes to the bucket within the transaction, and comes back by the event's claim.
func TestALargePayloadTravelsThroughTheBucket(t *testing.T) {
	store, _ := s3(t, credentials.NewStaticV4, "shop/")
	orders, err := outbox.New(outbox.Options{MaxPayload: 100, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	up, _ := orders.DDL()
	pg.Exec(t, dsn, up)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	payload := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := orders.Write(t.Context(), tx, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: payload}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	value := []byte(pg.Value(t, dsn, "SELECT payload::text FROM outbox"))
	if got, err := outbox.Fetch(t.Context(), store, value); err != nil || !bytes.Equal(got, payload) || len(value) > 300 {
		t.Errorf("%s: %d bytes, %v", value, len(got), err)
	}
}
