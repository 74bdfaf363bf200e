package poll

import (
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// Behind a border, a transaction that was open comes, although its id is below ids that had committed. What had committed does not.
func TestBehindABorderComesWhatItDoesNotSee(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg)
		open, late := testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn)
		w.exec(insert("a", "1"))
		testenv.Run(t, open, "BEGIN", insert("b", "2"), "SAVEPOINT s", insert("b", "3"))
		testenv.Run(t, late, "BEGIN", "SELECT pg_current_xact_id()")
		w.exec(insert("a", "4")) // with a higher id, delivered by the other source
		s, err := w.OpenAtBorder(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := s.Identity()
		s.Close(t.Context()) //nolint:errcheck // it was used
		testenv.Run(t, open, insert("b", "5"), "RELEASE s", "COMMIT")
		w.at, w.border = found.SlotFound.Confirmed, found.Border
		w.begin()
		w.exec(insert("a", "6"))
		if b := w.backlog(); b.Rows != 4 {
			t.Errorf("%d rows wait, must be 4", b.Rows)
		}
		first := w.read()
		testenv.Run(t, late, insert("c", "7"), "COMMIT")
		if got := first + " " + w.read(); got != "( 2 3 5 ) ( 6 7 )" && got != "( 2 3 5 ) ( 6 ) ( 7 )" {
			t.Errorf("read %q", got)
		}
		w.exec(insert("a", "8"))
		w.want("( 8 )")
	})
}
