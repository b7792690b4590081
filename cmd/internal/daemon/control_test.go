package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/fault"
)

func serveControl(t *testing.T) (*world, string) {
	t.Helper()
	w, m := testWorld(t)
	c, err := listenControl(w, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return w, w.run.control()
}

func dial(t *testing.T, path string) *ctlproto.Client {
	t.Helper()
	c, err := ctlproto.Dial(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestControlLifeOfAnAgent(t *testing.T) {
	_, path := serveControl(t)
	c := dial(t, path)
	do := func(q ctlproto.Request, out any, each func(*ctlproto.Frame) error) error {
		data, err := c.Do(q, each)
		if err == nil && out != nil {
			err = json.Unmarshal(data, out)
		}
		return err
	}
	var made ctlproto.Agent
	if err := do(&ctlproto.New{Agent: "agent/a", Tools: []string{"fs.read"}, Mounts: [][]string{{"/srv", "/srv", "ro"}}}, &made, nil); err != nil {
		t.Fatal(err)
	}
	if made.Ref != "agent/a" || made.State != "dead" {
		t.Errorf("made %+v", made)
	}
	if err := do(&ctlproto.New{Agent: "agent/a"}, nil, nil); !fault.Is(err, fault.Exist) {
		t.Errorf("twice: %v", err)
	}
	for _, q := range []*ctlproto.New{
		{Agent: "agent/..d"}, {Agent: "a b"}, {Agent: "agent/b", Texts: map[string]string{"status": "x\n"}},
		{Agent: "agent/b", Texts: map[string]string{"approval": "maybe\n"}}, {Agent: "agent/b", Shared: []string{"x:run"}},
		{Agent: "agent/b", Mounts: [][]string{{"/a", "/b"}}}, {Agent: "agent/b", Label: "a:b"},
	} {
		if err := do(q, nil, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	var st ctlproto.Described
	if err := do(&ctlproto.Status{Agent: "a"}, &st, nil); err != nil || st.Label != "user_u:agent_r:a_t:s0" || st.PID != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	var rows int
	var v ctlproto.WhyVerdict
	err := do(&ctlproto.Why{Agent: "a", Tool: "fs.read"}, &v, func(f *ctlproto.Frame) error { rows++; return nil })
	if err != nil || v.Allowed || rows != 9 {
		t.Errorf("why: %+v, %d rows, %v", v, rows, err)
	}
	var waited ctlproto.Waited
	if err := do(&ctlproto.Wait{Agent: "a", State: "dead", TimeoutMS: -1}, &waited, nil); err != nil || !waited.Reached {
		t.Errorf("wait: %+v, %v", waited, err)
	}
	if err := do(&ctlproto.Wait{Agent: "a", State: "ready"}, &waited, nil); err != nil || waited.Reached {
		t.Errorf("ask: %+v, %v", waited, err)
	}
	for _, q := range []ctlproto.Request{&ctlproto.Attach{Agent: "a"}, &ctlproto.Exec{Agent: "a", Argv: []string{"id"}}} {
		if err := do(q, nil, nil); ctlproto.ExitCode(err) != ctlproto.ExitUnavailable || !strings.Contains(err.Error(), "ctx agent start a") {
			t.Errorf("%s of a dead agent: %v", q.Op(), err)
		}
	}
	var stopped ctlproto.Stopped
	if err := do(&ctlproto.Stop{Agent: "a"}, &stopped, nil); err != nil || stopped.Was != "dead" {
		t.Errorf("stop: %+v, %v", stopped, err)
	}
	for _, q := range []ctlproto.Request{
		&ctlproto.Start{Agent: "a", Session: "index"}, &ctlproto.Start{Agent: "a", CWD: "rel"}, &ctlproto.Start{Agent: "a", CWD: "/a/../b"},
		&ctlproto.Start{Agent: "a", Git: "ro"}, &ctlproto.Start{Agent: "a", Mounts: [][]string{{"/a", "/b", "rx"}}},
		&ctlproto.Stop{Agent: "a", GraceMS: -1}, &ctlproto.Stop{Agent: "a", GraceMS: 1 << 30}, &ctlproto.Wait{Agent: "a", State: "happy"},
		&ctlproto.Exec{Agent: "a"},
	} {
		if err := do(q, nil, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if err := do(&ctlproto.Rm{Agent: "a"}, nil, nil); err != nil {
		t.Error(err)
	}
	if err := do(&ctlproto.Status{Agent: "a"}, nil, nil); !fault.Is(err, fault.NotExist) {
		t.Errorf("removed: %v", err)
	}
}

// TestControlFaultsOfAStart: every fault is listed, nothing is left.
func TestControlFaultsOfAStart(t *testing.T) {
	w, path := serveControl(t)
	o := newAgent(t, w, "a", w.uid, nil)
	for name, text := range map[string]string{"mount": "nonsense\n", "iso": "vm\n"} {
		if err := o.Store().Put(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Store().Delete("abi"); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t, path).Do(&ctlproto.Start{Agent: "a"}, nil)
	if err == nil || ctlproto.ExitCode(err) != 1 {
		t.Fatalf("%v (exit %d)", err, ctlproto.ExitCode(err))
	}
	for _, want := range []string{"/mount", "/iso", "/abi"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in: %v", want, err)
		}
	}
	if exists(w.run.agent(o.Key().RuntimeKey())) {
		t.Error("something is left")
	}
}

func TestControlStrictAndBounded(t *testing.T) {
	_, path := serveControl(t)
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	conn := ctlproto.NewConn(nc)
	for _, line := range []string{`{"op":"ps","x":1}`, `nonsense`, `{"op":"fly"}`} {
		if err := conn.WriteLine([]byte(line)); err != nil {
			t.Fatal(err)
		}
		got, err := conn.ReadLine()
		var f ctlproto.Frame
		if err != nil || json.Unmarshal(got, &f) != nil || f.Code != "EINVAL" || f.Exit != 2 {
			t.Errorf("%s: %s, %v", line, got, err)
		}
	}
	// The connection goes on after a refusal, and ends after a line without end.
	if _, err := fmt.Fprint(nc, strings.Repeat("x", ctlproto.MaxFrame+4096)); err != nil {
		t.Fatal(err)
	}
	got, err := conn.ReadLine()
	if err != nil || !strings.Contains(string(got), "EFBIG") {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := conn.ReadLine(); err == nil {
		t.Error("the connection goes on")
	}
}

func TestControlConnectionLimit(t *testing.T) {
	_, path := serveControl(t)
	for range maxConns {
		c := dial(t, path)
		if _, err := c.Do(&ctlproto.PS{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, path)
	if f, err := c.Read(); err != nil || f.Code != "EAGAIN" {
		t.Errorf("one more: %+v, %v", f, err)
	}
}

// TestControlHalfClosed: a client that shuts its write side still gets its answer.
func TestControlHalfClosed(t *testing.T) {
	_, path := serveControl(t)
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, `{"op":"ps"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := nc.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(nc)
	if err != nil || !strings.Contains(string(b), `"done":true`) {
		t.Errorf("%s, %v", b, err)
	}
}
