package run

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"cortexfs/node"
	"cortexfs/node/jsonl"
)

// MaxQuestion bounds a question, in bytes of its frame: a larger one is denied
// rather than shown cut (spec section 15).
const MaxQuestion = 64 << 10

// Reasons of a decision (spec section 15).
const (
	ByUser        = "user"
	Expired       = "expired"
	HandlerGone   = "handler-gone"
	Malformed     = "malformed"
	NoHandler     = "no-handler"
	PolicyChanged = "policy-changed"
)

// Question is one call that needs an approval.
type Question struct {
	Agent      string // of a child, when it is asked up the chain; else empty
	Run        string
	ID         string // of the call
	Name       string // of the tool
	Args       []string
	Stdin      []byte
	Executable string // SHA-256 of the file that is held, in hex
	Expires    time.Time
}

// Digest binds an answer to everything that would be executed.
func (q *Question) Digest() string {
	args := q.Args
	if args == nil {
		args = []string{}
	}
	in := sha256.Sum256(q.Stdin)
	sum := sha256.Sum256(jsonl.Marshal([]any{"cortexfs.approval/v1", q.Run, q.ID, q.Name, args, hex.EncodeToString(in[:]), q.Executable}))
	return hex.EncodeToString(sum[:])
}

// frame is the approval_request.
func (q *Question) frame() []byte {
	args := q.Args
	if args == nil {
		args = []string{}
	}
	return jsonl.Marshal(struct {
		Type       string   `json:"type"`
		Agent      string   `json:"agent,omitempty"`
		Run        string   `json:"run"`
		ID         string   `json:"id"`
		Name       string   `json:"name"`
		Args       []string `json:"args"`
		Digest     string   `json:"digest"`
		Executable string   `json:"executable"`
		Expires    string   `json:"expires"`
	}{"approval_request", q.Agent, q.Run, q.ID, q.Name, args, q.Digest(), q.Executable, q.Expires.UTC().Format(time.RFC3339)})
}

// Decision is what came of a question.
type Decision struct {
	Allow  bool
	Reason string // of spec section 15
	By     string // who answered, as the handler was attached; for the log
	Detail string // for people
}

// frame is the approval_result.
func (d Decision) frame(q *Question) []byte {
	word := "deny"
	if d.Allow {
		word = "allow_once"
	}
	return jsonl.Marshal(struct {
		Type     string `json:"type"`
		Agent    string `json:"agent,omitempty"`
		Run      string `json:"run"`
		ID       string `json:"id"`
		Name     string `json:"name"`
		Decision string `json:"decision"`
		Reason   string `json:"reason"`
	}{"approval_result", q.Agent, q.Run, q.ID, q.Name, word, d.Reason})
}

// answer is a frame of a handler: exactly these four keys.
type answer struct {
	run, id string
	allow   bool
}

func parseAnswer(line []byte) (answer, bool) {
	o, err := jsonl.Parse(line)
	if err != nil || len(o) != 4 {
		return answer{}, false
	}
	var a answer
	op, ok1 := o.String("op")
	run, ok2 := o.String("run")
	id, ok3 := o.String("id")
	decision, ok4 := o.String("decision")
	if !ok1 || !ok2 || !ok3 || !ok4 || op != "approve" || !node.IsName(run) || !node.IsName(id) {
		return answer{}, false
	}
	switch a = (answer{run: run, id: id}); decision {
	case "allow_once":
		a.allow = true
	case "deny":
	default:
		return answer{}, false
	}
	return a, true
}

// IsAnswer says whether a frame of a client is meant as an answer: its op is
// approve, whatever else it is.
func IsAnswer(line []byte) bool {
	var f struct {
		Op string `json:"op"`
	}
	return json.Unmarshal(line, &f) == nil && f.Op == "approve"
}
