package sandbox

import "testing"

func TestSmoke(t *testing.T) {
	w := newWorld(t)
	s := w.spec()
	b := w.start(s)
	t.Log(b.sh("id; env; cat /proc/self/mountinfo; ls -la / /etc /home/agent /workspace; ls -l /proc/self/fd; cat /proc/1/environ | tr '\\0' '\\n'"))
	if err := b.Verify(b.plan); err != nil {
		t.Error(err)
	}
	t.Log(b.plan.Print(b.Table, b.Warnings))
}

func TestSmokeUser(t *testing.T) {
	if asUser(t) {
		TestSmoke(t)
	}
}
