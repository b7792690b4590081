package bootstrap

import (
	"fmt"
	"path"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/model"
)

// The models that need no network, and the alias that the reference agents use
// (spec sections 18 and 19).
var (
	referenceModels = []string{"debug/echo", "debug/script"}
	referenceAlias  = [2]string{"main", "debug/echo"}
)

// ensureModels makes the reference models and the alias that are not there.
func (r *session) ensureModels() error {
	for _, name := range referenceModels {
		what := model.SystemTier + "/" + name
		if _, err := r.Store.Object(what + ".d"); err == nil {
			continue
		} else if !fault.Is(err, fault.NotExist) {
			return fault.At("look up", what, err)
		}
		r.did("ensure", "ensured", what)
		if r.o.DryRun {
			continue
		}
		if err := r.Store.MkdirAll(path.Dir(what)); err != nil {
			return fault.At("make", what, err)
		}
		var rules strings.Builder
		for _, a := range referenceAgents() {
			fmt.Fprintf(&rules, "allow %s model:%s use\n", subject(a.name), name)
		}
		_, err := r.Store.Create(what+".d", map[string][]byte{"driver": []byte("debug\n"), "policy": []byte(rules.String())})
		if err != nil {
			return fault.At("make", what, err)
		}
	}
	alias := model.SystemTier + "/" + referenceAlias[0]
	if _, err := r.Store.Readlink(alias); !fault.Is(err, fault.NotExist) {
		return nil // whatever stands there is somebody's choice
	}
	r.did("ensure", "ensured", alias)
	if r.o.DryRun {
		return nil
	}
	return fault.At("make", alias, r.Store.Symlink(alias, node.Root+"/"+model.SystemTier+"/"+referenceAlias[1]))
}
