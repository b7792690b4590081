package ordinary

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Opens that wait for a lease are bounded for each uid (notes-security 98): one too
// many is refused at once, and who may wait waits.
func TestLeaseWaitsAreBounded(t *testing.T) {
	w, r := newWorld(t), me()
	n := put(t, r, w.home(r), "f", "x", 0o600)
	f, err := os.OpenFile(w.direct(r, "f"), os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skip("no leases here: ", err)
	}
	try := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		h, _, err := n.Open(&vnode.Req{Ctx: ctx, UID: r.UID, GID: r.GID}, unix.O_RDWR)
		if err == nil {
			h.Release(r)
		}
		return err
	}
	if err := try(100 * time.Millisecond); !fault.Is(err, fault.Interrupted) {
		t.Errorf("who waits: %v", err)
	}
	w.fs.leaseWaits = map[uint32]int{r.UID: maxLeaseWaits}
	if err := try(time.Minute); !fault.Is(err, fault.Again) {
		t.Errorf("one too many: %v", err)
	}
	w.fs.leaseWaits = nil
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := try(time.Minute); err != nil || len(w.fs.leaseWaits) > 0 {
		t.Errorf("afterwards: %v, %v", err, w.fs.leaseWaits)
	}
}
