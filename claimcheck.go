package walpost

import (
	"context"
	"time"

	"github.com/walpost/walpost/internal/aws"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/sink"
)

// claimStore is the store of large values; nil without one.
func (c *Config) claimStore() sink.Store {
	switch to := &c.Records.ClaimCheck; {
	case !to.On():
		return nil
	case to.Store == "file":
		return outbox.FileStore(to.Path)
	default:
		return aws.NewBucket(to.Endpoint, to.Bucket, to.Prefix)
	}
}

// tryStore writes to the store: an object that every check writes anew, so that it leaves one behind at most.
func (c *Config) tryStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.claimStore().Put(ctx, "walpost-check", []byte("walpost check writes this to see whether it may.\n"))
}
