package supervisor

import (
	"reflect"
	"strings"
	"sync"
	"testing"
)

// shape is how two values of a type are compared: as their JSON would be, without
// writing it. A list that may be left out is the same whether it is empty or not
// there; elsewhere JSON tells one from the other. A spec never changes once made: it
// is the same if its digest is.
type shape struct {
	kind   reflect.Kind
	spec   bool
	omits  bool // omitempty
	fields []*shape
	elem   *shape // of a pointer, list or map
}

var shapes sync.Map // by type

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := &shape{kind: t.Kind(), spec: t == reflect.TypeFor[*Spec]()}
	switch s.kind {
	case reflect.Struct:
		for field := range t.Fields() {
			f := *shapeOf(field.Type)
			f.omits = strings.Contains(field.Tag.Get("json"), ",omitempty")
			s.fields = append(s.fields, &f)
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if !s.spec {
			s.elem = shapeOf(t.Elem())
		}
	}
	shapes.Store(t, s)
	return s
}

// same compares what two pointers point to.
func same[T any](a, b *T) bool {
	return a == b || shapeOf(reflect.TypeFor[T]()).same(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

func (s *shape) same(a, b reflect.Value) bool {
	switch s.kind {
	case reflect.Struct:
		for i, f := range s.fields {
			if !f.same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Uint32, reflect.Uint64:
		return a.Uint() == b.Uint()
	case reflect.Float64:
		return a.Float() == b.Float()
	case reflect.Pointer:
		switch {
		case a.UnsafePointer() == b.UnsafePointer():
			return true
		case a.IsNil() || b.IsNil():
			return false
		case s.spec:
			return a.Elem().FieldByName("Digest").String() == b.Elem().FieldByName("Digest").String()
		}
		return s.elem.same(a.Elem(), b.Elem())
	case reflect.Slice, reflect.Map:
		return s.sameList(a, b)
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		a, b = a.Elem(), b.Elem()
		return a.Type() == b.Type() && shapeOf(a.Type()).same(a, b)
	}
	panic("nothing compares " + a.Type().String())
}

func (s *shape) sameList(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() && !s.omits {
		return false
	}
	if s.kind == reflect.Slice {
		for i := range a.Len() {
			if !s.elem.same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !s.elem.same(i.Value(), other) {
			return false
		}
	}
	return true
}

// sameState compares two states.
func sameState(a, b *State) bool {
	if !sameTop(a, b) || len(a.Services) != len(b.Services) {
		return false
	}
	for name, svc := range a.Services {
		if other := b.Services[name]; other == nil || !same(svc, other) {
			return false
		}
	}
	return true
}

// sameTop compares all of two states but their services, sameService all of two
// services but their generations.
func sameTop(a, b *State) bool {
	c, d := *a, *b
	c.Services, d.Services = nil, nil
	return same(&c, &d)
}

func sameService(a, b *Service) bool {
	c, d := *a, *b
	c.Generations, d.Generations = nil, nil
	return same(&c, &d)
}

// TestSame: whatever of a state differs, it is seen; what JSON does not tell apart is the same.
func TestSame(t *testing.T) {
	differs(t, Generation{N: 1})
	differs(t, Service{Name: "web", Lame: &LameDuck{}, Upgrade: &Upgrade{}})
	differs(t, State{BootID: "boot", Stop: &Stop{}})
	differs(t, Job{ID: 1, Results: []Result{{}}})
	a, b := Job{}, Job{Removed: []string{}}
	if !same(&a, &b) {
		t.Error("an empty list that is left out is not the same as none")
	}
	c, d := State{}, State{Order: []string{}}
	if same(&c, &d) {
		t.Error("an empty list that is written is the same as none")
	}
	e, f := []action{acAck{g("web", 1)}}, []action{acCommit{g("web", 1)}}
	if same(&e, &f) {
		t.Error("two actions about the same are the same")
	}
	for i, other := range []State{{}, {Services: map[string]*Service{"web": {LastN: 1}}}, {Services: map[string]*Service{"app": {}}}} {
		if s := (State{Services: map[string]*Service{"web": {}}}); sameState(&s, &other) {
			t.Errorf("%d: services that differ are the same", i)
		}
	}
}

// differs changes one field after the other.
func differs[T any](t *testing.T, v T) {
	t.Helper()
	for i := range reflect.TypeFor[T]().NumField() {
		changed := v
		f := reflect.ValueOf(&changed).Elem().Field(i)
		switch name := reflect.TypeFor[T]().Field(i).Name; {
		case !f.IsZero():
			f.SetZero()
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case f.Kind() == reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.New(f.Type().Key()).Elem(), reflect.New(f.Type().Elem()).Elem())
		case f.Kind() == reflect.String:
			f.SetString("x")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.CanInt():
			f.SetInt(7)
		case f.CanUint():
			f.SetUint(7)
		default:
			t.Fatalf("%T.%s is not changed", v, name)
		}
		if was := v; same(&was, &changed) || same(&changed, &was) {
			t.Errorf("%T with another %s is the same", v, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}
