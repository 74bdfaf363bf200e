package outbox

import (
	"context"
	"errors"
	"io"
	"os"
)

// A FileStore is a Store in a folder, which must exist. All writers and readers must share it. An
// interrupted Put can leave a file behind, whose name begins with a key.
type FileStore string

// Put implements Store. The file gets its name only once it is complete and on disk.
func (s FileStore) Put(_ context.Context, key string, data []byte) (err error) {
	root, err := os.OpenRoot(string(s))
	if err != nil {
		return err
	}
	defer root.Close()
	part := key + "." + NewID()
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = root.Rename(part, key)
	}
	if err != nil {
		return errors.Join(err, root.Remove(part))
	}
	folder, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Get implements Store.
func (s FileStore) Get(_ context.Context, key string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(string(s))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(key)
}
