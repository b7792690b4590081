package node

// Version of the build, set by the linker (Makefile); shown by `ctx version` and
// the root's attribute user.cortexfs.version.
var Version = "unknown"
