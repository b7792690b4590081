#!/bin/bash
# demo.sh BIN: from an empty folder to an agent that can run just the tools its policy allows, on a scratch
# store. Leaves nothing behind. No root needed where /dev/fuse and user namespaces are open to users.
set -euo pipefail
bin=$(cd "$1" && pwd)
export PATH="$bin:$PATH"
dir=$(mktemp -d "${HOME:-/var/tmp}/cortexfs-demo.XXXXXX")
export CTX_ROOT="$dir/ctx"
daemon=

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*" | sed "s#$dir/##g"; }
run() { show "$@"; "$@" 2>&1 | sed "s#$dir/##g"; return "${PIPESTATUS[0]}"; }
refused() { # runs a command that has to fail
	show "$@"
	if out=$("$@" 2>&1); then printf '%s\n' "$out"; echo "demo: that should have been refused" >&2; exit 1; fi
	printf '%s\n' "$out" | sed "s#$dir/##g"
}
finish() {
	code=$?
	set +e
	if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
		kill -TERM "$daemon"
		for _ in $(seq 200); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.05; done
	fi
	if grep -q " $dir/" /proc/self/mountinfo; then echo "demo: still mounted: $dir" >&2; code=1; else rm -rf "$dir"; fi
	[ $code -eq 0 ] || echo "demo: failed with exit code $code" >&2
	exit $code
}
trap finish EXIT

step "1. Mount a scratch store"
mkdir -m 0700 "$dir/store"; mkdir "$dir/ctx" "$dir/project"
run cortexfs "$dir/store" "$dir/ctx"
daemon=$(ctx status -o json | sed -n 's/.*"daemon_pid": *\([0-9]*\).*/\1/p')
run cat "$CTX_ROOT/status"

step "2. Make the reference agents and tools"
run ctx bootstrap
run ls "$CTX_ROOT/agent"
run bash -c "ls $CTX_ROOT/tool | grep -v '\\.d\$'"

step "3. Edit a control with an editor"
edit=$(command -v vim || command -v nano || command -v sed)
case $edit in
*vim) run vim -u NONE -N -i NONE -es -c '%s/auto/ask/' -c wq "$CTX_ROOT/agent/coder.d/approval" ;;
*) run sed -i 's/auto/ask/' "$CTX_ROOT/agent/coder.d/approval" ;;
esac
run cat "$CTX_ROOT/agent/coder.d/approval"

step "4. A bad text is refused at the write, with its reason; the old value stays"
refused bash -c "echo maybe > $CTX_ROOT/agent/coder.d/approval"
run bash -c "ctx agent log coder | tail -n 1"
run cat "$CTX_ROOT/agent/coder.d/approval"
run bash -c "echo auto > $CTX_ROOT/agent/coder.d/approval"

step "5. Start coder in its sandbox, at work in project/"
echo "Hello from the project." > "$dir/project/notes.txt"
(cd "$dir/project" && run ctx agent start coder)
run ctx agent status coder
run cat "$CTX_ROOT/agent/coder.d/pid"

step "6. What coder sees: only the tools it may run, its own files, nothing of the host"
inside() { run ctx agent exec coder -- "$@"; }
inside bash -c 'ls /ctx/tool | grep -v "\.d$" | xargs'
inside ls / /workspace
inside id

step "7. An allowed tool"
inside /ctx/tool/tsh fs.read /workspace/notes.txt

step "8. A tool that is installed but granted to nobody: refused, with the reason"
run install -m 0755 /bin/true "$CTX_ROOT/tool/deploy"
refused ctx agent exec coder -- /ctx/tool/tsh deploy
refused ctx agent why coder deploy

step "9. Take a permission away; the next call in the running sandbox fails"
run sed -i '/tool:fs.read/d' "$CTX_ROOT/agent/coder.d/policy"
refused ctx agent exec coder -- /ctx/tool/tsh fs.read /workspace/notes.txt
refused ctx agent exec coder -- /ctx/tool/fs.read /workspace/notes.txt
refused ctx agent why coder fs.read

step "10. Type into its terminal and watch it"
show "ctx agent attach coder   # types: tools, fs.list /workspace"
printf 'tools\nfs.list /workspace\n' | timeout 3 ctx agent attach coder > /dev/null 2>&1 || true
show "ctx agent watch coder"
timeout 2 ctx agent watch coder 2>/dev/null < /dev/null | sed 's/\x1b\[[0-9;]*H/\n/g; s/\x1b\[[0-9;?!]*[a-zA-Z]//g; s/\x1b[()].//g' | tr -d '\r' | grep -v '^ *$' | tail -n 12 || true

step "11. Give it a task: the scripted model reads and edits a file; one call is approved, one refused"
run sed -i '$a allow coder_t tool:fs.read execute' "$CTX_ROOT/agent/coder.d/policy"
for a in architect coder; do echo "allow ${a}_t model:debug/script use" >> "$CTX_ROOT/agent/$a.d/policy"; done
echo debug/script > "$CTX_ROOT/agent/coder.d/model"
echo ask > "$CTX_ROOT/agent/coder.d/approval"
me=$(cat "$CTX_ROOT/agent/coder.d/owner")
home="$CTX_ROOT/home/$me/agent/coder"
cat > "$home/data/script.jsonl" <<'SCRIPT'
{"type":"tool_call","id":"read","name":"fs.read","arguments":{"path":"/workspace/notes.txt"}}
{"type":"tool_call","id":"edit","name":"fs.replace","arguments":{"path":"/workspace/notes.txt","old":"Hello","new":"Greetings"}}
{"type":"tool_call","id":"shell","name":"shell.exec","arguments":{"cmd":"rm /workspace/notes.txt"}}
{"type":"message","role":"assistant","content":[{"type":"text","text":"The greeting is changed. I was not allowed to remove the file."}]}
{"type":"done"}
SCRIPT
run ctx agent send coder --approve fs.read --approve fs.replace "make the greeting formal"
run cat "$dir/project/notes.txt"
grep -q Greetings "$dir/project/notes.txt"

step "12. The session is files"
run ls "$home/session/default"
run cat "$home/session/default/state" "$home/session/default/latest.md"
run bash -c "grep approval_result $home/session/default/events.jsonl | cut -c 74-"
run ctx agent history coder
run "$CTX_ROOT/agent/coder" "the same as a program" > /dev/null || true

step "13. Stop: everything of it is gone"
out=$(run ctx agent stop coder); echo "$out"; [[ "$out" == *": stopped" ]]
run cat "$CTX_ROOT/agent/coder.d/status"

step "14. A child is weaker than its parent: critic has one tool, by the right of architect, and no more"
(cd "$dir/project" && run ctx agent start architect > /dev/null)
run ctx agent new critic --parent architect --tool fs.stat
run ctx agent start critic --no-default-workspace > /dev/null
run ctx agent exec critic -- /ctx/tool/tsh fs.stat /ctx/status
refused ctx agent exec critic -- /ctx/tool/tsh fs.write /home/agent/data/x y
refused ctx agent why critic fs.write
refused ctx agent new climber --parent architect --tool deploy
run ctx agent ps

step "15. Stopping architect ends critic; what it did stays to be read"
run ctx agent stop architect
out=$(ctx agent status critic); [[ "$out" == dead* ]]
run bash -c "ctx agent log critic | grep cancel"

step "16. Unmount; nothing is left"
kill -TERM "$daemon"
for _ in $(seq 200); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.05; done
if grep -q " $dir/" /proc/self/mountinfo; then echo "demo: still mounted" >&2; exit 1; fi
run ls "$dir/ctx"
echo "done"
