package main

import "os"

// peers are what we are measured against.
type peers struct{ gofuse, loop, tmpfs string }

func (w *world) startPeers() (p peers, err error) {
	self, err := os.Executable()
	if err != nil {
		return p, err
	}
	if p.gofuse, err = w.start("gofuse", self, "-serve", "gofuse"); err != nil {
		return p, err
	}
	if p.loop, err = w.start("cloop", w.path("loop")); err != nil {
		return p, err
	}
	if p.tmpfs, err = w.tmpfs("tmpfs"); err != nil {
		return p, err
	}
	return p, w.fill(p.tmpfs, false)
}

// fsRows starts package fs with an in-memory tree.
func (w *world) fsRows(p peers) ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ours, err := w.start("ours", self, "-serve", "ours")
	if err != nil {
		return nil, err
	}
	rows := w.readRows(ours, p)
	return append(rows,
		w.pair("missing name in tool/", "missing", ours, "go-fuse", p.gofuse, "/tool/none", 20),
		w.pair("open+write+close, control", "owc", ours, "go-fuse", p.gofuse, control, 1.3),
		w.pair("ls -f, 10,000 tools", "rd", ours, "tmpfs", p.tmpfs, "/tool", 1),
		w.pair("ls -l, 10,000 tools", "rdl", ours, "tmpfs", p.tmpfs, "/tool", 1),
		w.pair("exec of a tool, warm", "exec", ours, "tmpfs", p.tmpfs, "/tool/"+benchTool, 0.75),
	), nil
}

// readRows are the rows that are the same for the in-memory tree and the daemon.
func (w *world) readRows(ours string, p peers) []row {
	return []row{
		{"GETATTR round trip", w.client("fstat", ours, status), "C loop", w.client("fstat", p.loop, "/f"), 0.6},
		w.pair("open+read+close, control", "orc", ours, "go-fuse", p.gofuse, control, 1.3),
		w.pair("open+read+close, status", "orc", ours, "go-fuse", p.gofuse, status, 1.3),
		w.pair("stat, cached directory", "stat", ours, "tmpfs", p.tmpfs, "/tool", 0.8),
		w.pair("stat, cached tool", "stat", ours, "tmpfs", p.tmpfs, "/tool/"+benchTool, 0.8),
	}
}

// pair is one operation on the same path of two trees.
func (w *world) pair(what, op, ours, against, theirs, path string, reach float64) row {
	return row{what, w.client(op, ours, path), against, w.client(op, theirs, path), reach}
}
