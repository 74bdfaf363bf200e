package configkeys

import (
	"fmt"
	"reflect"

	"github.com/walpost/walpost/internal/yamlfile"
)

// A Change is a key that has another value in one configuration than in another. A section that is in one of them only is one Change.
type Change struct {
	Key *Key
	now reflect.Value
}

// String is the key with its new value, on one line. A secret is masked.
func (c Change) String() string {
	if c.now.Kind() == reflect.Pointer {
		return c.Key.Path
	}
	return fmt.Sprintf("%s: %s", c.Key.Path, short(plain(c.now)))
}

// Changes returns what differs between two configurations of the type that the key describes. Both are pointers to a struct.
func (k *Key) Changes(was, now any) []Change {
	return k.changes(reflect.ValueOf(was).Elem(), reflect.ValueOf(now).Elem())
}

func (k *Key) changes(was, now reflect.Value) (found []Change) {
	switch {
	case k.Kind != Section || was.Kind() == reflect.Pointer && (was.IsNil() || now.IsNil()):
		if !reflect.DeepEqual(was.Interface(), now.Interface()) {
			found = append(found, Change{k, now})
		}
		return found
	case was.Kind() == reflect.Pointer:
		was, now = was.Elem(), now.Elem()
	}
	old, present := yamlfile.Fields(was), yamlfile.Fields(now)
	for _, below := range k.Keys {
		found = append(found, below.changes(old[below.Name], present[below.Name])...)
	}
	return found
}
