package statelog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/walpost/walpost/internal/fault"
)

// A FileStore keeps checkpoint records in one file, for relays and commands that stay on one host. A Save writes the whole file anew beside
// it, syncs it, renames it and syncs the directory, so a crash at any moment leaves the old records or the new. A file that
// can not be read, or is not what Save writes, is an error; only a file that is not there is empty.
//
// While it is used, the store holds a lock on path + ".lock", so that two processes on a host do not share one file.
type FileStore struct {
	path string

	mu   sync.Mutex
	lock *os.File

	step func(string) error // tests: called before each step of a Save
}

// fileFormat is what the file holds. JSON writes bytes as base64.
type fileFormat struct {
	Version int               `json:"version"`
	Records map[string][]byte `json:"records"`
	// Sum is the checksum of the records: a flipped bit can give another position, and the relay would skip what is before it.
	Sum string `json:"crc32c"`
}

func sumOf(records map[string][]byte) (string, error) {
	b, err := json.Marshal(records) // the keys are sorted
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))), err
}

// NewFileStore makes a store in the file path. Its directory must exist. Nothing is touched before the first use.
func NewFileStore(path string) *FileStore {
	return &FileStore{path: path, step: func(string) error { return nil }}
}

// Remove gives up the lock and removes the file.
func (f *FileStore) Remove() error {
	err := f.Close()
	for _, name := range []string{f.path, f.path + ".lock"} {
		if failed := os.Remove(name); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// Close gives up the lock.
func (f *FileStore) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		return nil
	}
	err := f.lock.Close()
	f.lock = nil
	return err
}

// hold takes the lock. The lock's file stays behind when the process ends; the lock does not.
func (f *FileStore) hold() error {
	if f.lock != nil {
		return nil
	}
	for range 40 { // as many links as the kernel follows: it refuses a cycle
		link, err := os.Readlink(f.path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(f.path), link)
		}
		f.path = link
	}
	name := f.path + ".lock"
	l, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return f.inaccessible(fmt.Errorf("lock checkpoint file: %w", err))
	}
	if err := lockFile(l); err != nil {
		_ = l.Close() // nothing was written
		if errors.Is(err, errLocked) {
			return fault.Retry(fault.WithHint(fmt.Errorf("checkpoint file %s is used by another process", f.path),
				"If this command must have the file, stop that process first. A relay holds its file until it ends, even while it is halted. A replay holds its own file."))
		}
		return fault.Retry(fmt.Errorf("lock %s: %w", name, err))
	}
	f.lock = l
	return nil
}

func (f *FileStore) read() (map[string][]byte, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(filepath.Dir(f.path)); err == nil {
			return map[string][]byte{}, nil
		}
	}
	if err != nil {
		return nil, f.inaccessible(fmt.Errorf("read checkpoint file: %w", err))
	}
	var c fileFormat
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, damaged(f.path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, damaged(f.path, errors.New("something follows its end"))
	}
	if c.Version != 1 || c.Records == nil {
		return nil, fault.Person(fmt.Errorf("read checkpoint file %s: not a checkpoint file of version 1 (version %d)", f.path, c.Version),
			"Run the version of walpost that wrote the file, or correct its path.")
	}
	sum, err := sumOf(c.Records)
	if err != nil || c.Sum != sum {
		return nil, damaged(f.path, errors.Join(fmt.Errorf("its checksum is not that of its records (%s)", sum), err))
	}
	return c.Records, nil
}

// inaccessible marks an error of the file system: one that somebody must repair, or another one, such as a full disk.
func (f *FileStore) inaccessible(err error) error {
	for _, e := range []error{fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.EROFS} {
		if errors.Is(err, e) {
			return fault.Repair(fault.WithHint(err, "The folder "+filepath.Dir(f.path)+" must exist, and walpost must be allowed to read and write "+f.path+" in it."))
		}
	}
	return fault.Retry(err)
}

func damaged(path string, err error) error {
	return fault.Person(fmt.Errorf("read checkpoint file %s: %w", path, err),
		"Stop walpost and move the file away. With cleanup.mode: none and source.snapshot: never, walpost run then continues where the slot is. "+
			"If a snapshot, a recover or an accepted gap was open, events are missing: run walpost verify before you turn the cleanup on again. "+
			"With source.kind: poll, restore a copy of the file instead.")
}

// Load returns every record whose key starts with name + "/".
func (f *FileStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.hold(); err != nil {
		return nil, err
	}
	return f.Look(ctx, name)
}

// Look is Load without the lock, so it also works while a relay holds the file.
func (f *FileStore) Look(ctx context.Context, name string) (map[string][]byte, error) {
	return f.LookNames(ctx, name+"/")
}

// LookNames is Look for all relays whose names start with prefix.
func (f *FileStore) LookNames(_ context.Context, prefix string) (map[string][]byte, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for k := range all {
		if !strings.HasPrefix(k, prefix) {
			delete(all, k)
		}
	}
	return all, nil
}

// Save makes the record durable before it returns. A nil value removes the key.
func (f *FileStore) Save(_ context.Context, key string, value []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.hold(); err != nil {
		return err
	}
	all, err := f.read()
	if err != nil {
		return err
	}
	if value == nil {
		delete(all, key)
	} else {
		all[key] = value
	}
	sum, err := sumOf(all)
	if err == nil {
		err = f.replace(fileFormat{Version: 1, Records: all, Sum: sum})
	}
	if err != nil {
		return fault.Retry(fmt.Errorf("write checkpoint file %s: %w", f.path, err))
	}
	return nil
}

func (f *FileStore) replace(c fileFormat) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	// Always the same name: a temporary file that a crash has left is overwritten, and never read.
	tmp := f.path + ".tmp"
	if err := f.step("create"); err != nil {
		return err
	}
	w, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = f.step("write")
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	if err == nil {
		err = f.step("sync")
	}
	if err == nil {
		err = w.Sync()
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	if err := f.step("rename"); err != nil {
		return err
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return err
	}
	if err := f.step("sync directory"); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(syncDir(d), d.Close())
}

// Peek is Load: a file has no transactions.
func (f *FileStore) Peek(ctx context.Context, name string) (map[string][]byte, error) {
	return f.Load(ctx, name)
}
