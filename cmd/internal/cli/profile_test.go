package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/fault"
)

func TestProfiles(t *testing.T) {
	for _, c := range []struct{ text, bad string }{
		{"approval: ask\nuid: 1000\npolicy: |\n  allow a_t tool:x execute\ntools: [x]\n", "line 5"},
		{"approval: ask\nuid: 1000\npolicy: |\n  allow a_t tool:x execute\ntools: |\n  x\n  y\n", ""},
		{"{\n\t\"approval\": \"ask\",\n\t\"uid\": 1000,\n\t\"tools\": \"x\\ny\",\n\t\"groups\": null\n}\n", ""},
		{`{"approval":"ask"}`, ""},
		{"# only a comment\n", "one mapping"},
		{"", "one mapping"},
		{"- a\n", "one mapping"},
		{"approval: ask\n---\nuid: 1\n", "one mapping"},
		{`{"approval":"ask"} {}`, "one mapping"},
		{"approval: ask\n\nnetwork: all\n", ":3:1: \"network\" is not a control"},
		{"{\"approval\":\"ask\",\n\n\"status\":\"idle\"}", ":3:1: \"status\" is not a control"},
		{"approval: ask\nuid: 1\napproval: auto\n", "twice"},
		{"{\"uid\":1,\n\"uid\":2}", ":2:1: uid is there twice"},
		{"uid: 1\npolicy: deny all\n", ":2:1: policy: 1:1"},
		{"{\"uid\":1,\n\"policy\":\"deny\"}", ":2:1: policy: 1:1"},
		{"{\"uid\":1,\n\"tools\":[\"x\"]}", "line 2"},
		{"policy: &a x\nlabel: *a\n", "line 2"},
		{"a: b: c\n", "neither YAML nor JSON"},
		{"uid: 0x10\n", ":1:1: uid"},
	} {
		file := filepath.Join(t.TempDir(), "profile")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		err := (&State{}).readTexts(file, texts)
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.bad != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.bad)):
			t.Errorf("%q: %v, want %s", c.text, err, c.bad)
		case c.bad == "" && texts["approval"] != "ask\n":
			t.Errorf("%q: %q", c.text, texts)
		case c.bad == "" && texts["tools"] != "" && texts["tools"] != "x\ny\n":
			t.Errorf("%q: %q", c.text, texts)
		}
	}
}

func TestChildLine(t *testing.T) {
	got := childLine(ctlproto.Child{Agent: ctlproto.Agent{Ref: "agent/k", Name: "k", State: "ready"}, Channel: "active", Session: "s\x1b", Parent: "default", Model: "main", Life: "temp", PID: 7})
	if want := "k\tactive\tagent/k\ts\\x1b\tdefault\t-\tmain\ttemp\t-\tready\t-\t7"; got != want {
		t.Errorf("%q", got)
	}
}
