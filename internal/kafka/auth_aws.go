package kafka

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
)

// regional is the mechanism AWS_MSK_IAM for a region that the configuration names. The library takes the region from the broker's name,
// otherwise from AWS_REGION and from nowhere else: that belongs to the whole process, where two relays may need two regions.
type regional struct {
	region string
	auth   func(context.Context) (aws.Auth, error)
}

func (regional) Name() string { return "AWS_MSK_IAM" }

func (r regional) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	auth, err := r.auth(ctx)
	if err != nil {
		return nil, nil, err
	}
	if host, _, err = net.SplitHostPort(host); err != nil {
		return nil, nil, fmt.Errorf("broker address: %w", err)
	}
	first, err := r.sign(auth, host, time.Now())
	return iamSession{}, first, err
}

// sign makes a request for the action Connect, signed as version 4 of AWS's signatures wants a presigned URL, and writes its parameters as
// JSON, as MSK's own library for Java does.
func (r regional) sign(auth aws.Auth, host string, now time.Time) ([]byte, error) {
	const service = "kafka-cluster"
	stamp := now.UTC().Format("20060102T150405Z")
	scope := strings.Join([]string{stamp[:8], r.region, service, "aws4_request"}, "/")
	v := url.Values{
		"Action":              {service + ":Connect"},
		"X-Amz-Algorithm":     {"AWS4-HMAC-SHA256"},
		"X-Amz-Credential":    {auth.AccessKey + "/" + scope},
		"X-Amz-Date":          {stamp},
		"X-Amz-Expires":       {"300"}, // seconds
		"X-Amz-SignedHeaders": {"host"},
	}
	if auth.SessionToken != "" {
		v.Set("X-Amz-Security-Token", auth.SessionToken)
	}
	empty := sha256.Sum256(nil) // of the body
	canonical := sha256.Sum256([]byte("GET\n/\n" + strings.ReplaceAll(v.Encode(), "+", "%20") + "\nhost:" + host + "\n\nhost\n" + hex.EncodeToString(empty[:])))
	key := []byte("AWS4" + auth.SecretKey)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(canonical[:])) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	out := map[string]string{"version": "2020_10_22", "host": host, "user-agent": "walpost", "x-amz-signature": hex.EncodeToString(key)}
	for name := range v {
		out[strings.ToLower(name)] = v.Get(name)
	}
	return json.Marshal(out)
}

// iamSession is what follows the first message: the broker's answer is not empty where it accepts.
type iamSession struct{}

func (iamSession) Challenge(answer []byte) (done bool, next []byte, err error) {
	if len(answer) == 0 {
		return false, nil, errors.New("AWS_MSK_IAM: the broker's answer is empty")
	}
	return true, nil, nil
}
