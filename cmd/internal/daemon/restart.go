package daemon

import (
	"cortexfs/node/agent"
	"cortexfs/node/control"
)

// startTexts are the controls that a running agent keeps until its next start.
func startTexts(c *agent.Config) map[string]string {
	m := map[string]string{}
	for _, e := range control.Agent.Entries() {
		if e.Kind == control.Durable && e.Applies == control.NextStart {
			if text, ok := c.Text(e.Name); ok {
				m[e.Name] = text
			}
		}
	}
	return m
}

// pendingRestart names the controls that were changed since the start.
func (r *running) pendingRestart(o *agent.Object) []string {
	var names []string
	now := startTexts(o.Config())
	for _, e := range control.Agent.Entries() {
		if was, ok := r.texts[e.Name]; ok && now[e.Name] != was {
			names = append(names, e.Name)
		}
	}
	return names
}
