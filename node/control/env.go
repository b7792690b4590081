package control

import (
	"strconv"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// EnvVar is one line of `env`.
type EnvVar struct {
	Key, Value string
	Line       int
}

// The names that `env` may not set (spec section 5): what the runtime itself
// sets, and what makes a loader, a shell or an interpreter run something.
var (
	reservedKeys = []string{
		"HOME", "USER", "LOGNAME", "SHELL",
		"BASH_ENV", "ENV", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "IFS", "PS4",
		"GCONV_PATH", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "GLIBC_TUNABLES",
		"PYTHONSTARTUP", "PERL5OPT", "NODE_OPTIONS", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF",
	}
	reservedPrefixes = []string{"LD_", "MALLOC_"}
)

const (
	ctxPrefix = "CTX_"
	stepsKey  = "CTX_AGENT_STEPS"
	maxSteps  = 255
)

// envFormat is the format of `env`. repeats are the CTX_ lines that the runtime
// sets for the object (spec section 10.4): writing one of them again, exactly, is
// no harm and allowed.
type envFormat struct{ lineFormat }

func newEnvFormat(repeats ...string) *envFormat {
	return &envFormat{lineFormat{name: "environment", new: func() judge {
		return &envJudge{repeats: repeats}
	}}}
}

// For is the format for the `env` of a known object.
func (*envFormat) For(o Object) Format { return newEnvFormat(Repeats(o)...) }

// Repeats are the CTX_ lines of spec section 10.4 that are known from the object
// alone. CTX_PATH and CTX_SESSION are not: they are known at start only.
func Repeats(o Object) []string {
	return []string{
		"CTX_ROOT=" + node.Root,
		"CTX_HOME=" + homePath(o),
		"CTX_AGENT=" + o.Name,
	}
}

type envJudge struct {
	repeats []string
	seen    map[string]int
	out     []EnvVar
}

func (j *envJudge) line(n int, s string) error {
	if s == "" {
		return nil
	}
	key, val, cut := strings.Cut(s, "=")
	if !cut {
		if col, why := j.key(key); why != "" {
			return fault.Text(n, col, "%s", why)
		}
		return fault.Text(n, len(s)+1, "no = in the line")
	}
	if err := j.pair(n, key, val, true); err != nil {
		return err
	}
	if j.seen == nil {
		j.seen = map[string]int{}
	}
	j.seen[key] = n
	j.out = append(j.out, EnvVar{Key: key, Value: val, Line: n})
	return nil
}

func (j *envJudge) part(n int, s string) error {
	key, val, cut := strings.Cut(s, "=")
	if cut {
		return j.pair(n, key, val, false)
	}
	if col, why := j.key(key); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	return nil
}

func (j *envJudge) end() error { return nil }

// key judges the beginning of a key: letters, and nothing that can only become
// a reserved one.
func (j *envJudge) key(s string) (int, string) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i + 1, "a key is letters, digits and _, not beginning with a digit"
		}
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(s, p) {
			return 1, "the keys " + p + "* are reserved"
		}
	}
	if strings.HasPrefix(s, ctxPrefix) {
		for _, good := range append([]string{stepsKey + "="}, j.repeats...) {
			if k, _, _ := strings.Cut(good, "="); strings.HasPrefix(k, s) && j.seen[k] == 0 {
				return 0, ""
			}
		}
		return 1, ctxReserved
	}
	return 0, ""
}

const ctxReserved = "the keys CTX_* are reserved, except CTX_AGENT_STEPS (1–255) and lines that repeat what the runtime sets"

// pair judges a key that an = ends, and its value, whole (done) or its beginning.
func (j *envJudge) pair(n int, key, val string, done bool) error {
	if key == "" {
		return fault.Text(n, 1, "no key before the =")
	}
	if at := j.seen[key]; at > 0 {
		return fault.Text(n, 1, "repeats the key of line %d", at)
	}
	if col, why := j.key(key); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	for _, k := range reservedKeys {
		if key == k {
			return fault.Text(n, 1, "the key %s is reserved", k)
		}
	}
	col, why := 0, ""
	switch {
	case key == stepsKey:
		col, why = steps(val, done)
	case strings.HasPrefix(key, ctxPrefix):
		col, why = j.repeat(key, val, done)
	case key == "PATH":
		col, why = execPath(val, done)
	}
	if why != "" {
		return fault.Text(n, len(key)+1+col, "%s", why)
	}
	return nil
}

func (j *envJudge) repeat(key, val string, done bool) (int, string) {
	for _, r := range j.repeats {
		if s := key + "=" + val; s == r || !done && strings.HasPrefix(r, s) {
			return 0, ""
		}
	}
	return 0, ctxReserved
}

// steps is a number 1–255.
func steps(s string, done bool) (int, string) {
	if col, why := number(s, done); why != "" {
		return col, why
	}
	if s == "" {
		return 0, ""
	}
	if v, _ := strconv.ParseUint(s, 10, 32); v < 1 || v > maxSteps {
		return 1, "number is not 1–255"
	}
	return 0, ""
}

// execPath is the value of PATH: absolute components, because an empty or a
// relative one means the current directory.
func execPath(s string, done bool) (int, string) {
	col := 1
	parts := strings.Split(s, ":")
	for i, p := range parts {
		last := i == len(parts)-1
		if p == "" && (done || !last) || p != "" && p[0] != '/' {
			return col, "PATH with a component that is not absolute"
		}
		col += len(p) + 1
	}
	return 0, ""
}
