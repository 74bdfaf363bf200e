package router

import "testing"

func TestTopicCacheIsBounded(t *testing.T) {
	r, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	tp := r.topics
	for i := range 3 * maxTopics {
		v := []byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676%26), byte('a' + i/17576%26)}
		if topic, err := tp.forValue(v); err != nil || topic != "outbox.event."+string(v) {
			t.Fatalf("%s: %s, %v", v, topic, err)
		}
	}
	if len(tp.cache) > maxTopics {
		t.Errorf("%d topics kept, want at most %d", len(tp.cache), maxTopics)
	}
}
