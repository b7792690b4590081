// Package integration holds the tests that need more than one package: import
// arrows, real mounts, real editors, real sandboxes, documents that must equal
// what is generated.
package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	GoFiles      []string
	Dir          string
}

// level of a package of ours: an import may only point to a lower level, or stay
// within one group. Unknown packages fail the test, so a new package has to be
// given its place here (design section 3).
func level(path string) (int, bool) {
	p := strings.TrimPrefix(path, "cortexfs/")
	switch {
	case p == "node", p == "node/fault":
		return 0, true
	case p == "node/vnode", p == "node/text", p == "node/beneath", p == "node/jsonl":
		return 1, true
	case p == "policy":
		return 2, true
	case p == "policy/attenuate":
		return 3, true
	case p == "node/control", p == "node/store":
		return 4, true
	case p == "node/agent", p == "node/tool", p == "node/model", strings.HasPrefix(p, "node/model/driver/"):
		return 5, true
	case p == "node/view", p == "node/prompt", p == "node/session":
		return 6, true
	case p == "node/ordinary":
		return 6, true
	case p == "node/tree", p == "node/run":
		return 7, true
	case p == "node/nodetest":
		return 8, true
	case p == "fs", strings.HasPrefix(p, "fs/"), p == "sandbox", strings.HasPrefix(p, "sandbox/"):
		return 9, true
	case strings.HasPrefix(p, "cmd/internal/"):
		return 10, true
	case strings.HasPrefix(p, "cmd/"):
		return 11, true
	case p == "integration":
		return 12, true
	}
	return 0, false
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps,GoFiles,Dir", "cortexfs/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 8 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// TestImportArrows holds the arrows of design section 3.
func TestImportArrows(t *testing.T) {
	for _, p := range listPackages(t) {
		from, known := level(p.ImportPath)
		if !known {
			t.Errorf("package %s has no level in arrows_test.go", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, "cortexfs/") {
				checkForeign(t, p.ImportPath, imp)
				continue
			}
			to, known := level(imp)
			switch {
			case !known: // reported on its own
			case strings.HasPrefix(imp, "cortexfs/sandbox") && strings.HasPrefix(p.ImportPath, "cortexfs/fs"),
				strings.HasPrefix(imp, "cortexfs/fs") && strings.HasPrefix(p.ImportPath, "cortexfs/sandbox"):
				t.Errorf("%s imports %s: fs and sandbox never import each other", p.ImportPath, imp)
			case to > from:
				t.Errorf("%s (level %d) imports %s (level %d)", p.ImportPath, from, imp, to)
			}
		}
	}
}

func checkForeign(t *testing.T, path, imp string) {
	t.Helper()
	inside := func(dirs ...string) bool {
		for _, d := range dirs {
			if path == "cortexfs/"+d || strings.HasPrefix(path, "cortexfs/"+d+"/") {
				return true
			}
		}
		return false
	}
	switch {
	case imp == "bazil.org/fuse" && !inside("fs"):
		t.Errorf("%s imports bazil.org/fuse: only fs may", path)
	case strings.HasPrefix(imp, "github.com/spf13/") && !inside("cmd"):
		t.Errorf("%s imports %s: only cmd may", path, imp)
	case imp == "os/exec" && !inside("sandbox", "cmd", "integration", "fs"):
		t.Errorf("%s imports os/exec", path)
	case imp == "testing" && !strings.HasSuffix(path, "test"):
		t.Errorf("%s imports testing outside a test package", path)
	case inside("policy") && (imp == "os" || imp == "io/fs" || imp == "net" || imp == "syscall" || imp == "time" || strings.HasPrefix(imp, "golang.org/x/sys")):
		t.Errorf("%s imports %s: policy is pure", path, imp)
	}
}

// TestSandboxKnowsNoTree: nothing below sandbox/ may know the tree, not even
// through a third package.
func TestSandboxKnowsNoTree(t *testing.T) {
	for _, p := range listPackages(t) {
		if p.ImportPath != "cortexfs/sandbox" && !strings.HasPrefix(p.ImportPath, "cortexfs/sandbox/") {
			continue
		}
		for _, dep := range p.Deps {
			switch dep {
			case "cortexfs/node/tree", "cortexfs/node/view", "cortexfs/node/run", "bazil.org/fuse":
				t.Errorf("%s depends on %s", p.ImportPath, dep)
			}
		}
	}
}

// TestBinariesDoNotCarryTestCode: package testing and our test kits stay out of
// what we ship.
func TestBinariesDoNotCarryTestCode(t *testing.T) {
	for _, p := range listPackages(t) {
		if filepath.Dir(p.ImportPath) != "cortexfs/cmd" {
			continue
		}
		for _, dep := range p.Deps {
			if dep == "testing" || dep == "cortexfs/node/nodetest" || dep == "cortexfs/fs/fstest" {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
}
