package harden

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread in a domain reaches neither an abstract socket nor a process outside;
// what is in the domain with it, it reaches.
func TestScope(t *testing.T) {
	if Landlock() == 0 {
		t.Skip("no Landlock with scopes")
	}
	outside, err := net.Listen("unix", "@cortexfs-harden-"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	dial := func(name string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	name := outside.Addr().String()
	if err := dial(name); err != nil {
		t.Fatalf("before: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its domain
		if err := NoNewPrivileges(); err != nil {
			t.Error(err)
		}
		if err := Scope(); err != nil {
			t.Error(err)
			return
		}
		if err := dial(name); err != unix.EPERM {
			t.Errorf("abstract socket: %v", err)
		}
		if err := unix.Kill(os.Getppid(), 0); err != unix.EPERM {
			t.Errorf("signal: %v", err)
		}
		inside, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(inside)
		if err := unix.Bind(inside, &unix.SockaddrUnix{Name: name + "-inside"}); err != nil {
			t.Error(err)
		}
		if err := unix.Listen(inside, 1); err != nil {
			t.Error(err)
		}
		if err := dial(name + "-inside"); err != nil {
			t.Errorf("abstract socket of the same domain: %v", err)
		}
	}()
	<-done
}
