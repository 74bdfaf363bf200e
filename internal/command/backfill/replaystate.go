package backfill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// replayState is what an interrupted replay leaves.
type replayState struct {
	Filter  Filter          `json:"filter"`
	ToTopic string          `json:"to_topic,omitempty"`
	Done    checkpoint.Copy `json:"done"`
}

func (r *replay) load() error {
	kept, err := r.Load()
	if err != nil || kept == nil {
		return err
	}
	var saved replayState
	if err := json.Unmarshal(kept, &saved); err != nil {
		return fault.Config(fmt.Errorf("the state of the replay: %w", err), "Remove the state file of the replay (--state) to begin again.")
	}
	now, err := json.Marshal(replayState{r.Filter, r.ToTopic, saved.Done})
	if err != nil {
		return err
	}
	if !bytes.Equal(now, kept) {
		return fault.Config(errors.New("the state file belongs to a replay with another filter or topic"), "Finish that replay, or name another file with --state.")
	}
	r.feed.Copy = saved.Done
	return nil
}

func (r *replay) save() error {
	b, err := json.Marshal(replayState{r.Filter, r.ToTopic, r.feed.Copy})
	if err != nil {
		return err
	}
	r.saved = time.Now()
	return r.Save(b)
}
