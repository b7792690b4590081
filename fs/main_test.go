package fs_test

import (
	"testing"

	"cortexfs/fs/fstest"
)

func TestMain(m *testing.M) { fstest.Main(m) }
