package control

import (
	"strconv"
	"unicode"

	"cortexfs/node"
	"cortexfs/node/text"
	"cortexfs/policy"
)

// Reserved is the tool that always counts as declared and stands in no list.
const Reserved = "tsh"

const maxName = node.MaxName

// freeFormat is text with LF and TAB, judged by its characters only.
type freeFormat struct {
	name  string
	chars text.Chars
}

func (f *freeFormat) Name() string          { return f.name }
func (f *freeFormat) Check(b []byte) error  { return text.Check(b, f.chars) }
func (f *freeFormat) Prefix(b []byte) error { return text.Prefix(b, f.chars) }

var (
	promptFormat = &freeFormat{"prompt", text.Tab | text.Loose}
	textFormat   = &freeFormat{"text", text.Tab}
)

// policyFormat is the language of spec section 7.
type policyFormat struct{}

func (policyFormat) Name() string { return "policy" }

func (policyFormat) Check(b []byte) error {
	_, err := policy.Parse(b)
	return err
}

func (policyFormat) Prefix(b []byte) error { return policy.Prefix(b) }

func isSpace(r rune) bool { return unicode.IsSpace(r) }

func itoa(n int) string { return strconv.Itoa(n) }
