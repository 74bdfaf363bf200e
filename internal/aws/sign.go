// Package aws signs logins for MSK and RDS, and finds the credentials of this process, without AWS's SDK.
package aws

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Presign adds to query what makes it a presigned request: GET https://host/ for a service, signed by version 4 of AWS's
// signatures (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html). host has the port unless it's the default.
func Presign(c Credentials, service, region, host string, query url.Values, now time.Time, valid time.Duration) url.Values {
	stamp := now.UTC().Format("20060102T150405Z")
	scope := strings.Join([]string{stamp[:8], region, service, "aws4_request"}, "/")
	signed := url.Values{
		"X-Amz-Algorithm":     {"AWS4-HMAC-SHA256"},
		"X-Amz-Credential":    {c.AccessKey + "/" + scope},
		"X-Amz-Date":          {stamp},
		"X-Amz-Expires":       {strconv.Itoa(int(valid / time.Second))},
		"X-Amz-SignedHeaders": {"host"},
	}
	for name, values := range query {
		signed[name] = values
	}
	if c.SessionToken != "" {
		signed.Set("X-Amz-Security-Token", c.SessionToken)
	}
	empty := sha256.Sum256(nil) // of the body
	signed.Set("X-Amz-Signature", sign(c, scope, stamp, "GET\n/\n"+encode(signed)+"\nhost:"+host+"\n\nhost\n"+hex.EncodeToString(empty[:])))
	return signed
}

// sign is the signature of a canonical request.
func sign(c Credentials, scope, stamp, request string) string {
	canonical := sha256.Sum256([]byte(request))
	key := []byte("AWS4" + c.SecretKey)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(canonical[:])) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

// encode writes a query as AWS signs it.
func encode(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// RDSToken is a password for a role with rds_iam, for 15 minutes: RDS looks at it only during the login. address is the
// endpoint of the database as host:port, because the signature covers it.
func RDSToken(c Credentials, region, address, user string, now time.Time) string {
	query := url.Values{"Action": {"connect"}, "DBUser": {user}}
	return address + "/?" + encode(Presign(c, "rds-db", region, address, query, now, 15*time.Minute))
}

var (
	suffix = regexp.MustCompile(`\.(amazonaws\.(com|com\.cn|eu)|c2s\.ic\.gov|sc2s\.sgov\.gov)$`)
	region = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)
)

// Region is the region of an endpoint: the one in its name, otherwise that of AWS_REGION or AWS_DEFAULT_REGION.
func Region(host string) (string, error) {
	if at := suffix.FindStringIndex(host); at != nil {
		labels := strings.Split(host[:at[0]], ".")
		for i := len(labels) - 1; i > 0; i-- { // the first label is a name that a user chose
			if region.MatchString(labels[i]) {
				return labels[i], nil
			}
		}
	}
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if set := os.Getenv(name); set != "" {
			return set, nil
		}
	}
	return "", fmt.Errorf("the name %s has no AWS region: set AWS_REGION", host)
}
