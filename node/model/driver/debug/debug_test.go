package debug

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/model"
)

func script(text string) Script {
	return Script{Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
}

func run(t *testing.T, d model.Driver, r *model.Request) (string, error) {
	t.Helper()
	var out []string
	err := model.Call(t.Context(), model.Options{}, []model.Candidate{{Name: "debug/x", Driver: d}}, r, func(f model.Frame) error {
		out = append(out, string(f.JSON()))
		return nil
	})
	return strings.Join(out, "\n"), err
}

func ask(roles ...string) *model.Request {
	r := &model.Request{}
	for _, role := range roles {
		m := model.Message{Role: role, Content: role + " text"}
		if role == "tool" {
			m.ToolCallID = "c"
		}
		r.Messages = append(r.Messages, m)
	}
	return r
}

func TestEcho(t *testing.T) {
	got, err := run(t, Echo{}, ask("system", "user"))
	want := `{"type":"start","run":"r1","model":"debug/x"}
{"type":"delta","run":"r1","text":"user text"}
{"type":"message","run":"r1","role":"assistant","content":[{"type":"text","text":"user text"}]}
{"type":"usage","run":"r1","input_tokens":6,"output_tokens":3}
{"type":"done","run":"r1","status":"ok"}`
	if got != want || err != nil {
		t.Errorf("%s\n%v", got, err)
	}
}

const turns = `{"type":"delta","text":"let me look"}
{"type":"tool_call","id":"c1","name":"fs.read","arguments":{"path":"a"}}

{"type":"message","content":[{"type":"text","text":"it says x"}]}
{"type":"done"}
{"type":"error","code":"EAGAIN","message":"enough"}
`

func TestScriptTurns(t *testing.T) {
	for _, c := range []struct {
		roles []string
		want  string
		kind  fault.Kind
	}{
		{[]string{"system", "user"}, `"name":"fs.read"`, 0},
		{[]string{"user", "assistant", "tool"}, `it says x`, 0},
		{[]string{"user", "assistant", "user"}, `"name":"fs.read"`, 0}, // a new question begins anew
		{[]string{"user", "assistant", "tool", "assistant"}, `"code":"EAGAIN","message":"enough"`, fault.Again},
		{[]string{"user", "assistant", "assistant", "assistant"}, `no answer number 4`, fault.NotExist},
	} {
		for range 2 { // the same request gets the same answer
			got, err := run(t, script(turns), ask(c.roles...))
			if !strings.Contains(got, c.want) || fault.Is(err, c.kind) == (c.kind == 0) && err != nil {
				t.Errorf("%v: %s %v", c.roles, got, err)
			}
			if strings.Count(got, `"type":"done"`) != 1 {
				t.Errorf("%s", got)
			}
		}
	}
}

func TestBadScripts(t *testing.T) {
	for _, text := range []string{"x\n", "{}\n", `{"type":"start"}`, `{"type":"tool_call","name":"../x"}`, `{"type":"wait","ms":-1}`,
		`{"type":"delta","type":"delta"}`, `{"type":"delta","text":5}`, `{"type":"delta","text":"` + strings.Repeat("x", maxLine) + `"}`} {
		if got, err := run(t, script(text), ask("user")); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.40s: %s %v", text, got, err)
		}
	}
	broken := Script{Open: func() (io.ReadCloser, error) { return nil, errors.New("x") }}
	if _, err := run(t, broken, ask("user")); err == nil {
		t.Error("no error")
	}
}

func TestWaitEndsWithCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		began := time.Now()
		go func() {
			done <- script(`{"type":"wait","ms":60000}`+"\n"+`{"type":"delta","text":"late"}`).Complete(ctx, ask("user"), func(model.Frame) error {
				t.Error("a frame after the cancel")
				return nil
			})
		}()
		time.Sleep(time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Error(err, time.Since(began))
		}
	})
}
