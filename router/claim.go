package router

import (
	"net/url"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/claim"
	"github.com/walpost/walpost/internal/size"
)

// ClaimCheck says which values go to a store instead of Kafka, and to which one.
type ClaimCheck struct {
	// Larger values go to the store, and a [claim](write-events.md#in-the-relay) replaces them in the
	// record. With `0`, none do.
	Over size.Bytes `yaml:"over" min:"0" example:"500KiB"`
	// A bucket or a folder.
	Store string `yaml:"store" words:"|s3|file"`
	// The folder, which must exist.
	Path string `yaml:"path" example:"/srv/payloads"`
	// The URL of the bucket's region or server. Credentials come from the environment, as
	// [for MSK](cloud-kafka.md#amazon-msk).
	Endpoint string `yaml:"endpoint" example:"https://s3.eu-central-1.amazonaws.com"`
	// The bucket.
	Bucket string `yaml:"bucket" pattern:"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$" want:"the name of a bucket" example:"payloads"`
	// The prefix of the objects' names.
	Prefix string `yaml:"prefix" pattern:"^([A-Za-z0-9_-][A-Za-z0-9._/-]*)?$" want:"letters, digits, '.', '_', '-' and '/'" example:"shop/"`
}

// On reports whether there are values that go to a store.
func (c *ClaimCheck) On() bool { return c.Over > 0 }

// leastOver is the least bound: a claim is smaller.
const leastOver = 1 << 10

func (c *ClaimCheck) validate(ps *conf.Problems) {
	const at = "records.claim_check."
	if !c.On() {
		return
	}
	if c.Over < leastOver {
		ps.Add(at+"over", conf.MustBe, "0 or at least 1KiB", c.Over)
	}
	switch c.Store {
	case "":
		ps.Add(at+"store", conf.Required, "with records.claim_check.over", nil)
	case "file":
		if c.Path == "" {
			ps.Add(at+"path", conf.Required, "with the store file", nil)
		}
	case "s3":
		if u, err := url.Parse(c.Endpoint); err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.Scheme+"://"+u.Host != strings.TrimSuffix(c.Endpoint, "/") || strings.HasSuffix(u.Host, ":") {
			ps.Add(at+"endpoint", conf.MustBe, "an https or http URL with a host and nothing after it", c.Endpoint)
		}
		if c.Bucket == "" {
			ps.Add(at+"bucket", conf.Required, "with the store s3", nil)
		}
	}
}

// claimHeader is the header of a record whose value is a claim: the key of the payload in the store.
const claimHeader = "walpost.claim"

// claim replaces a large value by a claim.
func (c *ClaimCheck) claim(rec *cdc.Record) {
	if !c.On() || int64(len(rec.Value)) <= int64(c.Over) {
		return
	}
	of := claim.Of(rec.Value)
	rec.Claim = &cdc.Claim{Key: of.Key, Payload: rec.Value, Size: len(rec.Value)}
	rec.Value = of.Value()
	rec.Headers = append(rec.Headers, cdc.Header{Key: claimHeader, Value: []byte(of.Key)})
}
