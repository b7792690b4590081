package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script puts a script for debug/script into coder's hands and lets it use it.
func (w *world) script(lines ...string) {
	w.t.Helper()
	dir := filepath.Join(w.mnt, "home/0/agent/coder/data")
	if err := os.WriteFile(filepath.Join(dir, "script.jsonl"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.must(`grep -q debug/script "$C/policy" || for a in architect coder; do echo "allow ${a}_t model:debug/script use" >> "$M/agent/$a.d/policy"; done; echo debug/script > "$C/model"`)
}

// say sends lines to coder's socket and returns everything that it answers.
func (w *world) say(lines ...string) string {
	w.t.Helper()
	path, err := os.Readlink(filepath.Join(w.mnt, "agent/coder.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, strings.Join(lines, "\n"))
	conn.(*net.UnixConn).CloseWrite()
	var b strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

func has(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s: no %q in\n%s", what, word, text)
		}
	}
}

// TestRuns is issue 4 from outside: a task, its tools, its questions, its files.
func TestRuns(t *testing.T) {
	w := newWorld(t)
	if out := w.ctx(`"$M/agent/coder" hi`); out.code != 69 || !strings.Contains(out.out, "ctx agent start coder") {
		t.Errorf("a dead agent: %d %s", out.code, out.out)
	}
	w.must(`ctx agent start coder`)

	t.Run("echo", func(t *testing.T) {
		if out := w.must(`"$M/agent/coder" "say this back"`); strings.TrimSpace(out) != "say this back" {
			t.Errorf("%q", out)
		}
		if out := w.must(`echo "from a pipe" | ctx agent send coder --session other`); strings.TrimSpace(out) != "from a pipe" {
			t.Errorf("%q", out)
		}
		has(t, "files", w.must(`cd "$M/home/0/agent/coder/session"; cat other/messages.jsonl other/state other/latest.md index/list`), `"role":"user"`, "done\nfrom a pipe\nother\n")
		has(t, "status", w.must(`cat "$C/status"`), "idle")
	})
	t.Run("bad frames", func(t *testing.T) {
		for frame, want := range map[string]string{
			`{"op":"ping"}`: `{"type":"pong"}`, `x`: "EINVAL", `[]`: "EINVAL", `{"op":"fly"}`: "EINVAL", `{"op":5}`: "EINVAL", `{"op":"send","id":"a"}`: "EINVAL",
			`{"op":"send","id":"a b","input":"x"}`: "EINVAL", `{"op":"send","id":"a","input":"x","session":"index"}`: "EINVAL", `{"op":"send","id":"a","input":"x","scope":"shared"}`: "EINVAL",
			`{"op":"cancel","id":"ctx-0"}`: "ENOENT", `{"op":"resume","session":"never"}`: "ENOENT", `{"op":"approve"}`: "EINVAL", `{"op":"ping","keep":"x"}`: "EINVAL",
			`{"op":"` + strings.Repeat("x", 1<<20) + `"}`: "EMSGSIZE",
		} {
			if got := w.say(frame); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
				t.Errorf("%.60s: %s", frame, got)
			}
		}
		if got := w.say(`{"op":"ping","keep":true}`, `{"op":"ping","unknown":1}`); got != "{\"type\":\"pong\"}\n{\"type\":\"pong\"}\n" {
			t.Errorf("kept: %s", got)
		}
	})
	t.Run("idempotent", func(t *testing.T) {
		first := w.say(`{"op":"send","id":"once","input":"a"}`)
		again := w.say(`{"op":"send","id":"once","input":"a"}`)
		run := func(s string) string {
			var f struct{ Run string }
			_ = json.Unmarshal([]byte(strings.SplitN(s, "\n", 2)[0]), &f)
			return f.Run
		}
		if run(first) == "" || run(first) != run(again) {
			t.Errorf("%s\n%s", first, again)
		}
		has(t, "another payload", w.say(`{"op":"send","id":"once","input":"b"}`), "EINVAL")
	})
	t.Run("strangers", func(t *testing.T) {
		out := w.inside("coder", `ls /ctx/agent; test ! -e /ctx/agent/coder.sock && test ! -e /run/cortexfs/58 && echo none`)
		has(t, "inside", out.out, "none")
		r := w.sh(who{uid: 2001, gid: 2001}, `timeout 5 python3 -c "
import socket,os
s=socket.socket(socket.AF_UNIX); s.connect(os.readlink('$M/agent/coder.sock')); print(s.recv(1000))"`, w.vars()...)
		has(t, "another uid", r.out, "EACCES")
	})

	w.script(
		`{"type":"message","role":"assistant","content":[{"type":"text","text":"I look first."}]}`,
		`{"type":"tool_call","id":"a","name":"fs.read","arguments":{"path":"/workspace/notes.txt"}}`,
		`{"type":"tool_call","id":"b","name":"fs.replace","arguments":{"path":"/workspace/notes.txt","old":"hello","new":"goodbye"}}`,
		`{"type":"tool_call","id":"c","name":"shell.exec","arguments":{"cmd":"touch /workspace/made"}}`,
		`{"type":"tool_call","id":"d","name":"deploy","arguments":{}}`,
		`{"type":"tool_call","id":"e","name":"fs.read","arguments":{"nope":1}}`,
		`{"type":"tool_call","id":"f","name":"fs.read","arguments":"'/workspace/no such'"}`,
		`{"type":"message","role":"assistant","content":[{"type":"text","text":"Done."}]}`, `{"type":"done"}`,
	)
	t.Run("tools", func(t *testing.T) {
		out := w.must(`echo ask > "$C/approval"; ctx agent send coder --session tools --approve fs.read --approve fs.replace "edit the notes" -o json`)
		has(t, "frames", out, `"content":"hello\n"`, "replaced 1 occurrence", "ERROR: EACCES row 9 (approval): user", "ERROR: ENOENT no such tool",
			"ERROR: EINVAL the arguments do not fit the schema", "ERROR: exit 1", `"decision":"allow_once","reason":"user"`, `"status":"ok"}`)
		has(t, "the file", w.must(`cat notes.txt; test ! -e made && echo untouched`), "goodbye\nuntouched")
		has(t, "log", w.must(`ctx agent log coder`), `"type":"approval.request"`, `"type":"approval.result"`, "row 9 approval", "row 2 declared", `"by":"approval uid 0"`)
		has(t, "history", w.must(`ctx agent history coder --session tools`), "user: edit the notes", "tool fs.read: hello", "assistant: Done.")
		has(t, "output", w.must(`ctx agent output coder --session tools`), "Done.")
	})
	t.Run("nobody to ask", func(t *testing.T) {
		has(t, "frames", w.must(`echo x | ctx agent send coder --session quiet -o json`), "row 9 (approval): no-handler")
	})
	t.Run("asked elsewhere", func(t *testing.T) {
		out := w.must(`ctx approvals --exec /bin/true & p=$!; until ls -l /proc/$p/fd | grep -q socket; do sleep 0.05; done; sleep 0.5
			ctx agent send coder --session away "edit" -o json; kill $p; wait $p || true`)
		has(t, "frames", out, `"decision":"allow_once"`)
		has(t, "effect", w.must(`ls made`), "made")
	})
	t.Run("cancel", func(t *testing.T) {
		w.must(`echo auto > "$C/approval"`)
		w.script(`{"type":"tool_call","id":"a","name":"shell.exec","arguments":{"cmd":"touch /workspace/began; sleep 1000; touch /workspace/after"}}`)
		out := w.ctx(`ctx agent send coder --session long sleep -o json > frames & p=$!
			until test -e began; do sleep 0.05; done; ctx agent cancel coder $(grep -o 'ctx-[0-9a-f]*' frames | head -n 1); wait $p; echo "exit $?"; test ! -e after && cat "$M/home/0/agent/coder/session/long/state"`)
		has(t, "cancelled", out.out, ": cancelled", "exit 130", "cancelled\n")
		if left := w.inside("coder", `pgrep -f '[s]leep 1000' || echo none`); !strings.Contains(left.out, "none") {
			t.Errorf("left: %s", left.out)
		}
	})
	t.Run("restart", func(t *testing.T) {
		w.must(`ctx agent stop coder; ctx agent start coder; ctx agent history coder --session tools`)
		has(t, "replay after a restart", w.say(`{"op":"send","id":"once","input":"a"}`), `"status":"ok"`)
	})
}

// TestForeignAgent: a program in POSIX sh with jq speaks the ABI, and one that
// breaks it fails its run.
func TestForeignAgent(t *testing.T) {
	if _, err := os.Stat("/usr/bin/jq"); err != nil {
		require(t, "jq", false, "jq is not installed")
	}
	w := newWorld(t)
	exec := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(w.dir, "exec"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		w.must(fmt.Sprintf(`ctx agent stop coder; cp %s/exec "$C/exec" && chmod 755 "$C/exec"; ctx agent start coder`, w.dir))
	}
	exec(`in=$(cat); run=$(printf %s "$in" | jq -r .run)
test "$1" = --cortexfs-sdk-envelope-v1 && test "$run" = "$CTX_RUN_ID" || exit 3
case $CTX_AGENT_STEP in
0) jq -cn --arg r "$run" '{type:"tool_call",run:$r,id:"one",name:"fs.read",arguments:{args:["/workspace/notes.txt"]}}' ;;
*) printf %s "$in" | jq -c '{type:"message",run:.run,role:"assistant",content:[{type:"text",text:("I saw " + .observation.content)}]}' ;;
esac
`)
	if out := w.must(`ctx agent send coder look 2>/dev/null`); strings.TrimSpace(out) != "I saw hello" {
		t.Errorf("%q", out)
	}
	exec(`run=$(jq -r .run); jq -cn --arg r "$run" '{type:"done",run:$r,status:"ok"}'`)
	if out := w.ctx(`ctx agent send coder look -o json`); out.code != 1 || !strings.Contains(out.out, `"code":"EIO"`) || !strings.Contains(out.out, `"detail":`) {
		t.Errorf("a forbidden frame: %d %s", out.code, out.out)
	}
}
