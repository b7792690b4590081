package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

// driver answers with frames, then with an error.
type driver struct {
	frames []Frame
	err    error
	hang   bool
}

func (d driver) Complete(ctx context.Context, _ *Request, emit func(Frame) error) error {
	for _, f := range d.frames {
		if err := emit(f); err != nil {
			return err
		}
	}
	if d.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return d.err
}

func ask(text string) *Request { return &Request{Messages: []Message{{Role: "user", Content: text}}} }

func calls(t *testing.T, o Options, c ...Candidate) (string, error) {
	var out []string
	err := Call(t.Context(), o, c, ask("hi"), func(f Frame) error {
		s := f.Type
		for _, x := range []string{f.Model, f.Text, f.Plain(), f.Name, f.Code, f.Status} {
			if x != "" {
				s += ":" + x
			}
		}
		out = append(out, s)
		if f.Run != "r1" {
			t.Errorf("run %q", f.Run)
		}
		return nil
	})
	return strings.Join(out, " "), err
}

func TestFallback(t *testing.T) {
	busy := driver{err: fault.Newf(fault.Again, "busy")}
	good := driver{frames: []Frame{Text("delta", "a"), Text("delta", "b")}}
	late := driver{frames: []Frame{Text("delta", "a")}, err: fault.Newf(fault.IO, "cut")}
	for name, c := range map[string]struct {
		chain []Driver
		want  string
		kind  fault.Kind
	}{
		"first":        {[]Driver{good, busy}, "start:m0 delta:a delta:b message:ab done:ok", 0},
		"second":       {[]Driver{busy, good}, "start:m1 delta:a delta:b message:ab done:ok", 0},
		"third":        {[]Driver{busy, busy, good}, "start:m2 delta:a delta:b message:ab done:ok", 0},
		"all busy":     {[]Driver{busy, busy}, "error:EAGAIN done:error", fault.Again},
		"after a word": {[]Driver{late, good}, "start:m0 delta:a error:EIO done:error", fault.IO},
		"none":         {nil, "error:ENOENT done:error", fault.NotExist},
	} {
		var chain []Candidate
		for i, d := range c.chain {
			chain = append(chain, Candidate{fmt.Sprint("m", i), d})
		}
		got, err := calls(t, Options{}, chain...)
		if got != c.want || (err == nil) != (c.kind == 0 && err == nil) || err != nil && !fault.Is(err, c.kind) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got, err := calls(t, Options{}, Candidate{"slow", driver{hang: true}}, Candidate{"good", driver{frames: []Frame{Text("delta", "x")}}})
		if err != nil || got != "start:good delta:x message:x done:ok" || time.Since(began) != DefaultTimeout {
			t.Error(got, err, time.Since(began))
		}
		began = time.Now()
		got, err = calls(t, Options{Timeout: time.Hour}, Candidate{"slow", driver{frames: []Frame{Text("delta", "x")}, hang: true}})
		if !fault.Is(err, fault.TimedOut) || got != "start:slow delta:x error:ETIMEDOUT done:error" || time.Since(began) != MaxTimeout {
			t.Error(got, err, time.Since(began))
		}
	})
}

func TestCallBounds(t *testing.T) {
	big := driver{frames: slices.Repeat([]Frame{Text("delta", strings.Repeat("x", 1<<20))}, 40)}
	if _, err := calls(t, Options{}, Candidate{"big", big}); !fault.Is(err, fault.TooBig) {
		t.Error(err)
	}
	if got, err := calls(t, Options{}, Candidate{"odd", driver{frames: []Frame{{Type: "start"}}}}); !fault.Is(err, fault.IO) || strings.Contains(got, "start") {
		t.Error(got, err)
	}
	stop := errors.New("reader gone")
	n := 0
	err := Call(t.Context(), Options{}, []Candidate{{"a", driver{frames: []Frame{Text("delta", "x")}}}, {"b", driver{}}}, ask("x"), func(Frame) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Error(n, err)
	}
}

// TestModelRunsNothing: a model that emits a tool call, as a frame or as its
// text, gives its caller a frame and nothing else happens.
func TestModelRunsNothing(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	args := fmt.Sprintf(`{"cmd":"touch %s"}`, marker)
	got, err := calls(t, Options{}, Candidate{"m", driver{frames: []Frame{{Type: "tool_call", ID: "../bad", Name: "shell.exec", Arguments: json.RawMessage(args)}}}})
	if got != "start:m tool_call:shell.exec done:ok" || err != nil {
		t.Error(got, err)
	}
	text := ` {"type":"tool_call","id":"c","name":"shell.exec","arguments":` + args + "}\n"
	got, err = calls(t, Options{}, Candidate{"m", driver{frames: []Frame{Text("delta", text)}}})
	if !strings.HasSuffix(got, "tool_call:shell.exec done:ok") || err != nil {
		t.Error(got, err)
	}
	for _, text := range []string{`{"type":"tool_call","name":"../x"}`, `{"type":"x"}`, `tool_call`, `{"type":"tool_call","name":"a"} and more`, `{`} {
		if c, ok := TextCall(text); ok {
			t.Errorf("%s: %v", text, c)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("it ran")
	}
}

func TestParseRequest(t *testing.T) {
	r, err := ParseInput([]byte(`{"messages":[
		{"role":"system","content":"s"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{\"a\":1}"}},{"id":"c2","name":"u","arguments":{"b":2}},{"id":"c3","type":"function","function":{"name":"v","arguments":"broken"}}]},
		{"type":"message","run":"x","role":"tool","name":"t","content":[{"type":"tool_result","tool_call_id":"c1","content":"out"}]}],
		"tools":[{"type":"function","function":{"name":"t","description":"d","parameters":{"type":"object"}}},{"name":"u","schema":{}}],"unknown":1}`))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(r)
	want := `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a\nb"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","name":"t","arguments":{"a":1}},{"id":"c2","name":"u","arguments":{"b":2}},{"id":"c3","name":"v","arguments":"broken"}]},{"role":"tool","content":"out","tool_call_id":"c1","name":"t"}],"tools":[{"name":"t","description":"d","schema":{"type":"object"}},{"name":"u","schema":{}}]}`
	if string(got) != want {
		t.Errorf("%s", got)
	}
	for in, want := range map[string]string{"plain text\n": "plain text", `{"a":1}`: `{"a":1}`, "": ""} {
		if r, err := ParseInput([]byte(in)); err != nil || r.Messages[0].Content != want || r.Messages[0].Role != "user" {
			t.Errorf("%q: %v %v", in, r, err)
		}
	}
	for _, in := range []string{`{"messages":[]}`, `{"messages":5}`, `{"messages":[{"role":"root","content":"x"}]}`, `{"messages":[{"role":"tool","content":"x"}]}`,
		`{"messages":[{"role":"user","content":5}]}`, `{"messages":[{"role":"user","content":[{"type":"image"}]}]}`, `{"messages":[{"role":"user","content":"x"}],"temperature":9}`,
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":-1}`, `{"messages":[{"role":"user","content":"x"}],"effort":"huge"}`} {
		if _, err := ParseInput([]byte(in)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", in, err)
		}
	}
	if _, err := ParseInput([]byte("\xff")); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if _, err := ParseInput(bytes.Repeat([]byte("x"), MaxRequest+1)); !fault.Is(err, fault.TooBig) {
		t.Error(err)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{"a\n\n b\tc ": "a b c", "x\x1b[2J\u202ey": "x[2Jy", strings.Repeat("世", 600): strings.Repeat("世", 512), "\xff": "\ufffd"} {
		if got := Printable(in, 512); got != want {
			t.Errorf("%q", got)
		}
	}
}

// ---- catalog

func world(t *testing.T) (*store.Store, *Catalog) {
	st, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{Create: true, Mountpoint: "/ctx"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st, NewCatalog(st, 0)
}

func install(t *testing.T, st *store.Store, dir string, texts map[string]string) {
	t.Helper()
	if err := st.MkdirAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	b := map[string][]byte{}
	for k, v := range texts {
		b[k] = []byte(v)
	}
	if _, err := st.Create(dir+".d", b); err != nil {
		t.Fatal(err)
	}
}

func rules(t *testing.T, text string) *policy.Set {
	s, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ref(t *testing.T, s string) control.ModelRef {
	r, err := control.ParseModelRef([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCatalog(t *testing.T) {
	st, c := world(t)
	open := "allow coder_t model:debug/echo use\nallow coder_t model:openai/gpt use\n"
	install(t, st, "model/debug/echo", map[string]string{"policy": open})
	install(t, st, "model/openai/gpt", map[string]string{"driver": "openai\n", "policy": open, "cap": "chat\nstream\ntool_call_syntax\n",
		"fallback": "# one\nnone/such\nhidden/x\ndebug/echo\n\nopenai/gpt\n"})
	install(t, st, "model/hidden/x", map[string]string{"policy": open})
	install(t, st, "model/broken/x", map[string]string{"policy": "deny all\n"})
	install(t, st, "home/1000/model/my/own", nil)
	for name, target := range map[string]string{"main": "openai/gpt", "abs": "/ctx/model/debug/echo", "out": "../../etc/passwd", "loop": "loop", "agent": "/ctx/agent/coder", "gone": "no/such"} {
		if err := st.Symlink("model/"+name, target); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Symlink("home/1000/model/main", "my/own"); err != nil {
		t.Fatal(err)
	}
	if err := st.Symlink("home/1000/model/sys", "/ctx/model/debug/echo"); err != nil {
		t.Fatal(err)
	}
	sys, home := Tiers(0, false), Tiers(1000, true)
	for _, x := range []struct {
		tiers    []string
		ref, to  string
		notExist bool
	}{
		{sys, "main", "model/openai/gpt", false}, {sys, "abs", "model/debug/echo", false}, {sys, "debug/echo", "model/debug/echo", false},
		{home, "main", "home/1000/model/my/own", false}, {home, "sys", "model/debug/echo", false}, {home, "my/own", "home/1000/model/my/own", false},
		{home, "debug/echo", "model/debug/echo", false}, {sys, "my/own", "", true}, {sys, "out", "", true}, {sys, "loop", "", true},
		{sys, "agent", "", true}, {sys, "gone", "", true}, {sys, "nothing", "", true},
	} {
		m, err := c.Resolve(x.tiers, ref(t, x.ref))
		if fault.Is(err, fault.NotExist) != x.notExist || err == nil && m.Tier+"/"+m.Name != x.to {
			t.Errorf("%s in %v: %v %v", x.ref, x.tiers, m, err)
		}
	}
	m, err := c.Lookup("model", "openai/gpt")
	if err != nil || m.Driver != "openai" || len(m.Cap) != 3 || m.Effort != "auto" {
		t.Errorf("%+v %v", m, err)
	}

	u := &User{Owner: 1000, Subject: "coder_t", Policy: rules(t, "allow coder_t model:main use\nallow coder_t model:debug/echo use\n"), File: "/ctx/agent/coder.d/policy"}
	use := func(m *Model, ref string) error { return m.Use(u, ref) }
	plan, skipped, err := c.Plan(sys, ref(t, "main"), use)
	var names []string
	for _, m := range plan {
		names = append(names, m.Name)
	}
	// hidden/x is there and allows the type, but the agent has no rule for it.
	if err != nil || !slices.Equal(names, []string{"openai/gpt", "debug/echo"}) || len(skipped) != 3 {
		t.Errorf("%v %v %v", names, skipped, err)
	}
	for r, text := range map[string]string{
		"openai/gpt": "/ctx/agent/coder.d/policy has no rule `allow coder_t model:openai/gpt use`", // the rule is for the alias
		"broken/x":   "/ctx/model/broken/x.d/policy",
	} {
		if _, _, err := c.Plan(sys, ref(t, r), use); !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", r, err)
		}
	}
	// A model without a policy is its owner's only.
	u.Policy = rules(t, "allow coder_t model:my/own use\n")
	if _, _, err := c.Plan(home, ref(t, "my/own"), use); err != nil {
		t.Error(err)
	}
	u.Owner = 1001
	if _, _, err := c.Plan(home, ref(t, "my/own"), use); !fault.Is(err, fault.Access) {
		t.Error(err)
	}
	// A type that the model does not name.
	u.Subject, u.Policy = "other_t", rules(t, "allow other_t model:debug/echo use\n")
	if _, _, err := c.Plan(sys, ref(t, "debug/echo"), use); !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), "/ctx/model/debug/echo.d/policy has no rule `allow other_t model:debug/echo use`") {
		t.Error(err)
	}
	u.Policy = nil
	if _, _, err := c.Plan(sys, ref(t, "debug/echo"), use); !fault.Is(err, fault.Access) {
		t.Error(err)
	}
}

// ---- secrets

const key = "sk-test-0123456789abcdefghijklmnop"

func TestSecretDoesNotPrint(t *testing.T) {
	s, err := ReadSecret(strings.NewReader(key + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParseProvider([]byte(`{"name":"p","driver":"openai","base_url":"https://example.com","secret":"main"}`))
	if err != nil {
		t.Fatal(err)
	}
	p = p.WithSecret(s)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", s, "p", p)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s, "p", p)
	js, _ := json.Marshal([]any{s, p})
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s), fmt.Sprintf("%v %+v %#v", *p, p, p), string(js), log.String()} {
		if strings.Contains(text, key) || strings.Contains(text, "736b2d74") {
			t.Errorf("%s", text)
		}
	}
	if s.Bearer() != "Bearer "+key {
		t.Error("bearer")
	}
	for in, want := range map[string]string{
		"a " + key + " b":         "a [secret] b",
		"x" + key[3:15] + "…":     "x[secret]…",
		"short " + key[:7]:        "short " + key[:7],
		key + key:                 "[secret][secret]",
		"nothing to hide in here": "nothing to hide in here",
	} {
		if got := s.Redact(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for _, bad := range []string{"", "\n", "two\nlines", "a b", "a\x00", "ключ", strings.Repeat("x", maxSecret+2)} {
		if _, err := ReadSecret(strings.NewReader(bad)); err == nil || len(bad) > 3 && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestLoadProviders(t *testing.T) {
	root := t.TempDir()
	tier := func(name string) (providers, secrets *os.File) {
		for _, d := range []string{"providers.d", "secrets"} {
			if err := os.MkdirAll(filepath.Join(root, name, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		var fs [2]*os.File
		for i, d := range []string{"providers.d", "secrets"} {
			f, err := os.Open(filepath.Join(root, name, d))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			fs[i] = f
		}
		return fs[0], fs[1]
	}
	write := func(path, text string, mode os.FileMode) {
		path = filepath.Join(root, path)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
	}
	conf := func(name, slot, url string) string {
		return fmt.Sprintf(`{"name":%q,"driver":"openai","base_url":%q,"secret":%q}`, name, url, slot)
	}
	sysP, sysS := tier("sys")
	userP, userS := tier("user")
	write("sys/providers.d/vendor.json", conf("vendor", "main", "https://api.example.com/v1"), 0o600)
	write("sys/secrets/vendor/main", "system-key-0123456789\n", 0o600)
	// The user takes the system's name and slot, to another origin.
	write("user/providers.d/vendor.json", conf("vendor", "main", "http://127.0.0.1:1/"), 0o600)
	write("user/providers.d/dots.json", conf("dots", "../vendor/main", "https://x"), 0o600)
	write("user/providers.d/open.json", conf("open", "main", "https://x"), 0o644)
	write("user/providers.d/loose.json", conf("loose", "main", "https://x"), 0o600)
	write("user/secrets/loose/main", "k", 0o644)
	write("user/providers.d/link.json", conf("link", "main", "https://x"), 0o600)
	os.MkdirAll(filepath.Join(root, "user/secrets/link"), 0o700)
	os.Symlink(filepath.Join(root, "sys/secrets/vendor/main"), filepath.Join(root, "user/secrets/link/main"))
	write("user/providers.d/dirlink.json", conf("dirlink", "main", "https://x"), 0o600)
	os.Symlink(filepath.Join(root, "sys/secrets/vendor"), filepath.Join(root, "user/secrets/dirlink"))
	write("user/providers.d/fifo.json", conf("fifo", "main", "https://x"), 0o600)
	os.MkdirAll(filepath.Join(root, "user/secrets/fifo"), 0o700)
	unix.Mkfifo(filepath.Join(root, "user/secrets/fifo/main"), 0o600)
	unix.Mkfifo(filepath.Join(root, "user/providers.d/pipe.json"), 0o600)
	os.Symlink("/etc/passwd", filepath.Join(root, "user/providers.d/passwd.json"))
	write("user/providers.d/extra.json", `{"name":"extra","driver":"openai","base_url":"https://x","api_key":"sk-1"}`, 0o600)
	write("user/providers.d/free.json", `{"name":"free","driver":"openai","base_url":"http://localhost:11434/v1"}`, 0o600)
	write("user/providers.d/second.json", `{"name":"free","driver":"openai","base_url":"http://localhost:11434/v1"}`, 0o600)
	write("user/providers.d/README", "x", 0o600)

	all, faults := LoadProviders(sysP, sysS)
	if len(all) != 1 || len(faults) != 0 || all["vendor"].Secret().Bearer() != "Bearer system-key-0123456789" || all["vendor"].Origin() != "https://api.example.com" {
		t.Errorf("%v %v", all, faults)
	}
	all, faults = LoadProviders(userP, userS)
	if len(all) != 1 || all["free"] == nil || !all["free"].Secret().Empty() {
		t.Errorf("%v", all)
	}
	for _, name := range []string{"vendor", "dots", "open", "loose", "link", "dirlink", "fifo", "pipe", "passwd", "extra", "second"} {
		found := false
		for _, err := range faults {
			found = found || strings.Contains(err.Error(), "providers.d/"+name+".json")
			if strings.Contains(err.Error(), "system-key") || strings.Contains(err.Error(), "root:") {
				t.Error(err)
			}
		}
		if !found {
			t.Errorf("%s: no fault in %v", name, faults)
		}
	}
	// With a key of their own the user's provider has that one.
	write("user/secrets/vendor/main", "user-key-0123456789\n", 0o600)
	if all, _ = LoadProviders(userP, userS); all["vendor"].Secret().Bearer() != "Bearer user-key-0123456789" {
		t.Error("wrong key")
	}
}
