package tree_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestModelsAndLocatorsInAView: an agent reads of a model what is about itself and
// nothing that only people see; of a locator no path of the host.
func TestModelsAndLocatorsInAView(t *testing.T) {
	v := newViewWorld(t)
	_, err := v.Store.Create("model/p/m.d", map[string][]byte{"policy": []byte("allow a_t model:p/m use\nallow b_t model:p/m use\n"), "id": []byte("secret-id\n")})
	must(t, err)
	v.set(t, "/agent/a.d/policy", allow("a_t", "one")+"allow a_t model:p/m use\n")
	const host = `{"transport":"stdio","config":"/etc/mcp/host.json","server":"s","tool":"t","where":"host"}`
	v.set(t, "/tool/one.d/mcp", host+"\n")
	in := v.inside(t, v.a)
	if got, err := read(in, "/model/p/m.d/policy"); err != nil || got != "allow a_t model:p/m use\n" {
		t.Errorf("policy reads %q, %v", got, err)
	}
	if got, err := read(in, "/model/p/m.d/id"); err != nil || got != "secret-id\n" {
		t.Errorf("id reads %q, %v", got, err)
	}
	names, err := in.ReadDir("/model/p/m.d")
	must(t, err)
	if text := fmt.Sprint(names); strings.Contains(text, "log") || !strings.Contains(text, "policy") || !strings.Contains(text, "status") {
		t.Errorf("it sees %v", names)
	}
	_, err = in.Lstat("/model/p/m.d/log")
	fails(t, err, syscall.ENOENT)
	_, err = v.inside(t, v.b).Lstat("/model/p/m.d")
	fails(t, err, syscall.ENOENT)
	if got, err := read(in, "/tool/one.d/mcp"); err != nil || got != `{"transport":"stdio","config":"-","server":"s","tool":"t","where":"host"}`+"\n" {
		t.Errorf("mcp reads %q, %v", got, err)
	}
	inside := strings.Replace(host, `"host"`, `"sandbox"`, 1) + "\n"
	v.set(t, "/tool/one.d/mcp", inside)
	if got, err := read(in, "/tool/one.d/mcp"); err != nil || got != inside {
		t.Errorf("of the sandbox it reads %q, %v", got, err)
	}
	// A policy that is none tells nothing, and a use that ends hides all.
	must(t, v.Store.Remove("model/p/m.d"))
	_, err = v.Store.Create("model/p/m.d", map[string][]byte{"policy": []byte("nonsense\n")})
	must(t, err)
	if got, err := read(in, "/model/p/m.d/policy"); err != nil || got != "" {
		t.Errorf("no policy reads %q, %v", got, err)
	}
	v.set(t, "/agent/a.d/policy", "")
	_, err = read(in, "/model/p/m.d/policy")
	fails(t, err, syscall.ENOENT)
}
