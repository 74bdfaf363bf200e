//go:build linux || darwin

package s3store_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
)

//go:embed s3proxy_pom.xml
var s3proxyPOM []byte

const s3proxyVersion = "2.6.0" // as in s3proxy_pom.xml

var s3proxyJars = testenv.Jars{
	Name: "s3proxy-" + s3proxyVersion, What: "S3Proxy " + s3proxyVersion, POMs: map[string][]byte{"lib": s3proxyPOM},
}

// An s3proxy is a server with the protocol of S3. It checks signatures, and keeps objects in memory.
type s3proxy struct{ *testenv.JavaServer }

const (
	identity = "walpost"
	secret   = "the-secret-of-the-tests"
)

// started are the servers to close behind the last test.
var started []s3proxy

func TestMain(m *testing.M) {
	keeper.Init()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": identity, "AWS_SECRET_ACCESS_KEY": secret} { // of a relay
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := testenv.Main(m)
	for _, s := range started {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var sharedS3Proxy = sync.OnceValues(func() (s3proxy, error) {
	s, err := startS3Proxy()
	if err == nil {
		started = append(started, s)
	}
	return s, err
})

func shared(t *testing.T) s3proxy {
	t.Helper()
	s3proxyJars.Need(t, "S3Proxy")
	s, err := sharedS3Proxy()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startS3Proxy() (s s3proxy, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err = localpg.OnFreePorts(func() error {
		server, err := s3proxyJars.Server(ctx, "walpost-s3proxy-")
		if err != nil {
			return err
		}
		s = s3proxy{server}
		err = testenv.WriteProperties(s.File("s3proxy.conf"), map[string]string{
			"s3proxy.endpoint":      "http://" + s.Address(),
			"s3proxy.authorization": "aws-v2-or-v4",
			"s3proxy.identity":      identity,
			"s3proxy.credential":    secret,
			"jclouds.provider":      "transient-nio2",
			"jclouds.identity":      "nobody",
			"jclouds.credential":    "nothing",
		})
		if err == nil {
			err = s.Run([]string{"-Xmx384m"}, nil, "org.gaul.s3proxy.Main", "--properties", s.File("s3proxy.conf"))
		}
		if err == nil {
			err = s.Await(ctx, func() error {
				conn, err := net.Dial("tcp", s.Address())
				if err == nil {
					err = conn.Close()
				}
				return err
			})
		}
		if err != nil {
			return errors.Join(fmt.Errorf("s3proxy: start: %w", err), s.Close())
		}
		return nil
	})
	return s, err
}

// client returns a client that makes one attempt.
func (s s3proxy) client(t *testing.T, sign func(id, secret, token string) *credentials.Credentials, secret string) *minio.Client {
	t.Helper()
	c, err := minio.New(s.Address(), &minio.Options{Creds: sign(identity, secret, ""), MaxRetries: 1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
