//go:build linux || darwin

package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates for 127.0.0.1 and broker.test.
type Authority struct {
	testing.TB
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	File string // of Cert, PEM
	n    int64
}

// NewAuthority makes an Authority. Its files are removed with the test.
func NewAuthority(t testing.TB) *Authority {
	a := &Authority{TB: t, dir: t.TempDir(), n: 1}
	der, key := a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.key = key
	a.Cert, _ = x509.ParseCertificate(der)
	a.File = a.file("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *Authority) sign(c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	a.n++
	c.SerialNumber = big.NewInt(a.n)
	if c.Subject.CommonName == "" {
		c.Subject = pkix.Name{CommonName: "test"}
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-2 * time.Hour)
	parent, signer := a.Cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	return der, key
}

func (a *Authority) file(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.Fatal(err)
	}
	return path
}

// Pair makes a certificate for a server or a client. It returns the certificate and the names of
// its two PEM files.
func (a *Authority) Pair(name string) (tls.Certificate, string, string) {
	return a.Issue(name, x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"broker.test"}})
}

// Issue is Pair with the names, the subject and the end that of has. A second one with the same name
// replaces the files.
func (a *Authority) Issue(name string, of x509.Certificate) (tls.Certificate, string, string) {
	of.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, key := a.sign(&of)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, a.file(name+".pem", "CERTIFICATE", der), a.file(name+".key", "PRIVATE KEY", pkcs8)
}

// Keystore returns a PEM file with both of a pair, as a broker reads it.
func (a *Authority) Keystore(cert, key string) string {
	var both []byte
	for _, name := range []string{key, cert} {
		text, err := os.ReadFile(name)
		if err != nil {
			a.Fatal(err)
		}
		both = append(both, text...)
	}
	path := key + "store"
	if err := os.WriteFile(path, both, 0o600); err != nil {
		a.Fatal(err)
	}
	return path
}
