package askrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

// An Answer is what walpost status learns from the running relay.
type Answer struct {
	Address string      `json:"address"` // http.listen; "" if status has nobody to ask
	State   relay.State `json:"state"`   // as in /api/status; "" without an answer
	Ready   bool        `json:"ready"`
	Reason  string      `json:"reason"`       // why the relay is not ready, or why it is not known
	Reload  string      `json:"reload_error"` // why the newest reload of the configuration was refused; "" if it was not

	// As in /api/status.
	AcceptedGaps []statuspage.AcceptedGap `json:"accepted_gaps"`
	Undelivered  string                   `json:"undelivered"`
	OpenDead     *int                     `json:"open_dead_letters"`
	ParkedKeys   int                      `json:"parked_keys"`
	Parked       int                      `json:"parked_events"`
}

// ForSlot asks the relay at http.listen whether it delivers the events of s, as it was read just now.
func ForSlot(ctx context.Context, cfg statuspage.Config, s *slot.Status) Answer {
	a, v := At(ctx, cfg)
	switch {
	case a.State == "":
	case v.Slot.Slot != s.Slot || v.Slot.Database != s.Database:
		a = a.Other(fmt.Sprintf("reads slot %s in %s", v.Slot.Slot, v.Slot.Database))
	case v.Ready && s.Known && v.Slot.CheckedAgo != nil && *v.Slot.CheckedAgo < time.Since(v.Since.Time).Seconds() && v.Slot.ActivePID != s.ActivePID:
		// The relay has looked at the slot in its present session, so it has seen its own walsender.
		a = a.Other("reads a slot of this name on another server")
	}
	return a
}

const whereRelay = "start walpost run, or pass the address of the relay with --http"

// At asks whatever relay there is at http.listen. The View is empty without an answer.
func At(ctx context.Context, cfg statuspage.Config) (Answer, statuspage.View) {
	if why := NoAddress(cfg); why != "" {
		return Answer{Reason: why}, statuspage.View{}
	}
	client := NewClient(cfg)
	defer client.CloseIdleConnections()
	v, err := getStatus(ctx, client)
	if err != nil {
		return Answer{Address: cfg.Listen, Reason: fmt.Sprintf("no relay answers at %s (%v): %s", cfg.Listen, err, whereRelay)}, v
	}
	a := Answer{
		Address: cfg.Listen, State: v.State, Ready: v.Ready, Reason: v.Reason, Reload: v.ReloadError,
		AcceptedGaps: v.AcceptedGaps, Undelivered: v.Undelivered, OpenDead: v.OpenDead,
	}
	if v.Parked != nil {
		a.ParkedKeys, a.Parked = v.Parked.Keys, v.Parked.Events
	}
	return a, v
}

// Other is the answer of a relay that is not the one that was meant.
func (a Answer) Other(does string) Answer {
	return Answer{Address: a.Address, Reason: fmt.Sprintf("the relay at %s %s: %s", a.Address, does, whereRelay)}
}

// getStatus is /api/status. An error is short: it says why there is no answer.
func getStatus(ctx context.Context, client *Client) (v statuspage.View, err error) {
	code, body, err := client.Get(ctx, "/api/status")
	if err != nil {
		return v, err
	}
	if code == http.StatusUnauthorized {
		return v, errors.New("the relay wants http.username and its password")
	}
	if code == http.StatusOK {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || v.State == "" {
		return v, fmt.Errorf("a program other than walpost answers: %d %s", code, http.StatusText(code))
	}
	return v, nil
}

// NotReady says why a relay that answers is not ready.
func (a Answer) NotReady() string {
	if a.State == "" {
		return a.Reason
	}
	return strings.TrimSuffix(fmt.Sprintf("the relay is not ready (%s): %s", a.State, a.Reason), ": ")
}

// Judge makes the severity of s that of the slot and the relay together.
func (a Answer) Judge(s *slot.Status) {
	switch {
	case a.Ready, a.Address == "":
		return
	case a.State == relay.Halted:
		s.Severity = slot.Critical
	case s.Severity == slot.OK:
		s.Severity = slot.Warning
	}
	s.Reasons = append(s.Reasons, a.NotReady())
}
