// Package inbox gives each event exactly one effect, although messages can arrive more than once.
//
// A relay and a broker deliver at least once. A consumer therefore writes the event's id into a
// table in the same transaction as the effect. A second delivery finds the id and does nothing.
//
// [Handler] does that for a consumer of package consumer. [Store] and [Worker] store messages first
// and handle them later.
//
// The package needs Postgres 14 or later, through pgx or database/sql. It doesn't depend on a
// broker: the consumer fills a [Message] from the broker's record.
package inbox
