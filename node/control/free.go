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
var policyFormat = &lineFormat{name: "policy", chars: text.Tab, new: func() judge { return policyJudge{} }}

type policyJudge struct{}

func (policyJudge) line(n int, s string) error { return policy.CheckLine(n, s) }
func (policyJudge) part(n int, s string) error { return policy.LinePrefix(n, s) }
func (policyJudge) end() error                 { return nil }

func isSpace(r rune) bool { return unicode.IsSpace(r) }

func itoa(n int) string { return strconv.Itoa(n) }
