// # Why a parked key keeps its order
//
// A key is the bytes of a key in one table (internal/parking). It's *parked* while one of its events is open:
// from the moment the loop decides to write the event's letter until the brokers have the result released or
// dropped. The loop decides about one event after the other, so no event slips through. For each key:
//
//   - Before the first open event the sink keeps the order. After a crash such an event can be delivered again,
//     and everything behind it is repeated too. A release takes only events whose transactions the durable
//     checkpoint covers, so nothing before them can come again afterwards.
//   - From the first open event on, only a release sends events of the key, in the order of the stream. That
//     isn't always the order of the letters, because the brokers can refuse a record after the letter of a later
//     event was written.
//   - After the last open event, the next event goes through the same sink. The key is free when the brokers
//     have the result, and not before. If the process crashes before that, the next one finds the key parked and
//     delivers the same events again, with nothing newer between them.
//   - A refused event ends its round: the sink gives back what waits behind it, and the result lists only the
//     events before it, and those that arrived in other topics.
//
// Kafka fences the writers. The relay writes letters and results with a transactional producer whose
// transactional id is its name. A start holds the slot, initialises the id (Log.Open), and then reads the topic
// up to the end that it has after that. From then on a former holder gets no acknowledgement, so everything that
// is acknowledged counts, and nothing has to be read back. No position passes an event before its letter's
// transaction is committed. If nobody knows whether a transaction is committed, or the producer is fenced, the
// loop fences again and reads on: what it finds is written, and the rest is written again. So even that repeats
// nothing. It gives up its session if another process has taken the slot, or the topic was created again.
//
// The checkpoint anchors the topic. The record has the topic's name and id, the first offset that is still
// needed, and the number of open events (cdc.Anchor). It is durable before the first letter is written. A start
// reads from there, whatever the policy. A topic that is missing, was created again, begins behind that offset,
// or has another name in the configuration is an error as long as something was open (parking.Lost); its token
// for --accept-gap names just that loss. The relay deletes what is before a durable anchor, after it has written a trimmed mark:
// a process that read an older record then knows that nothing was lost. TestABacklogIsWhatTheTopicSays checks
// that a topic read from its anchor says the same as the whole topic.
//
// One process writes the state. Commands write requests, and the holder carries them out between the rounds of a
// release. So an event that's being delivered can't be dropped at the same time, and a command reports the
// result that the relay wrote. A request to release a key is about the letters before it. An event that isn't
// bad itself, such as one behind a dropped event, needs no request.
//
// Above delivery.park_limit the loop reads nothing more and waits. Nothing is in flight then, so releases and
// drops may also take events of the transaction that is read in part. A crash repeats these from the beginning
// of the transaction. So does a session that starts over at the checkpoint: the rounds that have begun are void,
// and what was read before it says no more which events a release may take.
//
// A table is known by its OID while something of it is parked, so a rename changes nothing. The key may have
// records in other topics; what was sent before a refusal is delivered normally. Rows of the table have no place
// in the stream: they are parked behind events of the stream, but a bad row halts the relay. What a former
// holder has handed to the brokers for other topics can arrive late, as any record can.
//
// TestSimulationOfParkedKeys judges all this over random bad events, releases, drops, crashes, takeovers,
// failovers, limits, and transactions without an answer.
package parking
