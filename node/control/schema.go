package control

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Limits of spec section 6.
const maxSchemaDepth = 32

// authorityKeys at the top level of a schema would claim what only policies
// give.
var authorityKeys = []string{
	"policy", "allow", "deny", "authority", "grant", "grants", "permissions", "mount", "uid", "gid", "groups", "network",
}

// schemaFormat is the JSON Schema of a tool's input. Only its structure is
// judged here. It is compiled and applied elsewhere, in a process that can be
// killed, because a hostile schema can take for ever; so nothing in this file
// follows a reference or runs a pattern.
var schemaFormat = &jsonFormat{
	name:  "JSON Schema",
	depth: maxSchemaDepth,
	key: func(key string) string {
		if slices.Contains(authorityKeys, key) {
			return "a schema does not have the top-level key " + key + ": it describes input and grants nothing"
		}
		return ""
	},
	object: func(b []byte) string {
		var top map[string]any
		if err := decode(b, &top); err != nil {
			return "not a JSON object"
		}
		if why := references(top); why != "" {
			return why
		}
		return keywords(top)
	},
}

// decode keeps numbers as text: a schema may hold one that no float64 does.
func decode(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(into)
}

// references refuses what would make a reader of the schema look elsewhere. It
// walks every value, also those that are data: a loader may read them otherwise.
func references(v any) string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if why := references(e); why != "" {
				return why
			}
		}
	case map[string]any:
		for _, k := range sortedKeys(v) {
			s, isString := v[k].(string)
			switch {
			case !isString:
			case (k == "$ref" || k == "$dynamicRef" || k == "$recursiveRef") && !strings.HasPrefix(s, "#"):
				return k + " points out of the text: only #… is allowed"
			case k == "$id" && hasScheme(s):
				return "$id with a scheme"
			}
			if why := references(v[k]); why != "" {
				return why
			}
		}
	}
	return ""
}

// hasScheme says whether s begins like an absolute URI (RFC 3986 section 3.1).
func hasScheme(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return c == ':' && i > 0
		}
	}
	return false
}

// The keywords of JSON Schema whose form is the same in every draft since 4.
var (
	schemaTypes    = []string{"null", "boolean", "object", "array", "number", "string", "integer"}
	subschemas     = []string{"not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties"}
	subschemaLists = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	subschemaMaps  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

// keywords refuses a schema whose main keywords have values of the wrong form.
func keywords(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		if _, ok := v.(bool); ok {
			return ""
		}
		return "a schema is an object, true or false"
	}
	if why := assertions(m); why != "" {
		return why
	}
	for _, k := range subschemas {
		if sub, ok := m[k]; ok {
			if why := keywords(sub); why != "" {
				return why
			}
		}
	}
	if items, ok := m["items"]; ok {
		if _, list := items.([]any); !list {
			if why := keywords(items); why != "" {
				return why
			}
		} else if why := each("items", items); why != "" {
			return why
		}
	}
	for _, k := range subschemaLists {
		if list, ok := m[k]; ok {
			if why := each(k, list); why != "" {
				return why
			}
		}
	}
	for _, k := range subschemaMaps {
		sub, ok := m[k]
		if !ok {
			continue
		}
		subs, ok := sub.(map[string]any)
		if !ok {
			return k + " is not an object"
		}
		for _, name := range sortedKeys(subs) {
			if why := keywords(subs[name]); why != "" {
				return why
			}
		}
	}
	return ""
}

func each(k string, v any) string {
	list, ok := v.([]any)
	if !ok {
		return k + " is not an array"
	}
	for _, s := range list {
		if why := keywords(s); why != "" {
			return why
		}
	}
	return ""
}

// assertions judges type, required and enum.
func assertions(m map[string]any) string {
	if t, ok := m["type"]; ok {
		list, isList := t.([]any)
		if !isList {
			list = []any{t}
		}
		for _, e := range list {
			if s, ok := e.(string); !ok || !slices.Contains(schemaTypes, s) {
				return "type is not one of " + strings.Join(schemaTypes, " ")
			}
		}
	}
	if r, ok := m["required"]; ok {
		list, isList := r.([]any)
		for _, e := range list {
			_, isString := e.(string)
			isList = isList && isString
		}
		if !isList {
			return "required is not an array of strings"
		}
	}
	if e, ok := m["enum"]; ok {
		if _, ok := e.([]any); !ok {
			return "enum is not an array"
		}
	}
	return ""
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// MCP is the stdio locator of a tool that speaks to an MCP server (spec section
// 6). Where is `sandbox` or `host`; empty means sandbox.
type MCP struct {
	Transport string `json:"transport"`
	Config    string `json:"config"`
	Server    string `json:"server"`
	Tool      string `json:"tool"`
	Where     string `json:"where"`
}

var mcpFormat = &jsonFormat{name: "MCP locator", depth: 1, object: func(b []byte) string {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var m MCP
	if err := d.Decode(&m); err != nil {
		return "not a locator: the keys are transport config server tool where, all of them strings"
	}
	if m.Transport != "stdio" {
		return "transport is not stdio"
	}
	if _, why := absPath(m.Config, true, false); why != "" {
		return "config: " + why
	}
	if m.Server == "" || m.Tool == "" {
		return "server or tool is missing"
	}
	if m.Where != "" && m.Where != "sandbox" && m.Where != "host" {
		return "where is not sandbox or host"
	}
	return ""
}}

// ParseMCP reads `mcp`; Where is never empty in its answer.
func ParseMCP(b []byte) (MCP, error) {
	var m MCP
	if err := mcpFormat.Check(b); err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, placed(b, 0, "not a JSON object")
	}
	if m.Where == "" {
		m.Where = "sandbox"
	}
	return m, nil
}
