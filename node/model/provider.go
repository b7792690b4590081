package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Provider is one file of providers.d: where the models of a provider are
// answered. It is host-side; no agent and no store has a part in it.
type Provider struct {
	Name    string            `json:"name"`
	Driver  string            `json:"driver"`
	BaseURL string            `json:"base_url"`
	Slot    string            `json:"secret"`  // of secrets/<name>/; "": none is sent
	Models  map[string]string `json:"models"`  // our model name → the provider's; missing: the same
	Timeout int               `json:"timeout"` // seconds a call may take; 0: the default
	Names   string            `json:"tool_names"`
	Windows map[string]int    `json:"windows"` // our model name → context window in tokens; missing: unknown

	base   *url.URL
	secret Secret
}

// ToolNames of a provider: "openai" (letters, digits, _ and -, 64 of them; the
// default) or "any".
const (
	NamesOpenAI = "openai"
	NamesAny    = "any"
)

const maxProvider = 64 << 10

// ParseProvider reads the text of a provider file; unknown keys are errors, so
// that a misspelt one cannot loosen anything.
func ParseProvider(b []byte) (*Provider, error) {
	if len(b) > maxProvider {
		return nil, fault.Newf(fault.TooBig, "provider file of over %d bytes", maxProvider)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var p Provider
	if err := d.Decode(&p); err != nil {
		return nil, fault.Newf(fault.Invalid, "provider file: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Newf(fault.Invalid, "provider file: data after the object")
	}
	return &p, p.check()
}

func (p *Provider) check() error {
	bad := func(format string, args ...any) error {
		return fault.Newf(fault.Invalid, "provider file: "+format, args...)
	}
	if err := node.CheckName(p.Name); err != nil {
		return bad("name: %w", err)
	}
	if p.Slot != "" && !node.IsName(p.Slot) {
		return bad("secret is the name of a slot")
	}
	if p.Driver != "openai" {
		return bad("driver %.32q is unknown", p.Driver)
	}
	if p.Names == "" {
		p.Names = NamesOpenAI
	}
	if p.Names != NamesOpenAI && p.Names != NamesAny {
		return bad("tool_names is openai or any")
	}
	if p.Timeout < 0 || p.Timeout > int(MaxTimeout.Seconds()) {
		return bad("timeout is 0 to %d seconds", int(MaxTimeout.Seconds()))
	}
	for name := range p.Models {
		if !node.IsName(name) {
			return bad("models: %.70q is not an object name", name)
		}
	}
	for name, n := range p.Windows {
		if !node.IsName(name) || n <= 0 || n > node.MaxUint {
			return bad("windows: a model name and a positive number")
		}
	}
	u, err := url.Parse(p.BaseURL)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return bad("base_url is not a URL with a host")
	case u.User != nil:
		return bad("base_url has no user or password: a secret is a file")
	case u.RawQuery != "" || u.Fragment != "":
		return bad("base_url has no query and no fragment")
	case u.Scheme == "https":
	case u.Scheme == "http" && Loopback(u.Hostname()):
	case u.Scheme == "http":
		return bad("http goes to loopback only: use https")
	default:
		return bad("scheme of base_url is https, or http to loopback")
	}
	p.base = u
	return nil
}

// Loopback says whether a host name of a URL is this machine by itself.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Base is the parsed BaseURL. It is not to be changed.
func (p *Provider) Base() *url.URL { return p.base }

// Secret is the provider's key; empty where it has none.
func (p *Provider) Secret() Secret { return p.secret }

// Origin is scheme, host and port: all that the secret is ever sent to.
func (p *Provider) Origin() string { return p.base.Scheme + "://" + p.base.Host }

// ModelName is the provider's own name of a model (the part behind the slash).
func (p *Provider) ModelName(model string) string {
	if name, ok := p.Models[model]; ok {
		return name
	}
	return model
}

// Window is the context window of a model in tokens; 0: unknown.
func (p *Provider) Window(model string) int { return p.Windows[model] }

// WithSecret is the provider with a key.
func (p *Provider) WithSecret(s Secret) *Provider {
	c := *p
	c.secret = s
	return &c
}

// LoadProviders reads providers.d/*.json of one tier and the secrets that they
// name, both below held directories of that tier: a file of one tier cannot reach
// a secret of another, whatever name it takes. secrets may be nil where there are
// none. A bad file does not hide the others; faults has one error for each.
func LoadProviders(providers, secrets *os.File) (all map[string]*Provider, faults []error) {
	all = map[string]*Provider{}
	fd, err := beneath.Open(int(providers.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return all, []error{fault.FromOS("open", "providers.d", err)}
	}
	defer unix.Close(fd)
	entries, err := beneath.ReadDir(fd)
	if err != nil {
		return all, []error{fault.FromOS("read", "providers.d", err)}
	}
	slices.SortFunc(entries, func(a, b beneath.Dirent) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".json") || strings.HasPrefix(e.Name, ".") {
			continue
		}
		p, err := loadProvider(fd, e.Name, secrets)
		if err == nil && all[p.Name] != nil {
			err = fmt.Errorf("provider %s has another file", p.Name)
		}
		if err != nil {
			faults = append(faults, fault.E("load", "providers.d/"+e.Name, fault.KindOf(err), err))
			continue
		}
		all[p.Name] = p
	}
	return all, faults
}

func loadProvider(dir int, name string, secrets *os.File) (*Provider, error) {
	fd, err := beneath.Open(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fault.FromOS("open", "", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return nil, fault.FromOS("stat", "", err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fault.Newf(fault.Invalid, "not a regular file")
	case st.Mode&0o077 != 0:
		return nil, fault.Newf(fault.Perm, "mode is %04o; chmod 600 it", st.Mode&0o777)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fault.Newf(fault.Perm, "belongs to uid %d", st.Uid)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxProvider+1))
	if err != nil {
		return nil, fault.FromOS("read", "", err)
	}
	p, err := ParseProvider(b)
	if err != nil || p.Slot == "" {
		return p, err
	}
	if secrets == nil {
		return nil, fault.Newf(fault.NotExist, "there is no directory of secrets")
	}
	s, err := OpenSecret(secrets, p.Name, p.Slot)
	if err != nil {
		return nil, err
	}
	return p.WithSecret(s), nil
}
