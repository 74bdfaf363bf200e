package aws

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A world is a process with an environment and a clock, and the server that it asks.
type world struct {
	source
	vars  map[string]string
	clock time.Time
	asked []string // what the server was asked
	fails bool
}

func newWorld(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, key string, expires time.Time)) (*world, string) {
	t.Helper()
	w := &world{vars: map[string]string{}, clock: at}
	w.env, w.now = func(name string) string { return w.vars[name] }, func() time.Time { return w.clock }
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // a wrong form is an empty one
		w.asked = append(w.asked, strings.TrimRight(r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.PostForm.Encode(), " "))
		if w.fails {
			rw.WriteHeader(http.StatusForbidden)
			fmt.Fprint(rw, `<ErrorResponse><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>No OpenIDConnect provider found</Message></Error></ErrorResponse>`)
			return
		}
		answer(rw, r, fmt.Sprintf("KEY%d", len(w.asked)), w.clock.Add(time.Hour))
	}))
	t.Cleanup(server.Close)
	return w, server.URL
}

// logins wants the key that each login has, some time after the one before.
func (w *world) logins(t *testing.T, logins ...any) {
	t.Helper()
	for i := 0; i < len(logins); i += 2 {
		w.clock = w.clock.Add(logins[i].(time.Duration))
		c, err := w.credentials(context.Background())
		if want := logins[i+1].(string); c.AccessKey != want || (err == nil) != (want != "") {
			t.Errorf("login %d: %s, %v; must be %q", i/2+1, c.AccessKey, err, want)
		} else if err == nil && (c.SecretKey != "SECRET" || c.SessionToken != "SESSION") {
			t.Errorf("login %d: %#v has not the whole answer", i/2+1, c)
		}
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// IRSA: the kubelet replaces the file of the token, STS exchanges it.
func TestAWebIdentityIsExchangedAndRenewedBeforeItExpires(t *testing.T) {
	w, url := newWorld(t, func(rw http.ResponseWriter, _ *http.Request, key string, expires time.Time) {
		fmt.Fprintf(rw, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
			<AccessKeyId>%s</AccessKeyId><SecretAccessKey>SECRET</SecretAccessKey><SessionToken>SESSION</SessionToken><Expiration>%s</Expiration>
			</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, key, expires.Format(time.RFC3339))
	})
	token := file(t, "token", "one\n")
	w.vars = map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/walpost", "AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ENDPOINT_URL_STS": url}
	w.logins(t, time.Duration(0), "KEY1", 54*time.Minute, "KEY1")
	if err := os.WriteFile(token, []byte("two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.logins(t, 2*time.Minute, "KEY2")
	const want = "POST /  Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A111122223333%3Arole%2Fwalpost&RoleSessionName=walpost&Version=2011-06-15&WebIdentityToken="
	if len(w.asked) != 2 || w.asked[0] != want+"one" || w.asked[1] != want+"two" {
		t.Errorf("asked %q, must be %q with one and two", w.asked, want)
	}
	w.fails = true
	w.logins(t, 57*time.Minute, "KEY2", 4*time.Minute, "") // the old ones are used as long as they are valid
	_, err := w.credentials(context.Background())
	if err == nil || !strings.Contains(err.Error(), "403 Forbidden: InvalidIdentityToken: No OpenIDConnect provider found") || strings.Contains(err.Error(), "two") {
		t.Errorf("refused: %v", err)
	}
	w.fails = false
	w.logins(t, time.Duration(0), "KEY6")
	w.vars["AWS_ROLE_ARN"] = "arn:aws:iam::111122223333:role/another"
	w.logins(t, time.Duration(0), "KEY7")
	_ = os.Remove(token)
	w.logins(t, 2*time.Hour, "")
}

func TestAPodIdentityIsAskedForWithItsToken(t *testing.T) {
	w, url := newWorld(t, func(rw http.ResponseWriter, _ *http.Request, key string, expires time.Time) {
		fmt.Fprintf(rw, `{"AccessKeyId":%q,"SecretAccessKey":"SECRET","Token":"SESSION","AccountId":"111122223333","Expiration":%q}`, key, expires.Format(time.RFC3339))
	})
	w.vars = map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": url + "/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file(t, "token", "jwt\n")}
	w.logins(t, time.Duration(0), "KEY1", 54*time.Minute, "KEY1", 2*time.Minute, "KEY2")
	if len(w.asked) != 2 || w.asked[0] != "GET /v1/credentials jwt" {
		t.Errorf("asked %q", w.asked)
	}
	// Keys in the environment come first, as in AWS's SDKs.
	w.vars["AWS_ACCESS_KEY_ID"], w.vars["AWS_SECRET_ACCESS_KEY"], w.vars["AWS_SESSION_TOKEN"] = "OWN", "SECRET", "SESSION"
	w.logins(t, time.Duration(0), "OWN")
}

// The token of a container goes to nobody who can only be found by a name.
func TestTheTokenOfAContainerStaysOnItsHost(t *testing.T) {
	for endpoint, wrong := range map[string]bool{
		"http://evil.example/v1": true, "http://10.0.0.1/v1": true, "http://169.254.170.2.evil.example/": true,
		"http://127.0.0.1:1/v1": false, "http://[::1]:1/v1": false, "https://127.0.0.1:1/v1": false,
	} {
		w, _ := newWorld(t, nil)
		w.vars = map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "jwt"}
		_, err := w.credentials(context.Background())
		if err == nil || strings.Contains(err.Error(), "must be https") != wrong {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

func TestWithoutAnEnvironmentItIsSaidWhichOneIsNeeded(t *testing.T) {
	w, _ := newWorld(t, nil)
	if _, err := w.credentials(context.Background()); err == nil || !strings.Contains(err.Error(), "AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN") {
		t.Error(err)
	}
	for region, want := range map[string]string{"": "https://sts.amazonaws.com", "eu-central-1": "https://sts.eu-central-1.amazonaws.com", "cn-north-1": "https://sts.cn-north-1.amazonaws.com.cn"} {
		w.vars["AWS_REGION"] = region
		if got := w.sts(); got != want {
			t.Errorf("STS of %s is %s, must be %s", region, got, want)
		}
	}
}

func TestCredentialsDoNotPrintTheirSecrets(t *testing.T) {
	c := Credentials{AccessKey: "AKID", SecretKey: "hunter2", SessionToken: "hunter3"}
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c)} {
		if strings.Contains(text, "hunter") {
			t.Error(text)
		}
	}
}
