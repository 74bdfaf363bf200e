package testenv

import (
	"os"
	"syscall"
)

// tempFolder returns a folder in memory for the data of test servers, or "" if there is little
// memory or TMPDIR is set. A data directory has a thousand files, and some file systems take a
// second to create and delete them.
func tempFolder() string {
	const memory, tmpfs, plenty = "/dev/shm", 0x01021994, 8 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || int64(fs.Type) != tmpfs {
		return ""
	}
	if fs.Bavail*uint64(fs.Bsize) < plenty {
		return ""
	}
	return memory
}
