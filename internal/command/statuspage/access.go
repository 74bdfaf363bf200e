package statuspage

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

// TLS names PEM files, which are read again for every connection: a renewed certificate needs no restart.
type TLS struct {
	// A PEM file with the certificate and its intermediates.
	CertFile string `yaml:"cert_file" example:"/etc/walpost/http.pem"`
	// A PEM file with the certificate's key.
	KeyFile string `yaml:"key_file" example:"/etc/walpost/http.key"`
}

func (t *TLS) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		return &pair, err
	}}
}

func (c Config) validateAccess(found *conf.Problems) {
	c.Password.Check(found, "http.password", c.PasswordFile)
	if (c.Username == "") != (c.Password == "" && c.PasswordFile == "") {
		found.Add("http", conf.MustHave, "both username and password (or password_file), or neither", nil)
	}
	if strings.Contains(c.Username, ":") {
		found.Add("http.username", conf.MustBe, "without a colon", c.Username)
	}
	if c.TLS == nil {
		return
	}
	if c.TLS.CertFile == "" || c.TLS.KeyFile == "" {
		found.Add("http.tls", conf.MustHave, "both cert_file and key_file", nil)
	} else if _, err := c.TLS.config().GetCertificate(nil); err != nil {
		found.Try("http.tls.cert_file", fmt.Errorf("with http.tls.key_file: %w", err))
	}
}

// URL is where a server with this configuration answers, if it listens on addr.
func (c Config) URL(addr string) string {
	if c.TLS != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// guarded asks for the user and the password of the configuration. A probe without them learns no more than the code.
func (c Config) guarded(next http.Handler) http.Handler {
	if c.Username == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if probe := r.URL.Path == "/livez" || r.URL.Path == "/readyz"; probe && r.Header.Get("Authorization") == "" {
			next.ServeHTTP(brief{w}, r)
			return
		}
		password, err := c.Password.Or(c.PasswordFile) // a file may have another one now
		user, given, asked := r.BasicAuth()
		switch {
		case err != nil:
			answer(w, http.StatusServiceUnavailable, "http.password_file: "+err.Error())
		case asked && same(user, c.Username)&same(given, password) == 1:
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="walpost", charset="UTF-8"`)
			answer(w, http.StatusUnauthorized, "http.username and its password are required")
		}
	})
}

// same takes as long for any two texts of their lengths.
func same(a, b string) int {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:])
}

// brief is an answer without its text.
type brief struct{ http.ResponseWriter }

func (brief) Write(p []byte) (int, error) { return len(p), nil }
