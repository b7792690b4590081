package cli

import (
	"bytes"
	"testing"

	"cortexfs/cmd/internal/ctlproto"
)

func ps(ref, state, parent string, more ...func(*ctlproto.PSItem)) ctlproto.PSItem {
	name := ref[len("agent/"):]
	it := ctlproto.PSItem{Agent: ctlproto.Agent{Ref: ref, Name: name, State: state}, Parent: parent, Model: "main", Life: "owned"}
	for _, f := range more {
		f(&it)
	}
	return it
}

func TestFormatPS(t *testing.T) {
	var b bytes.Buffer
	formatPS(&b, []ctlproto.PSItem{
		ps("agent/zeta", "dead", ""),
		ps("agent/architect", "idle", "", func(p *ctlproto.PSItem) { p.PID = 100 }),
		ps("agent/reviewer", "dead", "agent/architect"),
		ps("agent/coder", "busy", "agent/architect", func(p *ctlproto.PSItem) {
			p.PID, p.Model, p.Session, p.Run = 101, "debug/echo", "default", "01J"
		}),
		ps("agent/helper", "ready", "agent/coder", func(p *ctlproto.PSItem) { p.Life, p.PID = "temp", 102 }),
		ps("agent/lost", "dead", "agent/nobody"),
		ps("agent/orphan", "dead", "", func(p *ctlproto.PSItem) { p.Orphan = "gone\x1b" }),
		ps("agent/loop-a", "dead", "agent/loop-b"),
		ps("agent/loop-b", "dead", "agent/loop-a"),
		{Agent: ctlproto.Agent{Ref: "home/1000/agent/mine", Name: "mine", State: "dead"}, Model: "main", Life: "owned"},
		{Agent: ctlproto.Agent{Ref: "agent/theirs", Name: "theirs", State: "ready"}, Hidden: true},
		{Agent: ctlproto.Agent{Ref: "agent/esc", Name: "esc\x1b[31m", State: "dead"}, Model: "m\u202e"},
	})
	golden(t, "ps.txt", b.Bytes())
}

func TestFormatStatus(t *testing.T) {
	var b bytes.Buffer
	formatStatus(&b, ctlproto.Described{
		Agent: ctlproto.Agent{Ref: "agent/coder", Name: "coder", State: "ready", Owner: 1000},
		Model: "main", Life: "owned", Parent: "architect", Children: []string{"a", "b"}, PID: 4711, UID: 1000, GID: 1000,
		Groups: []string{"27", "100(kept)"}, Label: "user_u:agent_r:coder_t:s0", Root: "/ctx/home/1000/agent/coder/root",
		CWD: "/workspace", Session: "default", Restart: []string{"mount", "env"}, Enforced: []string{"userns", "seccomp"},
		Warnings: []string{"a socket \x1b]0;x\x07"},
	})
	b.WriteString("---\n")
	formatStatus(&b, ctlproto.Described{
		Agent: ctlproto.Agent{Ref: "agent/new", State: "dead"}, Model: "main", Life: "owned", UID: 1000, GID: 1000,
		Faults: []string{"agent/new.d/abi: not found"},
	})
	b.WriteString("---\n")
	formatStatus(&b, ctlproto.Described{Agent: ctlproto.Agent{Ref: "agent/theirs", State: "idle"}, Hidden: true})
	golden(t, "status.txt", b.Bytes())
}

func TestFormatWhy(t *testing.T) {
	row := func(n int, name string, ok bool) ctlproto.WhyRow {
		return ctlproto.WhyRow{Row: n, Name: name, OK: ok, Asked: true}
	}
	rows := []ctlproto.WhyRow{row(1, "caller", true), row(2, "declared", true), row(3, "search path", true), row(4, "linux", true), row(5, "mount", true)}
	rows[1].File, rows[1].Line = "/ctx/agent/coder.d/tools", 3
	rows[2].File, rows[2].Why = "/ctx/tool/shell.exec", "first hit on /ctx/tool:/ctx/home/1000/tool"
	rows[3].Why = "mode 0755 uid 0 gid 0"
	rows[4].File, rows[4].Line = "/ctx/agent/coder.d/mount", 1
	deny := row(6, "agent policy", false)
	deny.File, deny.Why, deny.Missing = "/ctx/agent/coder.d/policy", "no rule", "allow coder_t tool:shell.exec execute"
	seven := row(7, "tool policy", true)
	seven.File, seven.Line = "/ctx/tool/shell.exec.d/policy", 2
	rows = append(rows, deny, seven, ctlproto.WhyRow{Row: 8, Name: "opened file", Why: "decided at the call"})
	var b bytes.Buffer
	v := ctlproto.WhyVerdict{Agent: ctlproto.Agent{Ref: "agent/coder", Name: "coder"}, Tool: "shell.exec"}
	formatWhy(&b, rows, v)
	b.WriteString("---\n")
	rows[5] = row(6, "agent policy", true)
	v.Allowed, v.Notes = true, []string{"approval=ask covers hosted calls only"}
	formatWhy(&b, rows, v)
	golden(t, "why.txt", b.Bytes())
}

func TestFormatStarted(t *testing.T) {
	var b bytes.Buffer
	st := ctlproto.Started{
		Agent: ctlproto.Agent{Ref: "agent/coder", Name: "coder", Owner: 1000, State: "ready"}, PID: 4711, UID: 1000, GID: 1000,
		Label: "user_u:agent_r:coder_t:s0", Model: "main", Life: "owned", Session: "default", CWD: "/workspace",
		Workspace: "/home/u/src", Socket: "/run/user/1000/cortexfs/0/sock/x/default.sock", Since: "2026-01-02T03:04:05Z",
	}
	formatStarted(&b, "/ctx", st)
	b.WriteString("---\n")
	st.Joined, st.Groups, st.Workspace = true, []uint32{27, 100}, ""
	formatStarted(&b, "/ctx", st)
	b.WriteString("---\n")
	formatDryRun(&b, ctlproto.DryRun{Text: "identity: iso=shared uid=1000\nmounts:\n  evil\x1b[1m\n"})
	golden(t, "started.txt", b.Bytes())
}

func TestFormatView(t *testing.T) {
	var b bytes.Buffer
	formatView(&b, []ctlproto.ViewItem{
		{Kind: "tool", Path: "/ctx/tool/fs.read", Mode: "x", Text: "read a file \x1b[1m"},
		{Kind: "mount", Path: "/workspace", Mode: "rw", Text: "/home/u/src"},
		{Kind: "shared", Path: "/ctx/shared/team"},
	})
	golden(t, "view.txt", b.Bytes())
}
