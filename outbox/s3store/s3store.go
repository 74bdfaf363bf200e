// Package s3store keeps large payloads in a bucket of S3, or of a compatible store. It is
// an outbox.Store:
//
//	client, err := minio.New("s3.eu-central-1.amazonaws.com", &minio.Options{Creds: credentials.NewIAM(""), Secure: true})
//	store, err := s3store.New(client, "payloads", "shop/")
//	orders, err := outbox.New(outbox.Options{MaxPayload: 500_000, Store: store})
//
// It is a separate package, so that only programs that import it link the S3 client.
package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/walpost/walpost/outbox"
)

// A Store is an outbox.Store in a bucket. Its errors are of the type *Error. The bucket's settings
// determine encryption, versioning and expiry of the objects.
type Store struct {
	client         minio.Core
	bucket, prefix string
}

var _ outbox.Store = (*Store)(nil)

// New returns a Store for the objects in a bucket whose names begin with the prefix, such as
// "shop/". The client has the address, the credentials and the number of attempts. New makes no
// connections.
func New(client *minio.Client, bucket, prefix string) (*Store, error) {
	if client == nil {
		return nil, errors.New("s3store: the client is nil")
	}
	if err := s3utils.CheckValidBucketNameStrict(bucket); err != nil {
		return nil, fmt.Errorf("s3store: bucket %q: %w", bucket, err)
	}
	if err := s3utils.CheckValidObjectNamePrefix(prefix); err != nil {
		return nil, fmt.Errorf("s3store: prefix %q: %w", prefix, err)
	}
	return &Store{client: minio.Core{Client: client}, bucket: bucket, prefix: prefix}, nil
}

// Put implements outbox.Store with one request, so an object either is complete or doesn't exist.
// It overwrites an existing object. The bytes are the same, because the key contains their digest,
// but this renews the object's time. Otherwise, a rule that removes old objects could remove the
// payload of an event that was written again.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	_, err := s.client.Client.PutObject(ctx, s.bucket, s.prefix+key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{DisableMultipart: true, ContentType: "application/octet-stream"})
	return s.fault(key, err)
}

// Get implements outbox.Store. The context must not end before the payload has been read.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	r, _, _, err := s.client.GetObject(ctx, s.bucket, s.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.fault(key, err)
	}
	return &body{ReadCloser: r, store: s, key: key}, nil
}

// body is an object that is read.
type body struct {
	io.ReadCloser
	store *Store
	key   string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a Reader returns io.EOF itself
		err = b.store.fault(b.key, err)
	}
	return n, err
}

// fault makes an Error.
func (s *Store) fault(key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Bucket: s.bucket, Object: s.prefix + key, Err: err}
}

// An Error is the store's error response, or the reason that there was no response. By errors.Is,
// it matches fs.ErrNotExist if the object doesn't exist, and fs.ErrPermission if the store refuses
// the credentials or the request.
type Error struct {
	Bucket string
	Object string
	Err    error // a minio.ErrorResponse, or an error of the network or of the context
}

func (e *Error) Error() string {
	said := e.Err.Error()
	if r, ok := e.response(); ok {
		said = fmt.Sprintf("%s (%s, HTTP %d)", strings.TrimRight(r.Message, ". "), r.Code, r.StatusCode)
	}
	return fmt.Sprintf("s3://%s/%s: %s", e.Bucket, e.Object, said)
}

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) response() (r minio.ErrorResponse, ok bool) { return r, errors.As(e.Err, &r) }

// Is is called by errors.Is.
func (e *Error) Is(target error) bool {
	r, _ := e.response()
	switch target {
	case fs.ErrNotExist:
		return r.Code == minio.NoSuchKey // not NoSuchBucket, which says nothing about the object
	case fs.ErrPermission:
		return r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden ||
			r.Code == "ExpiredToken" || r.Code == "InvalidToken"
	}
	return false
}

// Retryable reports whether another attempt can help: the store couldn't be reached, didn't answer
// in time, or asked the client to retry later. The client has already used up its own attempts.
func (e *Error) Retryable() bool {
	r, answered := e.response()
	if !answered {
		return !errors.Is(e.Err, context.Canceled)
	}
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return r.StatusCode >= 500 || r.Code == "RequestTimeout" || r.Code == "SlowDown"
}
