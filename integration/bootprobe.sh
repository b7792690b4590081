#!/bin/bash
# bootprobe.sh SCENARIO: what boot.sh runs inside the booted system (before-…: just before its systemd starts). Writes to
# /var/result; a line PASS ends a scenario, FAIL says what was wrong.
set -u
case $1 in
before-*) ;;
*) exec >> /var/result 2>&1; trap 'systemctl --no-block poweroff' EXIT ;;
esac
failed=
fail() { echo "FAIL $*"; failed=1; }
want() { # CODE COMMAND…
	local code=$1 got; shift
	said=$("$@" 2>&1); got=$?
	[ $got = "$code" ] || fail "exit $got, not $code: $*: $said"
}
says() { [[ $said == *"$1"* ]] || fail "does not say '$1': $said"; }
until_true() { for _ in $(seq 200); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done; return 1; }
live() { until_true grep -qx ready /ctx/status || fail "$1: /ctx is not live: $(cat /ctx/status 2>&1)"; }
daemon() { ctx status -o json | sed -n 's/.*"daemon_pid": *\([0-9]*\).*/\1/p'; }
agent() { cat "/ctx/agent/$1.d/pid" 2>/dev/null; }
inside() { want 0 ctx agent exec coder -- cat /ctx/status; [[ $said == ready ]] || fail "${1:-inside}: $said"; }
# adopted OLDAGENT OLDDAEMON WHAT: another daemon, the same agent, with a live tree inside
adopted() {
	until_true bash -c "p=\$(ctx status -o json | sed -n 's/.*\"daemon_pid\": *\([0-9]*\).*/\1/p'); [ -n \"\$p\" ] && [ \"\$p\" != $2 ]" || fail "$3: no new daemon"
	live "$3"
	[ "$(agent coder)" = "$1" ] || fail "$3: coder was pid $1 and is now '$(agent coder)'"
	inside "${3:-}"
}
end() { [ -n "$failed" ] || echo "PASS $1"; [ -z "$failed" ] || journalctl -b --no-pager -o short-monotonic 2>/dev/null | grep -iE 'cortexfs|ctx' | grep -vE 'runtime|goroutine| r[0-9a-z]+ ' | tail -n 60; }

case $1 in
before-fstab)
	dpkg -i /var/lib/cortexfs.deb || exit 1
	echo '/var/lib/cortexfs /ctx fuse.cortexfs allow_other,nofail 0 0' > /etc/fstab
	;;
fstab)
	[ "$(cat /proc/1/comm)" = systemd ] || fail "pid 1 is $(cat /proc/1/comm)"
	want 0 systemctl is-active ctx.mount
	live "after boot"
	case $(findmnt -no SOURCE /ctx) in /dev/*) fail "the source is a device" ;; esac
	want 0 ctx bootstrap
	want 0 ctx agent start coder --no-default-workspace
	inside "${3:-}"
	want 0 systemctl is-active ctx.mount # systemd did not take it away
	# a crash: mount /ctx repairs, the agent is adopted
	a=$(agent coder) d=$(daemon)
	kill -9 "$d"; until_true test ! -d "/proc/$d"
	want 0 mount /ctx; adopted "$a" "$d" "fstab after a crash"
	# umount ends the agents
	want 0 umount /ctx
	until_true test ! -d "/proc/$a" || fail "coder outlives umount"
	want 0 mount /ctx; live "mount /ctx"
	# the next boot
	mkdir -p /srv/project /etc/cortexfs/agent; echo hello > /srv/project/notes
	echo 'CTX_START=--cwd /srv/project' > /etc/cortexfs/agent/coder.conf
	want 0 systemctl enable cortexfs-agent@coder.service
	end fstab
	;;
before-service)
	: > /etc/fstab
	systemctl enable cortexfs.service
	mkdir -p /etc/systemd/system/cortexfs.service.d
	printf '[Service]\nWatchdogSec=2\nTimeoutAbortSec=2\n' > /etc/systemd/system/cortexfs.service.d/test.conf
	;;
service)
	want 0 systemctl is-active cortexfs.service
	live "after boot"
	want 0 systemctl is-active cortexfs-agent@coder.service
	a=$(agent coder)
	[ -n "$a" ] || fail "the agent declared for boot does not run: $(systemctl status cortexfs-agent@coder.service 2>&1 | tail -n 5)"
	want 0 ctx agent exec coder -- cat /workspace/notes; says hello
	inside "${3:-}"
	want 0 systemctl show -p NRestarts cortexfs.service; says NRestarts=0
	d=$(daemon); kill -9 "$d"; adopted "$a" "$d" "kill -9"
	d=$(daemon); want 0 systemctl reload cortexfs.service; adopted "$a" "$d" "reload"
	d=$(daemon); want 0 dpkg -i /var/lib/cortexfs.deb; adopted "$a" "$d" "package upgrade"
	# fed, the watchdog is quiet; a daemon that hangs is replaced
	d=$(daemon); sleep 3; [ "$(daemon)" = "$d" ] || fail "the watchdog killed a healthy daemon"
	kill -STOP "$d"; for _ in $(seq 240); do [ -d "/proc/$d" ] || break; sleep 0.05; done; adopted "$a" "$d" "watchdog"
	want 0 systemctl is-active cortexfs.service
	want 0 systemctl stop cortexfs.service
	until_true test ! -d "/proc/$a" || fail "coder outlives systemctl stop"
	until_true bash -c '! grep -q "fuse.cortexfs" /proc/self/mountinfo' || fail "mounted after stop: $(grep fuse.cortexfs /proc/self/mountinfo)"
	[ -z "$(pgrep -f '^(/usr/bin/cortexfs|/usr/bin/ctxagent|/usr/bin/bwrap|/run/cortexfs/ctxterm)')" ] || fail "processes after stop: $(pgrep -af 'cortexfs|ctxagent|bwrap')"
	end service
	;;
before-broken)
	systemctl disable cortexfs.service cortexfs-agent@coder.service
	echo '/var/lib/cortexfs /ctx fuse.cortexfs allow_other,nofail 0 0' > /etc/fstab
	chmod 755 /var/lib/cortexfs
	;;
broken)
	want 0 systemctl is-active multi-user.target
	want 3 systemctl is-active ctx.mount
	want 0 systemctl show -p Result ctx.mount; says exit-code
	want 0 journalctl -b -u ctx.mount --no-pager; says "chmod 700 /var/lib/cortexfs"
	want 69 ctx doctor --store /var/lib/cortexfs; says "chmod 700 /var/lib/cortexfs"
	want 0 chmod 700 /var/lib/cortexfs
	want 0 mount /ctx; live "repaired"
	end broken
	;;
before-removed) ;;
removed)
	live "after boot"
	want 0 ctx agent start coder --no-default-workspace
	a=$(agent coder)
	want 0 dpkg -r cortexfs
	grep -q fuse.cortexfs /proc/self/mountinfo && fail "mounted after removal"
	[ -d "/proc/$a" ] && fail "an agent after removal"
	[ -d /var/lib/cortexfs/object/agent/coder.d ] || fail "the store is gone"
	end removed
	;;
esac
