package session

import "bytes"

// Tail is the last whole lines of messages.jsonl, oldest first, at most limit bytes
// of them.
func (s *Session) Tail(limit int64) ([][]byte, error) {
	size := s.messages.size()
	from := size - limit
	cut := from > 0
	if cut {
		from-- // so that a line that begins exactly there is whole
	}
	var out [][]byte
	err := each(s.messages, max(from, 0), size, func(line []byte, _ int64) error {
		if cut { // the rest of a line that begins before
			cut = false
			return nil
		}
		out = append(out, bytes.Clone(line))
		return nil
	})
	return out, err
}
