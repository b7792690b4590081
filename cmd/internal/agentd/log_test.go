package agentd

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Refused connections do not fill /run.
func TestLogOfStrangersIsBounded(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	log := zap.New(sampled(core))
	for range 10_000 {
		log.Warn("terminal client refused", zap.String("reason", "uid 2002 is neither the owner nor root"))
	}
	log.Info("stopping")
	if n := seen.FilterMessage("terminal client refused").Len(); n < 1 || n > 2*logFirst { // a minute may end between
		t.Errorf("%d lines", n)
	}
	if seen.FilterMessage("stopping").Len() != 1 {
		t.Error("the agent's own words are lost")
	}
}
