package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// A child channel is what a parent hands to a child and gets back (spec section
// 17): a directory in the parent's session. Inside, the session directory is
// read-only, so what stands here is the host's word. All of it is read and written
// with the owner's rights, beneath the store, following no link.

// Words of a channel's status.
const (
	chanPending   = "pending"
	chanActive    = "active"
	chanDone      = "done"
	chanError     = "error"
	chanCancelled = "cancelled"
)

// maxResult is how much of result.md goes into one frame.
const maxResult = 48 << 10

// maxSessions bounds the sessions that are looked into for channels.
const maxSessions = 4096

// channel names one: the parent's state directory, its session, the child.
type channel struct {
	w       *world
	owner   uint32
	parent  string // name
	session string
	child   string // name
}

func (c channel) home() string { return fmt.Sprintf("home/%d/agent/%s", c.owner, c.parent) }

func (c channel) sub() string {
	return path.Join("session", c.session, "context", "child", c.child)
}

func (c channel) dir() string { return path.Join(c.home(), c.sub()) }

// open makes the channel: everything in it, status last and pending. An older one
// of that child in this session is replaced unless it is in use: Busy.
func (c channel) open(ref, session, handoff string) error {
	if s, err := c.status(); err == nil && (s == chanPending || s == chanActive) {
		return fault.E("hand over", c.dir(), fault.Busy, fmt.Errorf("the channel is %s", s))
	}
	for _, f := range []struct{ name, text string }{
		{"agent", ref + "\n"}, {"session", session + "\n"}, {"handoff.md", handoff}, {"result.md", ""}, {"refs.jsonl", ""}, {"status", chanPending + "\n"},
	} {
		if err := c.put(f.name, []byte(f.text)); err != nil {
			return err
		}
	}
	return nil
}

// put replaces one file, whole or not at all.
func (c channel) put(name string, text []byte) error {
	r := c.w.as(c.owner)
	_, err := c.w.walkOwned(c.owner, c.home(), c.sub(), func(n vnode.Node) error {
		temp := "." + name + ".new"
		rm, _ := n.(vnode.Remover)
		mk, ok := n.(vnode.Creator)
		mv, ok2 := n.(vnode.Renamer)
		if !ok || !ok2 || rm == nil {
			return fault.Newf(fault.NotDir, "not a directory")
		}
		if err := rm.Unlink(r, temp); err != nil && !fault.Is(err, fault.NotExist) {
			return err
		}
		e, h, _, err := mk.Create(r, temp, unix.O_WRONLY|unix.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer unref(e.Node)
		err = writeAll(r, h, text)
		h.Release(r)
		if err != nil {
			return err
		}
		return mv.Rename(r, temp, n, name)
	})
	return fault.At("write", node.Root+"/"+path.Join(c.dir(), name), err)
}

func writeAll(r *vnode.Req, h vnode.Handle, text []byte) error {
	w, ok := h.(vnode.Writer)
	if !ok {
		return fault.Newf(fault.Invalid, "not a file")
	}
	for off := 0; off < len(text); {
		n, err := w.Write(r, text[off:], int64(off))
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		off += n
	}
	if s, ok := h.(vnode.Syncer); ok {
		return s.Fsync(r, false)
	}
	return nil
}

// get reads the beginning of one file; it must be a regular one.
func (c channel) get(name string, limit int) ([]byte, time.Time, error) {
	r := c.w.as(c.owner)
	full := path.Join(c.dir(), name)
	n, err := c.w.ord.Node(r, full)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer unref(n)
	a, err := n.Attr(r)
	if err != nil {
		return nil, time.Time{}, err
	}
	o, ok := n.(vnode.Opener)
	if !ok || a.Type != vnode.Regular {
		return nil, time.Time{}, fault.E("read", node.Root+"/"+full, fault.IO, errors.New("not a regular file"))
	}
	h, _, err := o.Open(r, unix.O_RDONLY)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer h.Release(r)
	rd, ok := h.(vnode.Reader)
	if !ok {
		return nil, time.Time{}, fault.E("read", node.Root+"/"+full, fault.IO, errors.New("cannot be read"))
	}
	buf := make([]byte, limit)
	got := 0
	for got < limit {
		k, err := rd.Read(r, buf[got:], int64(got))
		if err != nil {
			return nil, time.Time{}, err
		}
		if k == 0 {
			break
		}
		got += k
	}
	return buf[:got], a.Mtime, nil
}

// status is the word of the channel; one that is none is an error.
func (c channel) status() (string, error) {
	text, _, err := c.get("status", 64)
	if err != nil {
		return "", err
	}
	word := strings.TrimSuffix(string(text), "\n")
	switch word {
	case chanPending, chanActive, chanDone, chanError, chanCancelled:
		return word, nil
	}
	return "", fault.E("read", node.Root+"/"+c.dir()+"/status", fault.IO, errors.New("not the status of a channel"))
}

// pendingStatus says whether the child may still bring a result.
func pendingStatus(s string) bool { return s == chanPending || s == chanActive }

// names lists a directory of the owner; nothing if it cannot be read.
func (w *world) names(owner uint32, dir string) []string {
	r := w.as(owner)
	n, err := w.ord.Node(r, dir)
	if err != nil {
		return nil
	}
	defer unref(n)
	l, ok := n.(vnode.Lister)
	if !ok {
		return nil
	}
	entries, err := l.ReadDir(r)
	if err != nil {
		return nil
	}
	var list []string
	for _, e := range entries {
		if node.IsName(e.Name) && e.Type == vnode.Directory && len(list) < maxSessions {
			list = append(list, e.Name)
		}
	}
	return list
}

// channels are all channels of an agent, in every session.
func (w *world) channels(owner uint32, parent string) []channel {
	var all []channel
	home := fmt.Sprintf("home/%d/agent/%s/session", owner, parent)
	for _, s := range w.names(owner, home) {
		if s == "index" {
			continue
		}
		for _, child := range w.names(owner, path.Join(home, s, "context", "child")) {
			all = append(all, channel{w, owner, parent, s, child})
		}
	}
	return all
}

// newest is the channel of a parent to a child that changed last.
func (w *world) newest(owner uint32, parent, session, child string) (channel, bool) {
	best, found, when := channel{}, false, time.Time{}
	for _, c := range w.channels(owner, parent) {
		if c.child != child || session != "" && c.session != session {
			continue
		}
		if _, at, err := c.get("status", 64); err == nil && (!found || at.After(when)) {
			best, found, when = c, true, at
		}
	}
	return best, found
}

// closeChannels cancels what an ended agent has still waited for.
func (m *manager) closeChannels(k agent.Key) {
	o, err := m.w.agents.Lookup(k)
	if err != nil {
		return
	}
	cfg := o.Config()
	if !cfg.OwnerOK {
		return
	}
	for _, c := range m.w.channels(cfg.Owner, k.Name) {
		if s, err := c.status(); err == nil && pendingStatus(s) {
			if err := c.put("status", []byte(chanCancelled+"\n")); err != nil {
				m.event(k, agent.Event{Type: "child.cancel", Object: c.child, Session: c.session, Status: "error", Reason: err.Error()})
			}
		}
	}
}

// await returns when the channel's status is final, or ctx ends, with the status
// that it has then. It is told by the kernel, and looks once a second besides in
// case the directory was replaced.
func (c channel) await(ctx context.Context) (string, error) {
	f, err := c.w.openDurable(c.dir())
	if err != nil {
		return "", err
	}
	defer f.Close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return "", fault.FromOS("watch", c.dir(), err)
	}
	in := os.NewFile(uintptr(fd), "inotify")
	defer in.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if _, err := unix.InotifyAddWatch(fd, at, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_ONLYDIR); err != nil {
		return "", fault.FromOS("watch", c.dir(), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		s, err := c.status()
		if err != nil || !pendingStatus(s) || ctx.Err() != nil {
			return s, err
		}
		_ = in.SetReadDeadline(time.Now().Add(time.Second))
		if ctx.Err() != nil {
			continue
		}
		if _, err := in.Read(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return s, fault.FromOS("watch", c.dir(), err)
		}
	}
}

// result is what the child has brought, as text.
func (c channel) result() string {
	text, _, err := c.get("result.md", maxResult)
	if err != nil {
		return ""
	}
	return string(bytes.ToValidUTF8(text, []byte("\uFFFD")))
}

// own is the session that the child works in.
func (c channel) own() string {
	text, _, err := c.get("session", 256)
	name := strings.TrimSuffix(string(text), "\n")
	if err != nil || !node.IsName(name) {
		return ""
	}
	return name
}

// belongs says whether the child still works for this parent and session.
func (c channel) belongs(cfg *agent.Config) bool {
	return cfg.Parent.Agent == c.parent && slices.Contains([]string{"", c.session}, cfg.Parent.Session)
}
