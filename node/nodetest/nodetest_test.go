package nodetest

import "testing"

func TestTree(t *testing.T) { RunTree(t, New(t).Env()) }
