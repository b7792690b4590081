package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestEveryKindHasItsOwnErrno(t *testing.T) {
	seen := map[syscall.Errno]Kind{}
	for _, k := range Kinds() {
		n := k.Errno()
		if n == 0 || n == syscall.ENOSYS {
			t.Errorf("kind %v has errno %d", k, n)
		}
		if other, dup := seen[n]; dup {
			t.Errorf("kinds %v and %v share errno %v", k, other, n)
		}
		seen[n] = k
		if k.String() == "" {
			t.Errorf("kind %d has no name", k)
		}
		back := FromOS("op", "p", fmt.Errorf("wrapped: %w", n))
		if KindOf(back) != k {
			t.Errorf("errno %v comes back as %v, want %v", n, KindOf(back), k)
		}
	}
}

func TestErrnoOfChains(t *testing.T) {
	bad := Text(3, 7, "unknown option %q", "exec")
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{bad, syscall.EINVAL},
		{fmt.Errorf("commit: %w", bad), syscall.EINVAL},
		{syscall.ENOENT, syscall.EIO}, // nobody classified it
		{errors.New("boom"), syscall.EIO},
		{context.Canceled, syscall.EINTR},
		{FromOS("open", "x", syscall.EDQUOT), syscall.ENOSPC},
		{FromOS("open", "x", syscall.EMLINK), syscall.EIO},
		{E("read", "x", IO, syscall.ENOENT), syscall.EIO},
	} {
		if got := Errno(c.err); got != c.want {
			t.Errorf("Errno(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestTexts(t *testing.T) {
	bad := Text(3, 7, "unknown option %q", "exec")
	if got, want := bad.Place(), `3:7: unknown option "exec"`; got != want {
		t.Errorf("Place = %q, want %q", got, want)
	}
	at := At("write", "/ctx/agent/coder.d/mount", fmt.Errorf("draft: %w", bad))
	if got, want := at.Error(), `write /ctx/agent/coder.d/mount:3:7: unknown option "exec"`; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
	if got := E("", "", NoSpace, nil).Error(); got != "no space" {
		t.Errorf("bare error reads %q", got)
	}
	if At("op", "p", nil) != nil {
		t.Error("At(nil) is not nil")
	}
}
