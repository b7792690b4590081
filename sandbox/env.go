package sandbox

import (
	"fmt"
	"strings"
)

// Environment is spec 10.4: what the runtime sets, then the lines of the env
// control. path is the path control's directories; none: no CTX_PATH. A line
// that names something set already replaces it in place; which names a line may
// have is the control's format to judge.
//
// bubblewrap adds PWD for its command, which nothing here can prevent; the
// command drops it for what it starts.
func Environment(agent, session string, owner uint32, path []string, lines []string) []string {
	env := []string{
		"CTX_ROOT=/ctx",
		fmt.Sprintf("CTX_HOME=/ctx/home/%d", owner),
		"HOME=" + HomePath,
		"PATH=/usr/bin:/bin",
		"USER=" + agent,
		"LOGNAME=" + agent,
		"SHELL=/usr/bin/bash",
		"TERM=xterm-256color",
		"LANG=C.UTF-8",
	}
	if len(path) > 0 {
		env = append(env, "CTX_PATH="+strings.Join(path, ":"))
	}
	env = append(env, "CTX_AGENT="+agent, "CTX_SESSION="+session)
	for _, line := range lines {
		key, _, _ := strings.Cut(line, "=")
		env = set(env, key, line)
	}
	return env
}

func set(env []string, key, line string) []string {
	for i, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			env[i] = line
			return env
		}
	}
	return append(env, line)
}
