package model

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// maxSecret bounds a secret, in bytes.
const maxSecret = 8 << 10

// Secret is a provider's key. It does not print, whatever verb, encoder or
// logger is used.
type Secret struct{ b []byte }

// ReadSecret reads a secret to the end of r: one line of printable ASCII (it goes
// into a header). The error does not repeat it.
func ReadSecret(r io.Reader) (Secret, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err != nil {
		return Secret{}, fault.FromOS("read", "secret", err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	switch {
	case len(b) == 0:
		return Secret{}, fault.Newf(fault.Invalid, "secret is empty")
	case len(b) > maxSecret:
		return Secret{}, fault.Newf(fault.TooBig, "secret of over %d bytes", maxSecret)
	}
	for _, c := range b {
		if c <= ' ' || c >= 0x7f {
			return Secret{}, fault.Newf(fault.Invalid, "secret is not one line of printable ASCII")
		}
	}
	return Secret{b}, nil
}

// OpenSecret reads PROVIDER/SLOT below a held directory of secrets: a regular
// file of ours or root's with mode 0600 or less, reached through no link.
func OpenSecret(dir *os.File, provider, slot string) (Secret, error) {
	path := provider + "/" + slot
	if !node.IsName(provider) || !node.IsName(slot) {
		return Secret{}, fault.Newf(fault.Invalid, "provider and slot are object names")
	}
	fd, err := beneath.Open(int(dir.Fd()), path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return Secret{}, fault.FromOS("open secret", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return Secret{}, fault.FromOS("open secret", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return Secret{}, fault.E("open secret", path, fault.Invalid, fmt.Errorf("not a regular file"))
	case st.Mode&0o077 != 0:
		return Secret{}, fault.E("open secret", path, fault.Perm, fmt.Errorf("mode is %04o; chmod 600 %s", st.Mode&0o777, path))
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return Secret{}, fault.E("open secret", path, fault.Perm, fmt.Errorf("belongs to uid %d", st.Uid))
	}
	return ReadSecret(f)
}

// Empty says whether there is no secret.
func (s Secret) Empty() bool { return len(s.b) == 0 }

// Bearer is the value of an Authorization header.
func (s Secret) Bearer() string { return "Bearer " + string(s.b) }

// Hidden is what stands where a secret stood.
const Hidden = "[secret]"

// Redact replaces the secret in a text, also where only a long piece of it is
// left: keys are echoed cut.
func (s Secret) Redact(text string) string {
	if s.Empty() {
		return text
	}
	key := string(s.b)
	text = strings.ReplaceAll(text, key, Hidden)
	const piece = 8
	if len(key) < 2*piece {
		return text
	}
	for i := 0; i+piece <= len(text); i++ {
		n := piece
		if !strings.Contains(key, text[i:i+n]) {
			continue
		}
		for i+n < len(text) && strings.Contains(key, text[i:i+n+1]) {
			n++
		}
		text = text[:i] + Hidden + text[i+n:]
		i += len(Hidden) - 1
	}
	return text
}

func (s Secret) String() string               { return Hidden }
func (s Secret) GoString() string             { return Hidden }
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Hidden + `"`), nil }
func (s Secret) MarshalText() ([]byte, error) { return []byte(Hidden), nil }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(Hidden) }

// Format hides the secret from every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, Hidden) }
