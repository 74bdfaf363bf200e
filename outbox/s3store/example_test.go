package s3store_test

import (
	"context"
	"errors"
	"io/fs"
	"log"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/outbox/s3store"
)

// Large payloads of an outbox are in a bucket.
func ExampleNew() {
	orders := func() (*outbox.Outbox, error) {
		client, err := minio.New("s3.eu-central-1.amazonaws.com", &minio.Options{
			Creds:      credentials.NewIAM(""), // or NewStaticV4, NewEnvAWS and others
			Secure:     true,
			Region:     "eu-central-1", // so that the client need not ask for it
			MaxRetries: 3,              // of each request; the default is 10
		})
		if err != nil {
			return nil, err
		}
		store, err := s3store.New(client, "payloads", "shop/")
		if err != nil {
			return nil, err
		}
		return outbox.New(outbox.Options{MaxPayload: 500_000, Store: store})
	}
	_ = orders
}

// A store that is away is not the fault of the message.
func ExampleError() {
	payloadOf := func(ctx context.Context, store *s3store.Store, value []byte) ([]byte, error) {
		payload, err := outbox.Fetch(ctx, store, value)
		if e, ok := errors.AsType[*s3store.Error](err); ok && (e.Retryable() || errors.Is(e, fs.ErrPermission)) {
			log.Printf("bucket %s, object %s: %v", e.Bucket, e.Object, e.Err)
			return nil, inbox.Retryable(err)
		}
		return payload, err
	}
	_ = payloadOf
}
