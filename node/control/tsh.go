package control

import (
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// tshKeys are the settings of `tool/tsh.d/config` (spec section 12).
var tshKeys = []struct {
	name string
	min  uint32
	max  uint32
}{
	{"max_loaded_tools", 1, 4096},
	{"cache_capacity", 1, 4096},
	{"window_percent", 1, 100},
}

var tshConfigFormat = &lineFormat{name: "settings", new: func() judge { return &settingsJudge{} }}

// settingsJudge: KEY=NUMBER lines of known keys, each once; blank lines allowed.
type settingsJudge struct {
	seen map[string]int
	out  map[string]uint32
}

func (j *settingsJudge) line(n int, s string) error {
	if s == "" {
		return nil
	}
	if err := j.pair(n, s, true); err != nil {
		return err
	}
	key, val, _ := strings.Cut(s, "=")
	if j.out == nil {
		j.seen, j.out = map[string]int{}, map[string]uint32{}
	}
	v, err := node.ParseUint(val)
	if err != nil {
		return fault.Text(n, len(key)+2, "not a number")
	}
	j.seen[key], j.out[key] = n, v
	return nil
}

func (j *settingsJudge) part(n int, s string) error { return j.pair(n, s, false) }
func (j *settingsJudge) end() error                 { return nil }

func (j *settingsJudge) pair(n int, s string, done bool) error {
	key, val, cut := strings.Cut(s, "=")
	for _, k := range tshKeys {
		switch {
		case k.name == key && cut && j.seen[key] > 0:
			return fault.Text(n, 1, "repeats the key of line %d", j.seen[key])
		case k.name == key && cut:
			return settingValue(n, len(key)+1, val, k.min, k.max, done)
		case k.name == key && done:
			return fault.Text(n, len(s)+1, "no = in the line")
		case !cut && !done && strings.HasPrefix(k.name, key) && j.seen[k.name] == 0:
			return nil
		}
	}
	return fault.Text(n, 1, "unknown or repeated key")
}

func settingValue(n, col int, val string, min, max uint32, done bool) error {
	if at, why := number(val, done); why != "" {
		return fault.Text(n, col+at, "%s", why)
	}
	if val == "" {
		return nil
	}
	if v, err := node.ParseUint(val); err != nil || v < min || v > max {
		return fault.Text(n, col+1, "number is not %d–%d", min, max)
	}
	return nil
}

// ParseTshConfig reads `tool/tsh.d/config`: the settings that the text has.
func ParseTshConfig(b []byte) (map[string]uint32, error) {
	var j settingsJudge
	if err := tshConfigFormat.run(&j, b); err != nil {
		return nil, err
	}
	return j.out, nil
}
