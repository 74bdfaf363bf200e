package connect

// Over returns s. If inner was made for one value only, it marks s in the same way, because s
// contains inner.
func (s *Schema) Over(inner *Schema) *Schema {
	s.passing = s.passing || inner != nil && inner.passing
	return s
}

// Passing reports whether s was made for one value only. Nothing that is derived from s is worth
// remembering.
func (s *Schema) Passing() bool { return s.passing }
