package agent

import (
	"testing"

	"cortexfs/node/fault"
)

// Two agents of one owner and name would share a state directory: who is not root
// makes no second one, in neither tier.
func TestNoSecondAgentInAStateDirectory(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.create(System("coder"), 1000)
	w.create(InHome(1000, "mine"), 1000)
	make := func(k Key, by Writer, owner uint32) error {
		_, err := w.table.Create(k, CreateOptions{Writer: by, Owner: owner})
		return err
	}
	for _, k := range []Key{InHome(1000, "coder"), System("mine")} {
		if err := make(k, person(1000), 1000); !fault.Is(err, fault.Exist) {
			t.Errorf("%s: %v", k, err)
		}
	}
	if err := make(InHome(1001, "coder"), person(1001), 1001); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := make(InHome(1000, "other"), person(1000), 1000); err != nil {
		t.Errorf("another name: %v", err)
	}
	if err := make(System("mine"), root(), 1000); err != nil {
		t.Errorf("root: %v", err)
	}
}
