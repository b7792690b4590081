package daemon

import (
	"context"
	"os"
	"sync"
	"testing"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// A sandbox has the files of who owned the agent when it was started: a later owner
// reaches nothing in it (spec section 5: owner applies at the next start).
func TestANewOwnerReachesNoOldSandbox(t *testing.T) {
	w, m := testWorld(t)
	if !w.root {
		t.Skip("needs several users")
	}
	const before, now = 2001, 2002
	o := newAgent(t, w, "a", now, nil)
	host, err := holdProcess(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	u := m.unit(o.Key())
	u.set(node.Ready, &running{unit: u, owner: before, host: host, want: place{Session: "default"}}, "")
	defer u.set(node.Dead, nil, "")
	ask := func(uid uint32, q ctlproto.Request) error {
		p := &op{w: w, m: m, by: caller{UID: uid, Root: uid == 0}}
		_, err := p.do(context.Background(), q)
		return err
	}
	for _, q := range []ctlproto.Request{&ctlproto.Exec{Agent: "agent/a", Argv: []string{"id"}}, &ctlproto.Attach{Agent: "agent/a"}, &ctlproto.Watch{Agent: "agent/a"}} {
		if err := ask(now, q); !fault.Is(err, fault.Access) {
			t.Errorf("%s by the new owner: %v", q.Op(), err)
		}
		if err := ask(before, q); !fault.Is(err, fault.Access) {
			t.Errorf("%s by the old owner: %v", q.Op(), err)
		}
	}
	if err := ask(0, &ctlproto.Attach{Agent: "agent/a"}); err != nil {
		t.Errorf("root: %v", err)
	}
}

func TestReloadIsRoots(t *testing.T) {
	w, m := testWorld(t)
	for root, want := range map[bool]bool{true: true, false: false} {
		p := &op{w: w, m: m, by: caller{UID: 2001, Root: root}}
		if _, err := p.do(context.Background(), &ctlproto.Reload{}); (err == nil) != want {
			t.Errorf("root %v: %v", root, err)
		}
	}
}

// What is started is what was judged, whatever is written at that moment.
func TestJudgedIsWhatStarts(t *testing.T) {
	w, _ := testWorld(t)
	o := newAgent(t, w, "a", w.uid, nil)
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() { // good and bad by turns
		iso := control.Agent.Lookup("iso")
		if iso == nil {
			return
		}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = o.Store().Put("iso", []byte([]string{"vm\n", agent.IsoUID + "\n"}[i%2]))
		}
	})
	for range 200 {
		if cfg, err := judged(o); err == nil && len(cfg.Faults) > 0 {
			t.Fatalf("a start with faults: %v", cfg.Faults)
		}
	}
	close(stop)
	done.Wait()
}
