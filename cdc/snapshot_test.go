package cdc

import "testing"

func TestASnapshotSeesWhatHadCommitted(t *testing.T) {
	s, err := ParseSnapshot("10:20:10,14")
	if err != nil {
		t.Fatal(err)
	}
	for xid, want := range map[uint64]bool{9: true, 10: false, 11: true, 14: false, 19: true, 20: false, 21: false} {
		if s.Sees(xid) != want {
			t.Errorf("%d: %t", xid, s.Sees(xid))
		}
	}
	if s, err = ParseSnapshot("10:10:"); err != nil || s.Sees(10) || !s.Sees(9) {
		t.Errorf("nothing open: %v", err)
	}
	for _, bad := range []string{"", "1:2", "1:2:x", "1:2:3:4", "a:2:"} {
		if _, err := ParseSnapshot(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
