package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fix"
)

// reach asks every address of kafka.brokers. Then it asks every broker at the address that the cluster gives out for it, because records
// go there. It reports whether a broker answers.
func (c *kafkaCheck) reach(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, errs := ping(ctx, c.cl.SeedBrokers())
	// The client gives the addresses in the order in which it was given them.
	answers := 0
	for _, err := range errs {
		if err == nil {
			answers++
		}
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case answers == 0:
			c.add("broker "+c.cfg.Brokers[i], Fail, errorLine(err), unreachable(err))
		default:
			c.add("broker "+c.cfg.Brokers[i], Warn, "this address of kafka.brokers does not answer, while others do: "+errorLine(err), unreachable(err))
		}
	}
	if answers == 0 {
		return false
	}
	meta, err := kadm.NewClient(c.cl).BrokerMetadata(ctx)
	if err != nil {
		c.add("brokers", Fail, errorLine(err), unreachable(err))
		return false
	}
	c.brokers = len(meta.Brokers)
	var nodes []*kgo.Broker
	for _, b := range meta.Brokers {
		nodes = append(nodes, c.cl.Broker(int(b.NodeID)))
	}
	reached := 0
	c.caps = true
	knows, errs := ping(ctx, nodes)
	for i, err := range errs {
		b := meta.Brokers[i]
		if err == nil {
			reached, c.broker = reached+1, b.NodeID
			c.caps = c.caps && capsMinISR(knows[i])
			continue
		}
		addr := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		c.add(fmt.Sprintf("broker %d", b.NodeID), Fail, fmt.Sprintf("the cluster advertises the broker at %s, but this machine cannot reach that address: %s", addr, errorLine(err)),
			fix.Words(fmt.Sprintf("Start the broker, or make %s reachable from this machine. The address comes from the broker's advertised.listeners.", addr)))
	}
	if reached > 0 {
		c.add("brokers", OK, fmt.Sprintf("%d of %d reachable", reached, c.brokers))
	}
	return reached > 0
}

// ping asks brokers which requests they know, behind TLS and SASL, as any client does first. Answers and errors are in the order of the brokers.
func ping(ctx context.Context, brokers []*kgo.Broker) ([]*kmsg.ApiVersionsResponse, []error) {
	knows, errs := make([]*kmsg.ApiVersionsResponse, len(brokers)), make([]error, len(brokers))
	var wg sync.WaitGroup
	for i, b := range brokers {
		wg.Go(func() {
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "walpost", "check" // without a name a broker answers with an error
			var resp kmsg.Response
			if resp, errs[i] = b.Request(ctx, req); errs[i] == nil {
				knows[i] = resp.(*kmsg.ApiVersionsResponse)
				errs[i] = kerr.ErrorForCode(knows[i].ErrorCode)
			}
		})
	}
	wg.Wait()
	return knows, errs
}

// capsMinISR reports whether a broker takes a min.insync.replicas above the number of replicas for that number. Kafka does so since 3.7
// (KAFKA-15583), which brought version 10 of Produce. Older brokers refuse every record.
func capsMinISR(knows *kmsg.ApiVersionsResponse) bool {
	return slices.ContainsFunc(knows.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return k.ApiKey == int16(kmsg.Produce) && k.MaxVersion >= 10
	})
}

// errorLine is an error for one line. If a deadline has passed, only the dialer's error says more than that.
func errorLine(err error) string {
	var timed net.Error
	switch {
	case errors.As(err, &timed) && timed.Timeout() && !errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer in %s: %v", askTimeout, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer in %s", askTimeout)
	}
	return err.Error()
}

// unreachable says what fixes an address that cannot be talked to.
func unreachable(err error) fix.Words {
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "Correct kafka.sasl: the mechanism, and its username and password, or its token or role."
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "Set kafka.sasl.mechanism to one that the listener offers (sasl.enabled.mechanisms of the broker)."
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "Set kafka.tls.ca_file to a PEM file with the certificate of the authority that signed the brokers' certificates."
	case errors.As(err, new(x509.HostnameError)):
		return "In kafka.brokers, use the host name in the brokers' certificate, or set kafka.tls.server_name to that name."
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "Renew the certificate, or correct the clock of this machine."
	case errors.As(err, new(*kgo.ErrFirstReadEOF)), errors.Is(err, io.EOF), errors.Is(err, kerr.IllegalSaslState):
		return "The listener on this port may require TLS (kafka.tls) or SASL (kafka.sasl), or may not accept it: compare with the broker's listener.security.protocol.map."
	case errors.As(err, new(*net.DNSError)):
		return "Correct the name in kafka.brokers, or this machine's DNS resolver."
	}
	return "Start the broker, or correct kafka.brokers and make sure that firewalls let this machine through."
}
