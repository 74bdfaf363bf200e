// Package statuspage shows a relay over HTTP: health, metrics, the state as JSON, and a page for people. It only
// shows: no request changes anything.
package statuspage

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
)

//go:embed page
var page embed.FS

// A Relay is what a Server shows.
type Relay interface {
	Status() walpost.Status
}

// Config is where a Server listens.
type Config struct {
	// The address of `/metrics`, `/livez`, `/readyz`, `/api/status`, `/api/history` and the status page
	// `/`. `off`: no server.
	Listen string `yaml:"listen" example:"0.0.0.0:9640"`
	// Host names, besides IP addresses and `localhost`, at which browsers may request `/` and `/api/…`.
	// Requests to others get status 421.
	Hosts []string `yaml:"hosts" example:"[walpost.internal]"`
	// Serves HTTPS instead of HTTP.
	TLS *TLS `yaml:"tls"`
	// The user for HTTP basic authentication. Without it, `/livez` and `/readyz` return only the status
	// code; other requests are refused.
	Username string `yaml:"username" example:"walpost"`
	// The user's password.
	Password conf.Secret `yaml:"password" example:"secret"`
	// A file with the password.
	PasswordFile string `yaml:"password_file" example:"/run/secrets/http"`
}

// DefaultConfig listens on this machine only.
func DefaultConfig() Config { return Config{Listen: "127.0.0.1:9640", Hosts: []string{}} }

// Off reports whether there is nothing to serve.
func (c Config) Off() bool { return c.Listen == "" || c.Listen == "off" }

// Validate adds what is wrong.
func (c Config) Validate(found *conf.Problems) {
	if !c.Off() {
		_, port, err := net.SplitHostPort(c.Listen)
		if err == nil {
			_, err = net.LookupPort("tcp", port) // as net.Listen does
		}
		if err != nil {
			found.Add("http.listen", conf.MustBe, "host:port with a port up to 65535, or off", c.Listen)
		}
	}
	c.validateAccess(found)
	for i, host := range c.Hosts {
		if !hostName.MatchString(host) {
			found.Add(fmt.Sprintf("http.hosts[%d]", i), conf.MustBe, "a name without a scheme, a port or a wildcard", host)
		}
	}
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// A Build says which program runs.
type Build struct{ Version, Commit, GoVersion string }

// A Server shows one relay.
type Server struct {
	cfg     Config
	version string
	metrics *prometheus.Registry
	refused atomic.Value // string: why the newest reload of the configuration was refused, "" if it was not
}

// New makes a Server, which does not listen yet.
func New(cfg Config, b Build) *Server {
	s := &Server{cfg: cfg, version: b.Version, metrics: newRegistry(b)}
	s.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_config_last_reload_successful", Help: "Whether the last reload of the configuration was accepted.",
	}, func() float64 { return flag(s.reloadError() == "") }))
	return s
}

// Reloaded takes the result of the newest attempt to read the configuration again.
func (s *Server) Reloaded(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.refused.Store(text)
}

func (s *Server) reloadError() string {
	text, _ := s.refused.Load().(string)
	return text
}

// Hook counts what a Kafka client does. It must be given to the client when the client is made.
func (s *Server) Hook() kgo.Hook { return newKafkaMetrics(s.metrics) }

// Spans has the metrics show how many spans were lost. It is called at most once, before Serve.
func (s *Server) Spans(lost func() int64) {
	s.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "walpost_spans_lost_total", Help: "Spans that didn't reach the collector, at most; absent without tracing.endpoint.",
	}, func() float64 { return float64(lost()) }))
}

// Serve listens at once, so that a wrong address is an error of the start. It serves until the returned function is called.
// The address is the one on which it really listens.
func (s *Server) Serve(relay Relay, log *slog.Logger) (addr string, stop func(), err error) {
	s.metrics.MustRegister(newCollector(relay))
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		err = fmt.Errorf("http.listen: %w", err)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", nil, err
		}
		return "", nil, fault.WithHint(err,
			"another process uses the address, for example a halted walpost that waits for halt_linger: stop that process first. Or choose another address with http.listen or --http, or switch the HTTP server off with --http off")
	}
	past := &history{}
	sampling, stopSampling := context.WithCancel(context.Background())
	var sampler sync.WaitGroup
	sampler.Go(func() { past.run(sampling, relay) })
	server := &http.Server{
		Handler:           s.handler(relay, past),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what is wrong with a client
	}
	serve := func() error { return server.Serve(l) }
	if s.cfg.TLS != nil {
		server.TLSConfig = s.cfg.TLS.config()
		serve = func() error { return server.ServeTLS(l, "", "") }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			log.Error("http stopped", "err", err)
		}
	}()
	return l.Addr().String(), func() {
		stopSampling()
		sampler.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a request that does not end in a second is cut off
		}
		<-done
	}, nil
}

// handler answers /livez, /readyz, /metrics, /api/status, /api/history and the status page. It shows no secret and changes nothing, so by
// default it asks for no credentials, and listens on this host only.
func (s *Server) handler(relay Relay, past *history) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if now := time.Now(); stuckFor(relay.Status(), now) > 0 {
			answer(w, http.StatusServiceUnavailable, seen(relay, now).Reason)
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { // ?standby=ok: a hot standby is ready too
		now, text := seen(relay, time.Now()), "ok"
		if !readyFor(now, r.URL.Query().Get("standby") == "ok") {
			answer(w, http.StatusServiceUnavailable, fmt.Sprintf("%s: %s", now.State, now.Reason))
			return
		}
		if now.Poll != nil && now.Reason != "" { // what delays events that flow
			text += ": " + now.Reason
		}
		answer(w, http.StatusOK, text)
	})
	mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		v := viewOf(seen(relay, now), s.version, now)
		v.ReloadError = s.reloadError()
		answerJSON(w, v)
	})
	mux.HandleFunc("GET /api/history", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, past.list()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	for path, name := range map[string]string{
		"GET /{$}":        "page/index.html",
		"GET /status.js":  "page/status.js",
		"GET /status.css": "page/status.css",
		"GET /uplot.js":   "page/uplot/uPlot.iife.min.js",
		"GET /uplot.css":  "page/uplot/uPlot.min.css",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, name) })
	}
	return secured(named(s.cfg.Hosts, s.cfg.guarded(mux)))
}

// named answers requests for a known host only. A page of another site may have its name resolve to this address and would read what is
// shown (DNS rebinding); it cannot choose the header Host. Kubelets and Prometheus send any Host, and what they ask for is no secret.
func named(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/livez", "/readyz", "/metrics":
		default:
			if !knownHost(r.Host, hosts) {
				answer(w, http.StatusMisdirectedRequest, fmt.Sprintf("host %q is not known here: use an IP address or localhost, or add the name to http.hosts in walpost.yaml", r.Host))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// knownHost says whether a header Host names an IP address, localhost or one of hosts.
func knownHost(header string, hosts []string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil { // without a port
		host = header
		if inner, ok := strings.CutPrefix(host, "["); ok {
			if host, ok = strings.CutSuffix(inner, "]"); !ok {
				return false
			}
		}
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if strings.HasPrefix(header, "[") { // brackets are for addresses
		return false
	}
	host = strings.TrimSuffix(host, ".")
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(hosts, func(known string) bool {
		return strings.EqualFold(host, strings.TrimSuffix(known, "."))
	})
}

// secured adds what keeps a browser from doing anything but show the page.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "+
			"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the error is the client's connection
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // the error is the client's connection
}
