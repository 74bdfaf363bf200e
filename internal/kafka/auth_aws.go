package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/walpost/walpost/internal/aws"
)

// iam is the mechanism AWS_MSK_IAM. The one of the client's library takes a region that is in no name from AWS_REGION only:
// that belongs to the whole process, where two relays may need two regions.
type iam struct {
	region      string // "" for that of the broker's name
	credentials func(context.Context) (aws.Credentials, error)
}

func (iam) Name() string { return "AWS_MSK_IAM" }

func (m iam) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	c, err := m.credentials(ctx)
	if err != nil {
		return nil, nil, err
	}
	if host, _, err = net.SplitHostPort(host); err != nil {
		return nil, nil, fmt.Errorf("broker address: %w", err)
	}
	region := m.region
	if region == "" {
		if region, err = aws.Region(host); err != nil {
			return nil, nil, fmt.Errorf("AWS_MSK_IAM: %w, or kafka.sasl.region", err)
		}
	}
	first, err := connectToMSK(c, region, host, time.Now())
	return iamSession{}, first, err
}

// connectToMSK is a presigned request for the action Connect, its parameters as JSON, as MSK's own library for Java writes them.
func connectToMSK(c aws.Credentials, region, host string, now time.Time) ([]byte, error) {
	const service = "kafka-cluster"
	signed := aws.Presign(c, service, region, host, url.Values{"Action": {service + ":Connect"}}, now, 15*time.Minute)
	out := map[string]string{"version": "2020_10_22", "host": host, "user-agent": "walpost"}
	for name := range signed {
		out[strings.ToLower(name)] = signed.Get(name)
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
