package agent

import (
	"strconv"
	"strings"

	"cortexfs/node"
)

// Key names one agent of the store: a system agent, or one in a user's home. It
// is comparable and is the key of every table about agents.
type Key struct {
	Home bool   // in home/<UID>/agent
	UID  uint32 // the uid of the path; 0 for a system agent
	Name string
}

// System is the key of agent/<name>.
func System(name string) Key { return Key{Name: name} }

// InHome is the key of home/<uid>/agent/<name>.
func InHome(uid uint32, name string) Key { return Key{Home: true, UID: uid, Name: name} }

// Tier is the directory that holds the agent, below the tree's root: "agent" or
// "home/<uid>/agent".
func (k Key) Tier() string {
	if !k.Home {
		return "agent"
	}
	return "home/" + strconv.FormatUint(uint64(k.UID), 10) + "/agent"
}

// String is the agent's name in the tree without the root: "agent/coder",
// "home/1000/agent/coder".
func (k Key) String() string { return k.Tier() + "/" + k.Name }

// StoreDir is the directory of its controls in the store's object tree.
func (k Key) StoreDir() string { return k.String() + ".d" }

// TreeDir is the directory of its controls as texts and messages spell it.
func (k Key) TreeDir() string { return node.Root + "/" + k.StoreDir() }

// RuntimeKey names the agent where only one flat name can be used: runtime
// directory, log file. <tier>.<uid>.<name>; the tier and the uid hold no dot, so
// two agents never share one.
func (k Key) RuntimeKey() string {
	if !k.Home {
		return "system.0." + k.Name
	}
	return "home." + strconv.FormatUint(uint64(k.UID), 10) + "." + k.Name
}

// ParseKey reads what String and StoreDir print ("agent/coder", with or without
// the .d). It does not say whether the agent exists.
func ParseKey(s string) (Key, bool) {
	s = strings.TrimSuffix(s, ".d")
	if name, ok := strings.CutPrefix(s, "agent/"); ok {
		return System(name), node.CheckAgentName(name) == nil
	}
	rest, ok := strings.CutPrefix(s, "home/")
	if !ok {
		return Key{}, false
	}
	num, name, ok := strings.Cut(rest, "/agent/")
	if !ok {
		return Key{}, false
	}
	uid, err := node.ParseUint(num)
	if err != nil {
		return Key{}, false
	}
	return InHome(uid, name), node.CheckAgentName(name) == nil
}

// Compare orders keys: system agents first, then by uid, then by name.
func (k Key) Compare(o Key) int {
	switch {
	case k.Home != o.Home && o.Home:
		return -1
	case k.Home != o.Home:
		return 1
	case k.UID < o.UID:
		return -1
	case k.UID > o.UID:
		return 1
	}
	return strings.Compare(k.Name, o.Name)
}
