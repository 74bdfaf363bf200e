package aws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fault"
)

// A Bucket writes objects to a bucket of S3, or of a store with the same protocol. It can be used by several goroutines.
type Bucket struct {
	base, name, region string // base is the URL of the objects
	client             http.Client
}

// NewBucket returns the bucket at the URL of a store, for objects whose names begin with prefix. Neither has characters
// that a URL must escape. It connects nowhere.
func NewBucket(endpoint, bucket, prefix string) *Bucket {
	b := &Bucket{name: bucket + "/" + prefix}
	u, err := url.Parse(endpoint)
	if err != nil {
		panic(err) // the configuration was validated
	}
	if b.region, err = Region(u.Hostname()); err != nil {
		b.region = "us-east-1" // what stores with the same protocol expect
	}
	if u.Path = "/" + prefix; suffix.MatchString(u.Hostname()) && !strings.Contains(bucket, ".") {
		u.Host = bucket + "." + u.Host
	} else {
		u.Path = "/" + bucket + u.Path
	}
	b.base = u.String()
	b.client = http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: timeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the signature is for this host
	}
	return b
}

// Put writes an object by one request, so that it is complete or not there. It also writes an object that is there already,
// so that rules that remove old objects count from the newest Put.
func (b *Bucket) Put(ctx context.Context, key string, data []byte) error {
	if err := b.put(ctx, key, data); err != nil {
		return fmt.Errorf("s3://%s%s: %w", b.name, key, err)
	}
	return nil
}

func (b *Bucket) put(ctx context.Context, key string, data []byte) error {
	c, err := FromEnvironment(ctx)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, b.base+key, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	sum := sha256.Sum256(data)
	signS3(req, c, b.region, hex.EncodeToString(sum[:]), time.Now())
	resp, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode == http.StatusOK {
		return nil
	}
	var answer struct{ Code, Message string }
	_ = xml.Unmarshal(body, &answer) // a proxy's answer has neither
	err = refused(resp.StatusCode, answer.Code, answer.Message)
	switch {
	case answer.Code == "AccessDenied":
		err = fault.WithHint(err, "The credentials of walpost need s3:PutObject for the bucket, and the rights to its KMS key if it has one.")
	case answer.Code == "RequestTimeTooSkewed":
		err = fault.WithHint(err, "Correct the clock of walpost's machine.")
	case answer.Code == "InvalidAccessKeyId", answer.Code == "SignatureDoesNotMatch", answer.Code == "ExpiredToken":
		err = fault.WithHint(err, "Correct the credentials in walpost's environment.")
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusMovedPermanently, answer.Code == "AuthorizationHeaderMalformed":
		err = fault.WithHint(err, "Create the bucket, or correct records.claim_check.bucket and endpoint. The endpoint must be the one of the bucket's region.")
	}
	return err
}

// signS3 signs a request whose body has this SHA-256. The server compares the body with it.
func signS3(req *http.Request, c Credentials, region, body string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	scope := strings.Join([]string{stamp[:8], region, "s3", "aws4_request"}, "/")
	req.Header.Set("X-Amz-Content-Sha256", body)
	req.Header.Set("X-Amz-Date", stamp)
	names, values := "host;x-amz-content-sha256;x-amz-date", "host:"+req.URL.Host+"\nx-amz-content-sha256:"+body+"\nx-amz-date:"+stamp+"\n"
	if c.SessionToken != "" {
		req.Header.Set("X-Amz-Security-Token", c.SessionToken)
		names, values = names+";x-amz-security-token", values+"x-amz-security-token:"+c.SessionToken+"\n"
	}
	signature := sign(c, scope, stamp, strings.Join([]string{req.Method, req.URL.EscapedPath(), "", values, names, body}, "\n"))
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+c.AccessKey+"/"+scope+", SignedHeaders="+names+", Signature="+signature)
}
