package control

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"cortexfs/node/fault"
)

func placeOf(err error) string {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Place()
	}
	return fmt.Sprint(err)
}

// A stream says of every state of a text what JudgePrefixFor says, also after a
// refusal and after the text was changed where it had been judged already.
func TestStreamSaysTheSame(t *testing.T) {
	entries := durable()
	all := names(entries)
	rapid.Check(t, func(t *rapid.T) {
		e := entries[rapid.SampledFrom(all).Draw(t, "entry")]
		o := objects[1]
		s := e.NewStream(o)
		for range 2 {
			texts := []string{rapid.SampledFrom(e.Good).Draw(t, "a"), rapid.SampledFrom(e.Bad).Draw(t, "b").Text, rapid.SampledFrom(e.Good).Draw(t, "c")}
			b := []byte(texts[0] + texts[1] + texts[2])
			for i := 0; i <= len(b); i += rapid.IntRange(1, 7).Draw(t, "step") {
				want, got := e.JudgePrefixFor(o, b[:i]), s.JudgePrefix(b[:i])
				if placeOf(want) != placeOf(got) {
					t.Fatalf("%s %q: the stream says %v, not %v", e.Name, b[:i], got, want)
				}
			}
		}
	})
}

func TestStreamOfGeneratedTexts(t *testing.T) {
	entries := durable()
	for name, gen := range generators {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := gen(t)
				s := entries[name].NewStream(Object{})
				for i := 0; i <= len(b); i += rapid.IntRange(1, 5).Draw(t, "step") {
					if err := s.JudgePrefix(b[:i]); err != nil {
						t.Fatalf("%q of %q: %v", b[:i], b, err)
					}
				}
			})
		})
	}
}

func BenchmarkStreamByteByByte(b *testing.B) {
	for _, name := range []string{"mount", "policy", "meta.json"} {
		text := bigText(name)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := Agent.Lookup(name).NewStream(Object{})
				for i := range text {
					if err := s.JudgePrefix(text[:i+1]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
