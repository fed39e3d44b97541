package shim

// codec writes or reads a value as length-prefixed little-endian fields. One
// walk serves both directions, so the two cannot disagree about the order.
// Both ends are the same executable: there is no version.
type codec struct {
	b       []byte
	reading bool
	bad     bool // reading: the bytes ended early or a length is impossible
}

func (c *codec) spec(s *Spec) {
	c.str(&s.Path)
	list(c, &s.Argv, (*codec).str)
	list(c, &s.Env, (*codec).str)
	c.str(&s.Dir)
	optional(c, &s.UID, num[uint32])
	optional(c, &s.GID, num[uint32])
	list(c, &s.Groups, num[uint32])
	c.flag(&s.SetGroups)
	optional(c, &s.Umask, num[uint32])
	list(c, &s.Rlimits, (*codec).rlimit)
	optional(c, &s.Nice, num[int])
	optional(c, &s.OOMScoreAdj, num[int])
	c.flag(&s.NoNewPrivs)
	list(c, &s.AmbientCaps, num[uintptr])
	list(c, &s.Targets, num[int])
	num(c, &s.ExecTarget)
	c.flag(&s.ListenPID)
}

func (c *codec) report(e *ExecError) {
	c.str(&e.Step)
	c.str(&e.Path)
	c.str(&e.Detail)
	num(c, &e.Errno)
}

func (c *codec) rlimit(l *Rlimit) {
	num(c, &l.Resource)
	num(c, &l.Soft)
	num(c, &l.Hard)
}

const wordLen = 8

func (c *codec) word(v *uint64) {
	if !c.reading {
		for i := range wordLen {
			c.b = append(c.b, byte(*v>>(8*i)))
		}
		return
	}
	*v = 0
	if len(c.b) < wordLen {
		c.bad, c.b = true, nil
		return
	}
	for i := range wordLen {
		*v |= uint64(c.b[i]) << (8 * i)
	}
	c.b = c.b[wordLen:]
}

func (c *codec) str(s *string) {
	n := uint64(len(*s))
	c.word(&n)
	if !c.reading {
		c.b = append(c.b, *s...)
		return
	}
	if n > uint64(len(c.b)) {
		c.bad, c.b, *s = true, nil, ""
		return
	}
	*s = string(c.b[:n])
	c.b = c.b[n:]
}

func (c *codec) flag(v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	c.word(&n)
	*v = n != 0
}

func num[T ~uint32 | ~uint64 | ~int | ~uintptr](c *codec, v *T) {
	n := uint64(*v)
	c.word(&n)
	*v = T(n)
}

func optional[T any](c *codec, v **T, one func(*codec, *T)) {
	set := *v != nil
	c.flag(&set)
	if !set {
		return
	}
	if c.reading {
		*v = new(T)
	}
	one(c, *v)
}

func list[T any](c *codec, v *[]T, one func(*codec, *T)) {
	n := uint64(len(*v))
	c.word(&n)
	if c.reading {
		// An element takes at least a word, so a damaged length cannot make
		// this allocate more than the bytes that are there.
		if n > uint64(len(c.b)/wordLen) {
			c.bad, c.b = true, nil
			return
		}
		if n == 0 {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		one(c, &(*v)[i])
	}
}

func encodeSpec(s *Spec) []byte {
	c := &codec{}
	c.spec(s)
	return c.b
}

// decodeSpec reports false when b is not exactly one Spec.
func decodeSpec(b []byte) (*Spec, bool) {
	c, s := &codec{b: b, reading: true}, &Spec{}
	c.spec(s)
	return s, !c.bad && len(c.b) == 0
}

func encodeReport(e *ExecError) []byte {
	c := &codec{}
	c.report(e)
	return c.b
}

func decodeReport(b []byte) (*ExecError, bool) {
	c, e := &codec{b: b, reading: true}, &ExecError{}
	c.report(e)
	return e, !c.bad && len(c.b) == 0
}
