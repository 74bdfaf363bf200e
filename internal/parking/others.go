package parking

import (
	"fmt"
	"maps"
	"slices"
)

// Others is what relays of other names have parked of the rows of one relay. If the relay had such a name before, nobody releases the keys of
// that name, and nobody holds back newer events of these keys.
type Others struct {
	Name               string // of the relay
	SystemID, Database string
	Tables             []string

	backlogs map[string]*Backlog // by the name of the other relay
}

// Add takes the next record of the topic.
func (o *Others) Add(it Item) {
	name := ""
	switch {
	case o == nil:
	case it.Mark != nil:
		name = it.Mark.Name
	case it.Letter != nil && it.Letter.SystemID == o.SystemID && it.Letter.Database == o.Database && slices.Contains(o.Tables, it.Letter.Table):
		name = it.Letter.Name
	}
	if name == "" || name == o.Name {
		return
	}
	if o.backlogs == nil {
		o.backlogs = map[string]*Backlog{}
	}
	if o.backlogs[name] == nil {
		o.backlogs[name] = New(name)
	}
	o.backlogs[name].Add(it)
}

// A Stranger is another relay that has parked keys.
type Stranger struct {
	Relay string
	Counts
}

// Strangers are the other relays with parked keys, by their names.
func (o *Others) Strangers() (found []Stranger) {
	if o == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(o.backlogs)) {
		if c := o.backlogs[name].Counts(); c.Events > 0 {
			found = append(found, Stranger{name, c})
		}
	}
	return found
}

func (s Stranger) String() string {
	return fmt.Sprintf("%d events of %d keys of the same tables are parked under the name %s, and this relay delivers newer events of these keys", s.Events, s.Keys, s.Relay)
}

// Hint says how to find out whether somebody has to do something, and what.
func (s Stranger) Hint() string {
	return "If another relay runs under this name, there is nothing to do. If this relay had the name before, set name: " + s.Relay +
		" again (and source.slot, if it was another one), start walpost run, and release the keys with \"walpost dead retry\" or give them up with \"walpost dead drop\". " +
		"If run refuses because the slot is ahead, this relay has delivered the events of that gap under the new name, so accept it."
}
