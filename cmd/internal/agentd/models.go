package agentd

import (
	"bytes"
	"context"
	"io"

	"cortexfs/node/fault"
	"cortexfs/node/model"
	"cortexfs/node/model/driver/debug"
	"cortexfs/node/run"
)

// models makes the model calls of the agent. The daemon says who may answer; the
// models that need no network and no secret answer here.
type models struct{ a *agent }

var _ run.Models = models{}

// Call implements run.Models.
func (m models) Call(ctx context.Context, runID, ref string, r *model.Request, emit func(model.Frame) error) error {
	var plan []Model
	err := m.a.ask(ctx, "model", AskModel{Ref: ref}, &plan)
	if fault.Is(err, fault.Access) { // the log has the file and the rule
		return fault.Newf(fault.Access, "the agent may not use the model")
	}
	if err != nil {
		return err
	}
	var all []model.Candidate
	for _, one := range plan {
		all = append(all, model.Candidate{Name: one.Name, Driver: driverOf(one)})
	}
	if r.Effort == "" && len(plan) > 0 {
		r.Effort = plan[0].Effort
	}
	return model.Call(ctx, model.Options{Run: runID}, all, r, emit)
}

func driverOf(m Model) model.Driver {
	switch {
	case m.Driver == "debug" && m.Name == "debug/script":
		return debug.Script{Open: func() (io.ReadCloser, error) {
			if m.Script == nil {
				return nil, fault.Newf(fault.NotExist, "there is no script")
			}
			return io.NopCloser(bytes.NewReader(m.Script)), nil
		}}
	case m.Driver == "debug":
		return debug.Echo{}
	}
	return unserved(m.Driver)
}

// unserved is a driver that this host process does not have.
type unserved string

func (d unserved) Complete(context.Context, *model.Request, func(model.Frame) error) error {
	return fault.Newf(fault.Unavailable, "no broker serves the driver %s", string(d))
}
