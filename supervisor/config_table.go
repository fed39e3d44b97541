package supervisor

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// maxDuration bounds every duration of a configuration: what is longer is a
// slip of the unit, and a deadline has to fire.
const maxDuration = 366 * 24 * time.Hour

// source is where keys of a configuration came from, and what is wrong with
// them.
type source struct {
	file  string
	keys  []toml.Key        // in the order of the file
	lines map[string]int    // by pathKey
	flags map[string]string // by dotted key: the flag that set it
	errs  []*ConfigError
}

// line of path, or of the nearest table around it.
func (s *source) line(path []string) int {
	for n := len(path); n > 0; n-- {
		if l := s.lines[pathKey(path[:n])]; l > 0 {
			return l
		}
	}
	if s.file == "" {
		return 0
	}
	return 1
}

// children of the table at path, in the order of the file.
func (s *source) children(path []string) []string {
	var names []string
	seen := map[string]bool{}
	for _, k := range s.keys {
		if len(k) <= len(path) || !slices.Equal(k[:len(path)], path) {
			continue
		}
		if name := k[len(path)]; !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

func (s *source) fail(path []string, err error) {
	key := toml.Key(path).String()
	if f := s.flags[key]; f != "" {
		key = f
	}
	s.errs = append(s.errs, &ConfigError{File: s.file, Line: s.line(path), Key: key, Err: err})
}

// table reads one table of the document. Each getter names a key as known;
// finish reports those that nobody asked for. A value of the wrong type is
// reported and the default returned, so that all errors are found at once.
type table struct {
	src   *source
	path  []string
	m     map[string]any
	known []string
	// elsewhere names the table in which a key of another table belongs.
	elsewhere map[string]string
}

func (t *table) at(key string) []string {
	return append(slices.Clone(t.path), key)
}

// fail takes a format for fmt.Errorf.
func (t *table) fail(key, format string, args ...any) {
	t.src.fail(t.at(key), fmt.Errorf(format, args...))
}

func (t *table) get(key string) (any, bool) {
	if !slices.Contains(t.known, key) {
		t.known = append(t.known, key)
	}
	v, ok := t.m[key]
	return v, ok
}

func (t *table) has(key string) bool { _, ok := t.m[key]; return ok }

func (t *table) wrongType(key, want string, v any) {
	t.fail(key, "must be %s, not %s", want, tomlTypeName(v))
}

// tomlTypeName is the type with its article.
func tomlTypeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "an array of tables"
	}
	return "an array"
}

// str refuses NUL, which no argument, path or variable can carry.
func (t *table) str(key, def string) string {
	v, ok := t.get(key)
	if !ok {
		return def
	}
	s, ok := v.(string)
	if !ok {
		t.wrongType(key, "a string", v)
		return def
	}
	if strings.ContainsRune(s, 0) {
		t.fail(key, "contains a NUL byte")
		return def
	}
	return s
}

func (t *table) boolean(key string, def bool) bool {
	v, ok := t.get(key)
	if !ok {
		return def
	}
	b, ok := v.(bool)
	if !ok {
		t.wrongType(key, "true or false", v)
		return def
	}
	return b
}

func (t *table) integer(key string, def, least, most int) int {
	v, ok := t.get(key)
	if !ok {
		return def
	}
	n, ok := v.(int64)
	if !ok {
		t.wrongType(key, "an integer", v)
		return def
	}
	if n < int64(least) || n > int64(most) {
		t.fail(key, "%d is not between %d and %d", n, least, most)
		return def
	}
	return int(n)
}

func (t *table) duration(key string, def, least time.Duration) time.Duration {
	v, ok := t.get(key)
	if !ok {
		return def
	}
	s, ok := v.(string)
	if !ok {
		t.wrongType(key, `a duration in quotes with a unit, like "30s"`, v)
		return def
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		t.fail(key, `%q is not a duration: a number with a unit, like "100ms", "30s" or "15m"`, s)
	case d < 0:
		t.fail(key, "%s is negative", s)
	case d < least:
		t.fail(key, "%s is too short: at least %s", s, least)
	case d > maxDuration:
		t.fail(key, "%s is longer than a year", s)
	default:
		return d
	}
	return def
}

func (t *table) list(key string) []string {
	v, ok := t.get(key)
	if !ok {
		return nil
	}
	if s, ok := v.(string); ok {
		t.fail(key, "must be an array of strings, not a string: [%q, ...]", firstWord(s))
		return nil
	}
	a, ok := v.([]any)
	if !ok {
		t.wrongType(key, "an array of strings", v)
		return nil
	}
	var list []string
	for i, e := range a {
		s, ok := e.(string)
		if !ok {
			t.fail(key, "element %d must be a string, not %s", i+1, tomlTypeName(e))
			return nil
		}
		if strings.ContainsRune(s, 0) {
			t.fail(key, "element %d contains a NUL byte", i+1)
			return nil
		}
		list = append(list, s)
	}
	return list
}

func firstWord(s string) string {
	if f := strings.Fields(s); len(f) > 0 {
		return f[0]
	}
	return s
}

// octal reads a file mode such as "0660", at most most.
func (t *table) octal(key string, most uint32) *uint32 {
	v, ok := t.get(key)
	if !ok {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		t.wrongType(key, `octal digits in quotes, like "0660"`, v)
		return nil
	}
	var n uint64
	for _, c := range s {
		if c < '0' || c > '7' || n > math.MaxUint32 {
			n = math.MaxUint32
			break
		}
		n = n*8 + uint64(c-'0')
	}
	if s == "" || n > uint64(most) {
		t.fail(key, "%q is not an octal number up to %#o", s, most)
		return nil
	}
	u := uint32(n)
	return &u
}

// oneOf returns the value when this version knows it; later are values of
// the design that this version refuses.
func (t *table) oneOf(key, def string, now, later []string) string {
	s := t.str(key, def)
	switch {
	case slices.Contains(now, s):
		return s
	case slices.Contains(later, s):
		t.fail(key, "%q is %w; possible now: %s", s, errNotYet, quoteList(now))
	default:
		all := append(slices.Clone(now), later...)
		t.fail(key, "%q is none of %s%s", s, quoteList(now), didYouMean(s, all))
	}
	return def
}

// notYet refuses keys of the design that this version does not build.
func (t *table) notYet(keys ...string) {
	for _, key := range keys {
		if _, ok := t.get(key); ok {
			t.fail(key, "%w", errNotYet)
		}
	}
}

// sub returns the table at key, an empty one when it is absent or of
// another type.
func (t *table) sub(key string) *table {
	s := &table{src: t.src, path: t.at(key), m: map[string]any{}}
	if v, ok := t.get(key); ok {
		if m, ok := v.(map[string]any); ok {
			s.m = m
		} else {
			t.wrongType(key, "a table", v)
		}
	}
	return s
}

// names are the table's keys in the order of the file, each known.
func (t *table) names() []string {
	var names []string
	for _, name := range t.src.children(t.path) {
		if _, ok := t.get(name); ok {
			names = append(names, name)
		}
	}
	return names
}

// finish reports the keys that no getter asked for.
func (t *table) finish() {
	var unknown []string
	for key := range t.m {
		if !slices.Contains(t.known, key) {
			unknown = append(unknown, key)
		}
	}
	sort.Strings(unknown)
	for _, key := range unknown {
		if where := t.elsewhere[key]; where != "" {
			t.fail(key, "unknown key; it belongs in %s", where)
			continue
		}
		t.fail(key, "unknown key%s", didYouMean(key, t.known))
	}
}

// quoteList is `"a", "b"`.
func quoteList(list []string) string {
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(q, ", ")
}
