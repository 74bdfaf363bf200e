package outbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"
)

// A FileStore is a Store in a folder, which must exist. All writers and readers must share it.
type FileStore string

// Put implements Store. The file has its name only once it is complete and on the disk.
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

// List implements Store. It also returns the files that an interrupted Put left behind.
func (s FileStore) List(_ context.Context, after, before time.Time) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		entries, err := os.ReadDir(string(s))
		if err != nil {
			yield("", err)
			return
		}
		for _, entry := range entries {
			name := entry.Name()
			if !IsKey(name) {
				continue
			}
			info, err := entry.Info()
			switch {
			case errors.Is(err, fs.ErrNotExist): // another process has removed it
			case err != nil:
				yield("", err)
				return
			case !info.ModTime().Before(after) && info.ModTime().Before(before):
				if !yield(name, nil) {
					return
				}
			}
		}
	}
}

// Delete implements Store.
func (s FileStore) Delete(_ context.Context, key string) error {
	root, err := os.OpenRoot(string(s))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(key); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
