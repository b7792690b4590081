package agentd

import (
	"context"
	"encoding/json"
	"strconv"

	"cortexfs/cmd/internal/loop"
	"cortexfs/node/prompt"
	"cortexfs/sandbox"
	"cortexfs/sandbox/wire"
)

// Rules and skills are read inside, by our own program there. Nothing that it says
// is believed beyond its size; it is text for a model, and every file of it is the
// agent's to read.
const (
	filesTime  = 20_000  // ms
	filesLimit = 1 << 20 // bytes
)

// files reads the rules and skills inside, where the agent sees them.
func (r *runs) files(ctx context.Context, b *Brief, cwd string) (f loop.Files) {
	if cwd == "" {
		cwd = b.Cwd
	}
	res, err := r.a.host.Run(ctx, wire.RunMsg{
		Argv: []string{sandbox.TermPath, "prompt-files", cwd, strconv.Itoa(b.Window)}, Cwd: "/", Timeout: filesTime, Limit: filesLimit,
	})
	if err != nil || res.Errno != 0 || res.Code != 0 || json.Unmarshal(res.Stdout, &f) != nil {
		r.a.log.Sugar().Warnw("rules and skills could not be read", "error", err)
		return loop.Files{RulesReport: "# Rules of this run\n\nThey could not be read.\n", SkillsReport: "# Skills of this run\n\nThey could not be read.\n"}
	}
	if len(f.Rules) > prompt.MaxRules {
		f.Rules = ""
	}
	if len([]rune(f.Skills)) > prompt.Budget(b.Window) {
		f.Skills = ""
	}
	return f
}
