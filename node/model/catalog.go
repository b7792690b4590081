package model

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

// SystemTier is the directory of the system's models in the store.
const SystemTier = "model"

// HomeTier is the directory of a user's models.
func HomeTier(uid uint32) string { return "home/" + strconv.FormatUint(uint64(uid), 10) + "/model" }

// Model is what the controls of a model say. It is immutable; a control that
// cannot be read is a fault, and a model with one can be used by nobody.
type Model struct {
	Name     string // provider/model
	Tier     string
	Owner    uint32 // of a home's models the home's, else the daemon's
	Driver   string
	Cap      []string
	Effort   string
	Fallback []string // provider/model
	Policy   *policy.Set
	// OwnerOnly: the model has no policy of its own, so only agents of its owner
	// may use it.
	OwnerOnly bool
	Fault     *fault.Error
}

// TreePath is the model's place in the tree.
func (m *Model) TreePath() string { return node.Root + "/" + m.Tier + "/" + m.Name }

// Catalog finds models. It reads the store's mirrors and keeps nothing.
type Catalog struct {
	st    *store.Store
	owner uint32 // of the system's models
}

// NewCatalog makes a catalog; systemOwner is who the system's models belong to.
func NewCatalog(st *store.Store, systemOwner uint32) *Catalog { return &Catalog{st, systemOwner} }

// Tiers are the directories that a reference of an agent of owner is looked up
// in: its home, then the system's (as for a bare name of an agent).
func Tiers(owner uint32, home bool) []string {
	if home {
		return []string{HomeTier(owner), SystemTier}
	}
	return []string{SystemTier}
}

// Resolve finds what a reference points to now: the first tier that has the
// alias, or the model. NotExist.
func (c *Catalog) Resolve(tiers []string, ref control.ModelRef) (*Model, error) {
	for _, tier := range tiers {
		name := ref.Provider + "/" + ref.Model
		if ref.Alias != "" {
			target, ok := c.alias(tier, ref.Alias)
			if !ok {
				continue
			}
			// An alias may lead to another tier, never out of the models.
			tier, name = target[0], target[1]
		}
		m, err := c.Lookup(tier, name)
		if fault.Is(err, fault.NotExist) && ref.Alias == "" {
			continue
		}
		return m, err
	}
	return nil, fault.E("resolve", "model "+ref.String(), fault.NotExist, nil)
}

// alias reads the symlink of an alias: the tier and the model that it names.
// Aliases do not chain.
func (c *Catalog) alias(tier, name string) ([2]string, bool) {
	target, err := c.st.Readlink(tier + "/" + name)
	if err != nil {
		return [2]string{}, false
	}
	p := target
	if rest, ok := strings.CutPrefix(target, node.Root+"/"); ok {
		p = rest
	} else if !path.IsAbs(target) {
		p = path.Join(tier, target)
	}
	at := strings.LastIndex(p, "model/")
	if at < 0 || at > 0 && p[at-1] != '/' {
		return [2]string{}, false
	}
	to := p[:at+len("model")]
	if to != SystemTier && to != tier {
		return [2]string{}, false
	}
	return [2]string{to, p[at+len("model/"):]}, true
}

// Lookup reads one model of a tier.
func (c *Catalog) Lookup(tier, name string) (*Model, error) {
	provider, model, ok := strings.Cut(name, "/")
	if !ok || !node.IsName(provider) || !node.IsName(model) {
		return nil, fault.E("open", "model "+name, fault.NotExist, nil)
	}
	obj, err := c.st.Object(tier + "/" + name + ".d")
	if err != nil {
		return nil, err
	}
	m := &Model{Name: name, Tier: tier, Owner: c.owner}
	if rest, ok := strings.CutPrefix(tier, "home/"); ok {
		if uid, err := node.ParseUint(strings.TrimSuffix(rest, "/model")); err == nil {
			m.Owner = uid
		}
	}
	m.read(obj.Snapshot())
	return m, nil
}

func (m *Model) read(snap *store.Snapshot) {
	text := func(name string) (string, bool) {
		e := control.Model.Lookup(name)
		v, stored := snap.Values[name]
		if !stored {
			return e.DefaultText(control.Object{Name: m.Name}), false
		}
		err := v.Err
		if err == nil {
			err = e.Judge(v.Text)
		}
		if err != nil {
			if m.Fault == nil {
				m.Fault = fault.E("", m.TreePath()+".d/"+name, fault.KindOf(err), err)
			}
			return "", true
		}
		return string(v.Text), true
	}
	one := func(name string) string {
		s, _ := text(name)
		return strings.TrimSuffix(s, "\n")
	}
	m.Driver, m.Effort = one("driver"), one("effort")
	caps, _ := text("cap")
	m.Cap = strings.Fields(caps)
	list, _ := text("fallback")
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			m.Fallback = append(m.Fallback, line)
		}
	}
	rules, stored := text("policy")
	m.OwnerOnly = !stored
	if stored && m.Fault == nil {
		m.Policy, _ = policy.Parse([]byte(rules)) // judged above
	}
}

// User is the agent that wants to use a model.
type User struct {
	Owner   uint32
	Subject string
	Policy  *policy.Set // its own; nil allows nothing
	File    string      // its policy file, for messages
}

// Use says whether the agent may use the model under the name ref, as of now:
// its own policy allows ref, and the model's policy its type (spec sections 8 and
// 19). The error is Access and names the file and the missing rule.
func (m *Model) Use(u *User, ref string) error {
	if m.Fault != nil {
		return fault.E("use", "model "+ref, fault.Access, m.Fault)
	}
	if _, ok := u.Policy.Allows(u.Subject, policy.Model, ref, policy.Use); !ok {
		return denied(ref, u.File, policy.Rule{Subject: u.Subject, Class: policy.Model, Name: ref, Perm: policy.Use})
	}
	if m.OwnerOnly {
		if u.Owner != m.Owner {
			return fault.E("use", "model "+ref, fault.Access, fmt.Errorf("%s.d has no policy: only agents of uid %d may use it", m.TreePath(), m.Owner))
		}
		return nil
	}
	if _, ok := m.Policy.Allows(u.Subject, policy.Model, m.Name, policy.Use); !ok {
		return denied(ref, m.TreePath()+".d/policy", policy.Rule{Subject: u.Subject, Class: policy.Model, Name: m.Name, Perm: policy.Use})
	}
	return nil
}

func denied(ref, file string, rule policy.Rule) error {
	return fault.E("use", "model "+ref, fault.Access, fmt.Errorf("%s has no rule `%s`", file, rule))
}

// Plan is who may answer a call to ref: the model that it points to, and those of
// its fallbacks that are there and that use allows under their own names, in
// order, each once. skipped says why others are not among them. The error is that
// of the first: without it there is no call.
func (c *Catalog) Plan(tiers []string, ref control.ModelRef, use func(m *Model, ref string) error) (plan []*Model, skipped []error, err error) {
	first, err := c.Resolve(tiers, ref)
	if err != nil {
		return nil, nil, err
	}
	if err := use(first, ref.String()); err != nil {
		return nil, nil, err
	}
	plan = append(plan, first)
	for _, name := range first.Fallback {
		provider, model, _ := strings.Cut(name, "/")
		next, err := c.Resolve(tiers, control.ModelRef{Provider: provider, Model: model})
		if err == nil {
			err = use(next, name)
		}
		if err != nil {
			skipped = append(skipped, err)
			continue
		}
		known := slices.ContainsFunc(plan, func(m *Model) bool { return m.Name == next.Name && m.Tier == next.Tier })
		if !known && len(plan) < MaxCandidates {
			plan = append(plan, next)
		}
	}
	return plan, skipped, nil
}
