package badevents

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/kafka"
)

// Waiting tells which events are dead or parked, and reads only what is new in the topics since the
// last time. It belongs to one goroutine.
type Waiting struct {
	cfg    kafka.Config
	client *kgo.Client // nil before the first reading
	dead   *Letters
	parked *Parked
	names  [2]string
	used   [2]bool
	of     string // the database
}

// NewWaiting does not connect. Events of another database than database are left out. buries and parks say whether delivery.on_poison sends events to the
// topics. If it does not, and the user may not even see a topic, walpost has written nothing there.
func NewWaiting(cfg kafka.Config, database, deadTopic, parkingTopic string, buries, parks bool) *Waiting {
	return &Waiting{cfg: cfg, of: database, names: [2]string{deadTopic, parkingTopic}, used: [2]bool{buries, parks}}
}

// Close frees the connections. It may be called of nil.
func (w *Waiting) Close() {
	if w != nil && w.client != nil {
		w.client.Close()
	}
}

// IDs are the ids of the events that are dead or parked now; "" is an event without an id.
func (w *Waiting) IDs(ctx context.Context) (ids []string, err error) {
	if w.client == nil {
		if w.client, err = w.cfg.NewClient(); err != nil {
			return nil, err
		}
		silent := func(int64, int64) {}
		w.dead, w.parked = newLetters(w.client, w.names[0], deadletter.NewOpenFold, silent), NewParked(w.client, w.names[1], silent)
	}
	for i, l := range []*log{&w.dead.log, &w.parked.log} {
		if err := l.Read(ctx); err != nil && !(!w.used[i] && len(l.readers) == 0 && kafka.Denied(err)) {
			return nil, err
		}
	}
	t := Topics{Dead: w.dead, Parked: w.parked}
	for _, e := range t.All() {
		if e.State == deadletter.Open && (e.Database == "" || e.Database == w.of) {
			ids = append(ids, e.ID)
		}
	}
	return ids, nil
}
