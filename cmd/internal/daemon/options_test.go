package daemon

import (
	"strings"
	"testing"

	"cortexfs/node/fault"
)

func TestMountOptions(t *testing.T) {
	cases := []struct {
		texts []string
		want  MountOptions
	}{
		{nil, MountOptions{}},
		{[]string{""}, MountOptions{}},
		{[]string{"ro"}, MountOptions{ReadOnly: true}},
		{[]string{"ro,rw"}, MountOptions{}},
		{[]string{"rw,ro"}, MountOptions{ReadOnly: true}},
		{[]string{"noexec", "exec"}, MountOptions{}},
		{[]string{"exec", "noexec"}, MountOptions{NoExec: true}},
		{[]string{"allow_other,nofail"}, MountOptions{AllowOther: true}},
		{[]string{"agent_group=staff,foreign_ns,debug"}, MountOptions{AgentGroup: "staff", ForeignNS: true, Debug: true}},
		{[]string{`agent_group=a\,b`}, MountOptions{AgentGroup: "a,b"}},
		// What mount(8), fstab and systemd put in.
		{[]string{"rw,nosuid,nodev,noexec,relatime,user=alice,x-systemd.automount,x-mount.mkdir,_netdev,comment=systemd.x,fsname=ctx,subtype=cortexfs,max_read=131072"},
			MountOptions{NoExec: true}},
		{[]string{"defaults,auto,noauto,users,nouser,owner,group,user,suid,dev,default_permissions,allow_root,auto_unmount,sync,async,silent,dirsync"},
			MountOptions{}},
		{[]string{"atime,noatime,norelatime,strictatime,lazytime,nolazytime,diratime,nodiratime"}, MountOptions{}},
	}
	for _, c := range cases {
		got, err := ParseMountOptions(c.texts)
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.texts, got, err, c.want)
		}
	}
}

func TestMountOptionsRefusedByName(t *testing.T) {
	for text, name := range map[string]string{
		"foo":                 `"foo"`,
		"ro,setuid=0":         `"setuid=0"`,
		"remount":             `"remount"`,
		"uid=1000":            `"uid=1000"`,
		"x-":                  `"x-"`,
		"agent_group":         `"agent_group"`,
		"ro=1":                `"ro"`,
		"nofail=x":            `"nofail"`,
		"fsname":              `"fsname"`,
		"RO":                  `"RO"`,
		"context=system_u:x":  `"context=system_u:x"`,
		"rw,blkdev,allow_all": `"blkdev"`,
	} {
		_, err := ParseMountOptions([]string{text})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v; want Invalid that names %s", text, err, name)
		}
	}
	if _, err := ParseMountOptions([]string{"agent_group="}); !fault.Is(err, fault.Invalid) {
		t.Errorf("agent_group= : %v", err)
	}
}

func TestParseCommand(t *testing.T) {
	for _, args := range [][]string{
		{"/s", "/m", "-o", "ro,noexec"},
		{"-o", "ro", "/s", "/m", "-onoexec"},
		{"/s", "-o", "ro,noexec", "--", "/m"},
	} {
		c, err := ParseCommand(args)
		if err != nil || c.Store != "/s" || c.Mountpoint != "/m" || !c.Mount.ReadOnly || !c.Mount.NoExec || c.Foreground || c.ready != -1 {
			t.Errorf("%q: %+v, %v", args, c, err)
		}
	}
	if c, err := ParseCommand([]string{"-f", "/s", "/m"}); err != nil || !c.Foreground {
		t.Errorf("-f: %+v, %v", c, err)
	}
	for _, args := range [][]string{
		{}, {"/s"}, {"/s", "/m", "/x"}, {"/s", ""}, {"/s", "/m", "-o"}, {"/s", "/m", "-x"}, {"/s", "/m", "--nope"},
		{"/s", "/m", "-o", "nope"}, {"/s", "/m", readyFlag + "x"}, {"/s", "/m", readyFlag + "1"},
	} {
		if _, err := ParseCommand(args); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v; want Invalid", args, err)
		}
	}
	for _, a := range []string{"-h", "--help", "-V", "--version"} {
		if c, err := ParseCommand([]string{a}); err != nil || !c.Help && !c.Version {
			t.Errorf("%s: %+v, %v", a, c, err)
		}
	}
}

// TestUsageNamesEveryOption holds the help text and the table together.
func TestUsageNamesEveryOption(t *testing.T) {
	text := Usage()
	for _, o := range options {
		if !strings.Contains(text, " "+o.name) {
			t.Errorf("the help text lacks %s", o.name)
		}
	}
	for _, l := range strings.Split(text, "\n") {
		if len([]rune(l)) > 80 {
			t.Errorf("line of %d columns: %s", len([]rune(l)), l)
		}
	}
}
