package connect

// Over returns s, or, where inner was made for one value only, s marked so too: it holds inner.
func (s *Schema) Over(inner *Schema) *Schema {
	s.passing = s.passing || inner != nil && inner.passing
	return s
}

// Passing says that s was made for one value: nothing that was made of it can be of use again.
func (s *Schema) Passing() bool { return s.passing }
