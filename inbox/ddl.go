package inbox

import _ "embed"

// DDL makes the tables of this package. Run it once, in one transaction or in several. It can be the
// up file of a migration of golang-migrate. The functions of this package find the tables by the
// search_path.
//
// The role of a consumer needs SELECT and INSERT on inbox_processed, SELECT and UPDATE on
// inbox_generations, and SELECT, INSERT, UPDATE and DELETE on inbox_messages.
// Retain needs to be the owner of inbox_processed, SELECT, INSERT, UPDATE and DELETE on
// inbox_generations, and SELECT and UPDATE on inbox_retention.
//
//go:embed inbox.sql
var DDL string

// DropDDL removes the tables of this package and everything in them. It can be the down file of a
// migration of golang-migrate.
const DropDDL = `DROP TABLE inbox_messages, inbox_processed, inbox_generations, inbox_retention;
`

// Goose returns DDL and DropDDL as a migration of goose.
func Goose() string { return "-- +goose Up\n" + DDL + "\n-- +goose Down\n" + DropDDL }
