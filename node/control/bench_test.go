package control

import (
	"fmt"
	"strings"
	"testing"

	"cortexfs/node"
)

// bigText is a valid text of nearly 64 KiB.
func bigText(name string) []byte {
	var b strings.Builder
	add := func(s string) bool {
		if b.Len()+len(s) > node.MaxText-8 {
			return false
		}
		b.WriteString(s)
		return true
	}
	if name == "meta.json" {
		add("{")
	}
	for i := 0; ; i++ {
		s := map[string]string{
			"policy":    fmt.Sprintf("allow agent%d_t tool:tool.%d execute\n", i%9, i),
			"mount":     fmt.Sprintf("/srv/source/%d\t/target/%d\tro\trbind,nosuid,nodev\n", i, i),
			"tools":     fmt.Sprintf("tool.%d\n", i),
			"env":       fmt.Sprintf("KEY_%d=some value\n", i),
			"meta.json": fmt.Sprintf("\"key%d\":[1,2,{}],\n", i),
			"system.md": "Write good code. 项目\n",
		}[name]
		if !add(s) {
			break
		}
	}
	if name == "meta.json" {
		b.WriteString(`"":0}` + "\n")
	}
	return []byte(b.String())
}

func BenchmarkPrefix64K(b *testing.B) {
	for _, name := range []string{"policy", "mount", "tools", "env", "meta.json", "system.md"} {
		text := bigText(name)
		if err := Agent.Lookup(name).Judge(text); err != nil {
			b.Fatal(name, err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Agent.Lookup(name).JudgePrefix(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
