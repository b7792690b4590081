package guest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWritableMounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	const text = `1 0 0:1 / / ro,nosuid - tmpfs x rw
2 1 0:1 / /workspace rw,nosuid,nodev - ext4 x rw
3 2 0:1 / /workspace/.git ro,nosuid - ext4 x rw
4 1 0:1 / /home/agent rw,nosuid - ext4 x rw
5 1 0:1 / /with\040blank rw - ext4 x rw
6 1 0:1 / /tmp rw - tmpfs x rw
7 1 0:1 / /dev/shm rw - tmpfs x rw
8 1 0:1 / /src ro - ext4 x rw
9 1 0:1 / /twice ro - ext4 x rw
10 1 0:1 / /twice rw,relatime - ext4 x rw
11 1 0:1 / /twice rw,relatime - ext4 x rw
short line
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := writableMounts(file)
	if want := []string{"/home/agent", "/with blank", "/twice"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
