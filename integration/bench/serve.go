package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"cortexfs/fs"
	"cortexfs/fs/fstest/toy"
	"cortexfs/node/vnode"
)

// runServer is a server process: it mounts one kind of tree and serves it until
// it is told to end or unmounted.
func runServer(kind, at string) error {
	// The program lies beside the mountpoints.
	tool, err := os.ReadFile(filepath.Join(filepath.Dir(at), "tool"))
	if err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	switch kind {
	case "ours":
		s, err := fs.Mount(fs.Options{Mountpoint: at, FS: ourTree(tool), AllowOther: true, DefaultPermissions: true})
		if err != nil {
			return err
		}
		fmt.Println("ready")
		go func() { <-end; _ = s.Unmount() }()
		return s.Wait()
	case "gofuse":
		s, err := mountGoFuse(at, tool)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		go func() { <-end; _ = s.Unmount() }()
		s.Wait()
		return nil
	}
	return fmt.Errorf("no server %q", kind)
}

// ourTree has the classes of files of the design: a control (direct, nothing
// cached), a live file (direct, no flush), a tool (page cached, immutable), and
// directories whose names and listings the kernel keeps until it is told.
func ourTree(tool []byte) *toy.FS {
	const long = time.Hour
	t := toy.New()
	t.Dir().AttrValid = long
	dir := func(in *toy.Node, name string) *toy.Node {
		d := in.AddDir(name, 0o755)
		d.AttrValid, d.EntryValid, d.MissValid = long, long, long
		return d
	}
	agent := dir(dir(t.Dir(), "agent"), "coder.d")
	agent.AddFile("approval", controlText, 0o644).Mode = vnode.Mode{Direct: true}
	live := agent.AddFile("status", statusText, 0o444)
	live.Mode = vnode.Mode{Direct: true, NoFlush: true}
	live.EntryValid = long
	tools := dir(t.Dir(), "tool")
	file := func(name, text string) {
		f := tools.AddFile(name, text, 0o755)
		f.AttrValid, f.EntryValid = long, long
		f.Mode = vnode.Mode{KeepCache: true, NoFlush: true}
	}
	file(benchTool, string(tool))
	for i := range manyTools {
		file(toolName(i), "")
	}
	return t
}

// The same tree on go-fuse's node API, as its documentation would have one write
// it: 1 s validity for what is cached, none for controls and live files.
type (
	gofuseFile struct {
		gofs.Inode
		data   []byte
		mode   uint32
		live   bool // direct I/O, nothing cached
		status bool
	}
	gofuseDir struct{ gofs.Inode }
)

var (
	_ gofs.NodeGetattrer = (*gofuseFile)(nil)
	_ gofs.NodeOpener    = (*gofuseFile)(nil)
	_ gofs.NodeReader    = (*gofuseFile)(nil)
	_ gofs.NodeWriter    = (*gofuseFile)(nil)
	_ gofs.NodeFlusher   = (*gofuseFile)(nil)
	_ gofs.NodeSetattrer = (*gofuseFile)(nil)
	_ gofs.NodeLookuper  = (*gofuseDir)(nil)
)

func (f *gofuseFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = f.mode, uint64(len(f.data))
	if !f.live {
		out.SetTimeout(time.Second)
	}
	return 0
}

func (f *gofuseFile) Setattr(ctx context.Context, fh gofs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, fh, out)
}

func (f *gofuseFile) Open(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	switch {
	case f.status:
		return nil, fuse.FOPEN_DIRECT_IO | 1<<5, 0 // FOPEN_NOFLUSH, as ours
	case f.live:
		return nil, fuse.FOPEN_DIRECT_IO, 0
	}
	return nil, fuse.FOPEN_KEEP_CACHE | 1<<5, 0
}

func (f *gofuseFile) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if off >= int64(len(f.data)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(f.data[off:min(off+int64(len(dest)), int64(len(f.data)))]), 0
}

func (f *gofuseFile) Write(_ context.Context, _ gofs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	f.data = append(f.data[:0], data...)
	return uint32(len(data)), 0
}

func (f *gofuseFile) Flush(context.Context, gofs.FileHandle) syscall.Errno { return 0 }

func (d *gofuseDir) Lookup(_ context.Context, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	kid := d.GetChild(name)
	if kid == nil {
		return nil, syscall.ENOENT
	}
	f, ok := kid.Operations().(*gofuseFile)
	if !ok {
		out.Mode = syscall.S_IFDIR | 0o755
		out.SetEntryTimeout(time.Second)
		out.SetAttrTimeout(time.Second)
		return kid, 0
	}
	out.Mode, out.Size = f.mode, uint64(len(f.data))
	if !f.live {
		out.SetEntryTimeout(time.Second)
		out.SetAttrTimeout(time.Second)
	}
	return kid, 0
}

func mountGoFuse(at string, tool []byte) (*fuse.Server, error) {
	root := &gofuseDir{}
	opt := &gofs.Options{
		MountOptions: fuse.MountOptions{AllowOther: true, FsName: "gofuse", DirectMount: true, Options: []string{"default_permissions"}},
		OnAdd: func(ctx context.Context) {
			add := func(d *gofs.Inode, name string, f *gofuseFile) {
				d.AddChild(name, d.NewPersistentInode(ctx, f, gofs.StableAttr{Mode: syscall.S_IFREG}), true)
			}
			dir := func(in *gofs.Inode, name string) *gofs.Inode {
				d := in.NewPersistentInode(ctx, &gofuseDir{}, gofs.StableAttr{Mode: syscall.S_IFDIR})
				in.AddChild(name, d, true)
				return d
			}
			agent := dir(dir(&root.Inode, "agent"), "coder.d")
			add(agent, "approval", &gofuseFile{data: []byte(controlText), mode: 0o644, live: true})
			add(agent, "status", &gofuseFile{data: []byte(statusText), mode: 0o444, live: true, status: true})
			tools := dir(&root.Inode, "tool")
			add(tools, benchTool, &gofuseFile{data: tool, mode: 0o755})
			for i := range manyTools {
				add(tools, toolName(i), &gofuseFile{mode: 0o755})
			}
		},
	}
	return gofs.Mount(at, root, opt)
}
