package supervisor

import (
	"fmt"
	"strings"
)

// Limits of a configuration file. The TOML decoder needs time and memory
// that grow with the square of the nesting, so both are bounded before it
// sees a byte; a service with 1,000 sockets is some 60 KiB and 4 deep.
const (
	maxConfigSize  = 1 << 20
	maxConfigDepth = 32
)

// keyLines finds the line of every key of a TOML document: the decoder
// tells the line of a syntax error only, and an operator needs it for every
// error. It judges nothing: what is no TOML is skipped to the end of its
// line, since the decoder reports it.
type keyLines struct {
	text  string
	pos   int
	line  int
	lines map[string]int // by joined path; the first occurrence wins
	err   *ConfigError   // nested too deeply
}

// pathKey joins a path by a byte that no key of a valid document contains.
func pathKey(path []string) string { return strings.Join(path, "\x00") }

// scanKeyLines returns the lines by pathKey, and an error without File when
// the document is nested too deeply to be given to the decoder.
func scanKeyLines(text string) (map[string]int, *ConfigError) {
	s := &keyLines{text: text, line: 1, lines: map[string]int{}}
	var prefix []string
	for s.space(true); s.pos < len(s.text) && s.err == nil; s.space(true) {
		start := s.pos
		if s.peek() == '[' {
			for s.peek() == '[' && s.pos < start+2 {
				s.pos++
			}
			prefix = s.key()
			s.record(prefix)
			s.skipLine()
			continue
		}
		s.assignment(prefix, 1)
		s.skipLine()
		if s.pos == start {
			s.pos++
		}
	}
	return s.lines, s.err
}

func (s *keyLines) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

// space skips blanks, and with newlines also line ends and comments.
func (s *keyLines) space(newlines bool) {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == ' ' || c == '\t' || c == '\r':
			s.pos++
		case newlines && c == '\n':
			s.line++
			s.pos++
		case newlines && c == '#':
			s.skipLine()
		default:
			return
		}
	}
}

// skipLine goes to the line end without taking it.
func (s *keyLines) skipLine() {
	if i := strings.IndexByte(s.text[s.pos:], '\n'); i >= 0 {
		s.pos += i
	} else {
		s.pos = len(s.text)
	}
}

func (s *keyLines) record(path []string) {
	if len(path) > maxConfigDepth {
		s.tooDeep()
		return
	}
	for n := 1; n <= len(path); n++ {
		if k := pathKey(path[:n]); s.lines[k] == 0 {
			s.lines[k] = s.line
		}
	}
}

func (s *keyLines) tooDeep() {
	if s.err == nil {
		s.err = &ConfigError{Line: s.line, Err: fmt.Errorf("nested more than %d deep", maxConfigDepth)}
	}
}

// key reads a dotted key; parts may be quoted.
func (s *keyLines) key() []string {
	var path []string
	for len(path) <= maxConfigDepth {
		s.space(false)
		switch c := s.peek(); {
		case c == '"' || c == '\'':
			path = append(path, s.quoted(c))
		default:
			start := s.pos
			for s.pos < len(s.text) && !strings.ContainsRune(" \t\r\n.=[]{},#\"'", rune(s.text[s.pos])) {
				s.pos++
			}
			if s.pos == start {
				return path
			}
			path = append(path, s.text[start:s.pos])
		}
		s.space(false)
		if s.peek() != '.' {
			return path
		}
		s.pos++
	}
	return path
}

// assignment reads key = value.
func (s *keyLines) assignment(prefix []string, depth int) {
	key := s.key()
	if len(key) == 0 {
		return
	}
	path := append(append([]string(nil), prefix...), key...)
	s.record(path)
	s.space(false)
	if s.peek() == '=' && s.err == nil {
		s.pos++
		s.value(path, depth)
	}
}

func (s *keyLines) value(path []string, depth int) {
	if depth > maxConfigDepth {
		s.tooDeep()
		return
	}
	s.space(false)
	switch c := s.peek(); c {
	case '"', '\'':
		s.quoted(c)
	case '[', '{':
		s.pos++
		s.group(c, path, depth)
	default:
		for s.pos < len(s.text) && !strings.ContainsRune(",]}\n#", rune(s.text[s.pos])) {
			s.pos++
		}
	}
}

// group reads the rest of an array or an inline table.
func (s *keyLines) group(open byte, path []string, depth int) {
	closing := byte(']')
	if open == '{' {
		closing = '}'
	}
	for s.err == nil {
		s.space(true)
		if s.pos >= len(s.text) {
			return
		}
		start := s.pos
		switch {
		case s.peek() == closing:
			s.pos++
			return
		case s.peek() == ',':
			s.pos++
		case open == '{':
			s.assignment(path, depth+1)
		default:
			s.value(path, depth+1)
		}
		if s.pos == start {
			s.pos++
		}
	}
}

// quoted reads a string of any of the four kinds and returns its raw
// content. Escapes are kept as they are: a key written with them is not
// found by its path, and its table's line stands for it.
func (s *keyLines) quoted(q byte) string {
	quote := string(q)
	triple := strings.Repeat(quote, 3)
	if strings.HasPrefix(s.text[s.pos:], triple) {
		quote = triple
	}
	s.pos += len(quote)
	start := s.pos
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case strings.HasPrefix(s.text[s.pos:], quote):
			end := s.pos
			s.pos += len(quote)
			// Up to two quotes may stand before the closing three.
			for len(quote) == 3 && s.peek() == q {
				s.pos++
			}
			return s.text[start:end]
		case c == '\\' && q == '"':
			s.pos++ // the escaped character is taken below
			if s.peek() == '\n' {
				s.line++
			}
		case c == '\n' && len(quote) == 1:
			return s.text[start:s.pos] // not closed: the decoder says so
		case c == '\n':
			s.line++
		}
		s.pos++
	}
	s.pos = min(s.pos, len(s.text))
	return s.text[min(start, s.pos):s.pos]
}
