package run

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"cortexfs/node/fault"
	"cortexfs/node/model"
)

type models func(ref string, r *model.Request, emit func(model.Frame) error) error

func (m models) Call(_ context.Context, run, ref string, r *model.Request, emit func(model.Frame) error) error {
	return m(ref, r, func(f model.Frame) error { f.Run = run; return emit(f) })
}

func control(w *world) *Control {
	c := &Control{Calls: w.caller(), Prompt: func(context.Context) (string, error) { return "the prompt", nil }}
	c.Models = models(func(ref string, r *model.Request, emit func(model.Frame) error) error {
		if ref != "main" {
			return fault.Newf(fault.Access, "no rule for %s", ref)
		}
		return emit(model.Text("delta", fmt.Sprint(r.Turn, " ", r.Messages)))
	})
	return c
}

func request(id, rest string) string {
	return fmt.Sprintf(`{"agent":"coder","session":"default","run":"%s","request_id":"%s",%s}`, runID, id, rest)
}

func serve(t *testing.T, c *Control, frame string) string {
	t.Helper()
	var out []string
	if err := c.Serve(t.Context(), []byte(frame), func(b []byte) error { out = append(out, string(b)); return nil }); err != nil {
		t.Error(err)
	}
	return strings.Join(out, "\n")
}

func TestControl(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"ping":            {request("r1", `"op":"ping"`), `{"request_id":"r1","type":"pong"}`},
		"prompt":          {request("r1", `"op":"prompt"`), `{"request_id":"r1","text":"the prompt","type":"prompt"}`},
		"model":           {request("r1", `"op":"model","ref":"main","messages":[{"role":"user","content":"hi"}]`), `"text":"0 [{system the prompt []  } {user hi []  }]"`},
		"model refused":   {request("r1", `"op":"model","ref":"other/x","messages":[{"role":"user","content":"hi"}]`), `"code":"EACCES","message":"no rule for other/x"`},
		"model malformed": {request("r1", `"op":"model","ref":"main","messages":5`), `"code":"EINVAL"`},
		"model empty":     {request("r1", `"op":"model","ref":"main"`), `"code":"EINVAL"`},
		"unknown op":      {request("r1", `"op":"shell"`), `"code":"EINVAL","message":"unknown op"`},
		"a tool's name":   {request("r1", `"op":"bash","arguments":"x"`), `"code":"EINVAL","message":"unknown op"`},
		"wrong agent":     {strings.Replace(request("r1", `"op":"ping"`), "coder", "architect", 1), `"code":"EACCES","message":"agent is not the one of this socket"`},
		"wrong session":   {strings.Replace(request("r1", `"op":"ping"`), "default", "x", 1), `"code":"EACCES"`},
		"wrong run":       {strings.Replace(request("r1", `"op":"ping"`), runID, "ctx-9", 1), `"code":"EACCES"`},
		"no run":          {`{"agent":"coder","session":"default","request_id":"r1","op":"ping"}`, `"code":"EACCES"`},
		"no id":           {strings.Replace(request("r1", `"op":"ping"`), "r1", "", 1), `"code":"EINVAL","message":"request_id is an object name"`},
		"no op":           {request("r1", `"x":1`), `"code":"EINVAL","message":"op is missing"`},
		"not JSON":        {"x", `"code":"EINVAL"`},
		"op twice":        {request("r1", `"op":"ping","op":"model"`), `"code":"EINVAL"`},
		"large":           {request("r1", `"op":"ping","x":"`+strings.Repeat("x", MaxControlFrame)+`"`), `"code":"EMSGSIZE"`},
	} {
		if got := serve(t, control(newWorld(t)), c.in); !strings.Contains(got, c.want) {
			t.Errorf("%s: %.300s", name, got)
		}
	}
}

// TestControlReplay: a request id is used once, whatever came of it.
func TestControlReplay(t *testing.T) {
	c := control(newWorld(t))
	serve(t, c, request("r1", `"op":"ping"`))
	for range 2 {
		if got := serve(t, c, request("r1", `"op":"ping"`)); !strings.Contains(got, `"code":"EALREADY"`) {
			t.Error(got)
		}
	}
	serve(t, c, request("r2", `"op":"nonsense"`))
	if got := serve(t, c, request("r2", `"op":"ping"`)); !strings.Contains(got, `"code":"EALREADY"`) {
		t.Error(got)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	pongs := 0
	for range 50 {
		wg.Go(func() {
			c.Serve(t.Context(), []byte(request("r3", `"op":"ping"`)), func(b []byte) error {
				mu.Lock()
				defer mu.Unlock()
				if strings.Contains(string(b), "pong") {
					pongs++
				}
				return nil
			})
		})
	}
	wg.Wait()
	if pongs != 1 {
		t.Errorf("%d answers", pongs)
	}
}

func TestModelBudget(t *testing.T) {
	c := control(newWorld(t))
	for i := range ModelBudget + 3 {
		got := serve(t, c, request(fmt.Sprint("r", i), `"op":"model","ref":"main","messages":[{"role":"user","content":"hi"}]`))
		if i < ModelBudget && !strings.Contains(got, fmt.Sprintf(`"text":"%d `, i)) || i >= ModelBudget && !strings.Contains(got, `"code":"EAGAIN"`) {
			t.Fatalf("%d: %s", i, got)
		}
	}
}

// TestControlTools: an op of a host tool is a call of that tool: every row, an
// approval, hooks, one event.
func TestControlTools(t *testing.T) {
	made := 0
	setup := func() (*world, *Control) {
		w := newWorld(t)
		w.declared = append(w.declared, "agent.create")
		w.hits["agent.create"] = w.hits["bash"]
		w.own += "allow coder_t tool:agent.create execute\n"
		w.tools += "allow coder_t tool:agent.create execute\n"
		c := control(w)
		c.Calls.Host = map[string]HostTool{"agent.create": func(_ context.Context, a *Args) *Output {
			made++
			return &Output{Stdout: append([]byte("made "), a.Native...)}
		}}
		return w, c
	}
	w, c := setup()
	got := serve(t, c, request("r1", `"op":"agent.create","arguments":{"name":"x"}`))
	if got != `{"type":"result","request_id":"r1","status":"ok","content":"made {\"name\":\"x\"}","truncated":false}` || made != 1 || len(w.verdicts()) != 1 {
		t.Errorf("%s", got)
	}
	if got := w.types(); got != "tool_call message:tool" {
		t.Error(got)
	}
	for name, change := range map[string]func(w *world, c *Control){
		"6 own policy":  func(w *world, _ *Control) { w.own = "" },
		"7 tool policy": func(w *world, _ *Control) { w.tools = "" },
		"2 declared":    func(w *world, _ *Control) { w.declared = nil },
		"9 approval":    func(w *world, _ *Control) { w.ask = true },
		"hook": func(_ *world, c *Control) {
			c.Calls.Hooks = hookFunc(func(Object, *HookEvent) error { return &RunError{Code: "EACCES", Message: "no"} })
		},
	} {
		made = 0
		w, c := setup()
		change(w, c)
		got := serve(t, c, request("r1", `"op":"agent.create","arguments":{"name":"x"}`))
		if !strings.Contains(got, `"status":"error","content":"ERROR: EACCES`) || made != 0 {
			t.Errorf("%s: %s", name, got)
		}
		v := w.verdicts()
		if len(v) != 1 || name[0] != 'h' && !strings.HasPrefix(v[0].Reason, "row "+name[:1]) {
			t.Errorf("%s: %+v", name, v)
		}
	}
	// The id of a call of a step is not free for a request.
	_, c = setup()
	c.Calls.Claim("r1")
	if got := serve(t, c, request("r1", `"op":"agent.create"`)); !strings.Contains(got, `"code":"EALREADY"`) {
		t.Error(got)
	}
}
