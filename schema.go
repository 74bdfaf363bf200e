package walpost

import _ "embed" // for the schema

//go:embed walpost.schema.json
var schema string

// Schema returns the JSON Schema of walpost.yaml (draft 2020-12), for editors.
func Schema() string { return schema }
