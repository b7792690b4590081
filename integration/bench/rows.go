package main

import (
	"os"
)

// fsRows starts the servers and lists what package fs is measured by.
func (w *world) fsRows() ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ours, err := w.start("ours", self, "-serve", "ours")
	if err != nil {
		return nil, err
	}
	gofuse, err := w.start("gofuse", self, "-serve", "gofuse")
	if err != nil {
		return nil, err
	}
	loop, err := w.start("cloop", w.path("loop"))
	if err != nil {
		return nil, err
	}
	tmpfs, err := w.tmpfs()
	if err != nil {
		return nil, err
	}
	return []row{
		{"GETATTR round trip", w.client("fstat", ours+"/control"), "C loop", w.client("fstat", loop+"/f"), 0.6},
		{"open+read+close, control", w.client("orc", ours+"/control"), "go-fuse", w.client("orc", gofuse+"/control"), 1.3},
		{"open+read+close, status", w.client("orc", ours+"/status"), "go-fuse", w.client("orc", gofuse+"/status"), 1.3},
		{"open+read+close, control", w.client("orc", ours+"/control"), "C loop", w.client("orc", loop+"/f"), 0},
		{"stat, cached directory", w.client("stat", ours+"/d"), "tmpfs", w.client("stat", tmpfs+"/d"), 0.8},
		{"stat, cached tool", w.client("stat", ours+"/d/tool"), "tmpfs", w.client("stat", tmpfs+"/d/tool"), 0.8},
		{"missing name in tool/", w.client("missing", ours+"/tool/none"), "go-fuse", w.client("missing", gofuse+"/tool/none"), 20},
		{"open+write+close, control", w.client("owc", ours+"/control", controlText), "go-fuse", w.client("owc", gofuse+"/control", controlText), 1.3},
		{"ls -f, 10,000 tools", w.client("rd", ours+"/tool"), "tmpfs", w.client("rd", tmpfs+"/tool"), 1},
		{"ls -l, 10,000 tools", w.client("rdl", ours+"/tool"), "tmpfs", w.client("rdl", tmpfs+"/tool"), 1},
		{"exec of a tool, warm", w.client("exec", ours+"/d/tool"), "tmpfs", w.client("exec", tmpfs+"/d/tool"), 0.75},
	}, nil
}
