package nodetest

// FD is an open descriptor of a Client.
type FD int

// Stat is what the suite looks at in stat(2).
type Stat struct {
	Type     byte // 'f', 'd', 'l', 's', 'p'
	Mode     uint32
	UID, GID uint32
	Size     int64
	Ino      uint64
	Nlink    uint64
}

// Client is one process (one thread of it) with one identity. Paths begin at the
// root of the tree ("/agent"). Every error is a syscall.Errno.
type Client interface {
	Open(path string, flags int, mode uint32) (FD, error) // open(2); no symlink is followed
	Dup(fd FD) (FD, error)
	Close(fd FD) error
	Read(fd FD, p []byte) (int, error) // at the descriptor's position
	Pread(fd FD, p []byte, off int64) (int, error)
	Write(fd FD, p []byte) (int, error)
	Pwrite(fd FD, p []byte, off int64) (int, error)
	Ftruncate(fd FD, size int64) error
	Fsync(fd FD) error
	Fstat(fd FD) (Stat, error)
	Fchmod(fd FD, mode uint32) error
	Fchown(fd FD, uid, gid int) error

	Lstat(path string) (Stat, error)
	Truncate(path string, size int64) error
	Chmod(path string, mode uint32) error
	Chown(path string, uid, gid int) error
	Touch(path string) error // utimensat(2), now
	Mkdir(path string, mode uint32) error
	Rmdir(path string) error
	Unlink(path string) error
	Rename(oldPath, newPath string) error
	Link(oldPath, newPath string) error
	Symlink(target, path string) error
	Readlink(path string) (string, error)
	ReadDir(path string) ([]string, error) // sorted, without "." and ".."
	Getxattr(path, name string) (string, error)
	Listxattr(path string) ([]string, error)
	Setxattr(path, name, value string) error
	SyncDir(path string) error
}
