package term

import "cortexfs/node"

// Notice shows one line of ours to everybody who looks at the terminal, as if the
// program had printed it; what runs inside gets nothing of it. A sequence that the
// program has begun is cut off: what is told here matters more.
func (h *Hub) Notice(text string) {
	const cancel = "\x18"
	h.Output([]byte(cancel + "\r\n[cortexfs] " + node.Escape(text) + "\r\n"))
}
