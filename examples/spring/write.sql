-- What Hibernate sends for an event. The extension removes the row in the same transaction, if it is told to. The WAL has the row all
-- the same, and walpost publishes it.
BEGIN;
INSERT INTO outboxevent (aggregateid, aggregatetype, payload, timestamp, tracingspancontext, type, id)
VALUES ('1', 'Order', '{"id": 1, "status": "CREATED"}', '2026-01-15 09:30:00', NULL, 'OrderCreated', '0199a1b2-0000-7000-8000-000000000003');
DELETE FROM outboxevent WHERE id = '0199a1b2-0000-7000-8000-000000000003';
COMMIT;
