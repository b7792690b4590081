// Package tool is the catalog of tools over the tiers of the tree (spec section
// 6).
package tool

import (
	"cortexfs/node/store"
	"cortexfs/policy"
)

// Catalog of all tiers. A tier is "tool", "home/<uid>/tool" or
// "shared/<space>/tool".
type Catalog struct{}

// Tool is one hit: a regular file with an execute bit. Immutable.
type Tool struct {
	Tier, Name string
	Info       store.FileInfo
}

// Path is "tool/fs.read", Dir "tool/fs.read.d", TreePath "/ctx/tool/fs.read".
func (t *Tool) Path() string     { panic("not there yet") }
func (t *Tool) Dir() string      { panic("not there yet") }
func (t *Tool) TreePath() string { panic("not there yet") }

// Object holds the stored controls; nil when there is no NAME.d: defaults.
func (t *Tool) Object() *store.Object { panic("not there yet") }

// Policy is the tool's own policy as it is now; nil: nobody.
func (t *Tool) Policy() *policy.Set { panic("not there yet") }

// Text is the effective text of a control (durable or default).
func (t *Tool) Text(name string) (text []byte, origin string, err error) { panic("not there yet") }

func New(st *store.Store) *Catalog { panic("not there yet") }

// Lookup finds the tool as it is now; false: no hit.
func (c *Catalog) Lookup(tier, name string) (*Tool, bool) { panic("not there yet") }

// List is every tool of a tier, sorted by name.
func (c *Catalog) List(tier string) []*Tool { panic("not there yet") }

// Tiers are all tiers that the store has.
func (c *Catalog) Tiers() []string { panic("not there yet") }

// Gen is a number that differs when the tools of the tier may differ.
func (c *Catalog) Gen(tier string) uint64 { panic("not there yet") }

// Subscribe calls fn after Changed was called.
func (c *Catalog) Subscribe(fn func(tier, name string)) (cancel func()) { panic("not there yet") }

// Changed tells subscribers about a changed file or control of a tool.
func (c *Catalog) Changed(tier, name string) { panic("not there yet") }

// NamedElsewhere implements agent.Subjects.
func (c *Catalog) NamedElsewhere(subject string, uid uint32) (path string, ok bool) {
	panic("not there yet")
}
