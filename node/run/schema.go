package run

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"cortexfs/node/fault"
)

// CheckArguments judges native arguments by a tool's schema. Both texts are
// somebody else's and a hostile schema takes for ever (notes-security X22): call
// it in a process that can be killed after 100 ms of CPU. Nothing outside of the
// text is read, whatever it refers to. The error names the place in the
// arguments, never a value.
func CheckArguments(schema, args []byte) error {
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return fault.Newf(fault.Invalid, "the schema is no JSON")
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return fault.Newf(fault.Invalid, "the arguments are no JSON")
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(refuse{})
	const here = "cortexfs:schema"
	if err := c.AddResource(here, s); err != nil {
		return fault.Newf(fault.Invalid, "the schema cannot be used")
	}
	compiled, err := c.Compile(here)
	if err != nil {
		return fault.Newf(fault.Invalid, "the schema cannot be used")
	}
	err = compiled.Validate(v)
	var bad *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &bad):
		return fault.Newf(fault.Invalid, "the arguments do not fit the schema")
	}
	for len(bad.Causes) > 0 {
		bad = bad.Causes[0]
	}
	return fault.Newf(fault.Invalid, "the arguments do not fit the schema at %s (%s)",
		pointer(bad.InstanceLocation), strings.Join(bad.ErrorKind.KeywordPath(), "/"))
}

// refuse is a loader that loads nothing.
type refuse struct{}

func (refuse) Load(string) (any, error) { return nil, errors.New("refused") }

// pointer is a JSON pointer, shortened.
func pointer(path []string) string {
	var b strings.Builder
	for _, p := range path {
		fmt.Fprintf(&b, "/%s", strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
	}
	if b.Len() == 0 {
		return "/"
	}
	return fmt.Sprintf("%.200q", b.String())
}
