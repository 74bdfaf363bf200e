package statuspage

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// served is a server of a relay that streams, with a client that trusts the authority.
func served(t *testing.T, cfg Config, ca *testenv.Authority) (base string, client *http.Client) {
	t.Helper()
	relay := busy()
	relay.status.Turned = time.Now()
	cfg.Listen = "127.0.0.1:0"
	addr, stop, err := New(cfg, Build{}).Serve(relay, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	to := &http.Transport{DisableKeepAlives: true}
	if ca != nil {
		pool := x509.NewCertPool()
		pool.AddCert(ca.Cert)
		to.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return cfg.URL(addr), &http.Client{Transport: to, Timeout: time.Minute}
}

func fetch(t *testing.T, client *http.Client, url, user, password string) (code int, body string, serial int64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.TLS != nil {
		serial = resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	return resp.StatusCode, string(text), serial
}

func TestARenewedCertificateNeedsNoRestart(t *testing.T) {
	ca := testenv.NewAuthority(t)
	_, cert, key := ca.Pair("http")
	base, client := served(t, Config{TLS: &TLS{CertFile: cert, KeyFile: key}}, ca)
	code, _, first := fetch(t, client, base+"/api/status", "", "")
	if code != http.StatusOK || !strings.HasPrefix(base, "https://") {
		t.Fatalf("GET %s/api/status: %d", base, code)
	}
	ca.Pair("http") // over the old one
	if code, _, second := fetch(t, client, base+"/metrics", "", ""); code != http.StatusOK || second == first {
		t.Errorf("with a renewed certificate: %d, serial number %d, before %d", code, second, first)
	}
	if code, _, _ := fetch(t, client, strings.Replace(base, "https", "http", 1)+"/metrics", "", ""); code != http.StatusBadRequest {
		t.Errorf("without TLS: %d", code)
	}
}

func TestAUserIsAskedForExceptOfProbes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("right\n")
	base, client := served(t, Config{Username: "ops", PasswordFile: name}, nil)
	all := []string{"/", "/status.js", "/api/status", "/api/history", "/metrics", "/livez", "/readyz", "/readyz?standby=ok"}
	for _, c := range []struct {
		user, password string
		code           int
	}{
		{"ops", "right", 200}, {"ops", "wrong", 401}, {"ops", "", 401}, {"other", "right", 401}, {"", "", 401},
	} {
		for _, path := range all {
			probe := c.user == "" && (path == "/livez" || strings.HasPrefix(path, "/readyz"))
			code, body, _ := fetch(t, client, base+path, c.user, c.password)
			switch {
			case probe && (code != http.StatusOK || body != ""):
				t.Errorf("a probe of %s: %d %q", path, code, body)
			case !probe && code != c.code:
				t.Errorf("GET %s as %s:%s: %d, must be %d", path, c.user, c.password, code, c.code)
			case code != http.StatusOK && strings.Contains(body, "right"):
				t.Errorf("GET %s shows the password: %s", path, body)
			}
		}
	}
	write("changed\n")
	if code, _, _ := fetch(t, client, base+"/api/status", "ops", "changed"); code != http.StatusOK {
		t.Errorf("with the new password: %d", code)
	}
	write("")
	if code, _, _ := fetch(t, client, base+"/api/status", "ops", ""); code != http.StatusServiceUnavailable {
		t.Errorf("an empty file lets in: %d", code)
	}
	if code, _, _ := fetch(t, client, base+"/livez", "", ""); code != http.StatusOK {
		t.Errorf("a probe, while the file is empty: %d", code)
	}
}

// Clients that send nothing, or send for ever, hold nobody else up, and are cut off.
func TestClientsThatNeverEndAreCutOff(t *testing.T) {
	short.SkipSlow(t)
	base, client := served(t, Config{}, nil)
	var slow []net.Conn
	for i := range 300 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(conn, "GET /api/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		}
		slow = append(slow, conn)
	}
	if code, _, _ := fetch(t, client, base+"/api/status", "", ""); code != http.StatusOK {
		t.Errorf("beside slow clients: %d", code)
	}
	for i, conn := range slow {
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute)) // the test's own limit
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatalf("client %d is not cut off: %v", i, err)
		}
	}
}

func TestHugeHeadersAreRefused(t *testing.T) {
	base, client := served(t, Config{}, nil)
	for size, want := range map[int]int{8 << 10: http.StatusOK, 64 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/api/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Huge", strings.Repeat("a", size))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // nothing of it is needed
		if resp.StatusCode != want {
			t.Errorf("a header of %d bytes: %d, must be %d", size, resp.StatusCode, want)
		}
	}
}

func TestWhatIsWrongWithTheAccessIsSaid(t *testing.T) {
	ca := testenv.NewAuthority(t)
	_, cert, key := ca.Pair("a")
	_, _, other := ca.Pair("b")
	for want, cfg := range map[string]Config{
		"":                                     {Username: "u", Password: "p", TLS: &TLS{cert, key}},
		"http.listen: must be host:port with ": {Listen: ":96400"},
		"http: must have both username and pa": {Username: "u"},
		"http: must have both username and p":  {PasswordFile: key},
		"http.username: must be without a col": {Username: "u:v", Password: "p"},
		"http.password_file: contradicts http": {Username: "u", Password: "p", PasswordFile: key},
		"http.tls: must have both cert_file a": {TLS: &TLS{CertFile: cert}},
		"http.tls.cert_file: with http.tls.ke": {TLS: &TLS{cert, other}},
	} {
		cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:0")
		var found conf.Problems
		cfg.Validate(&found)
		if text := found.Error(); len(found) != min(len(want), 1) || !strings.HasPrefix(text, want) {
			t.Errorf("%v, must be %q", found, want)
		}
	}
}
