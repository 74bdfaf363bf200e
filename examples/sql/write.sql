-- The event is a row of the same transaction.
BEGIN;
INSERT INTO orders VALUES ('4711', 12.50);
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
VALUES ('0199a1b2-0000-7000-8000-000000000001', 'order', '4711', 'OrderPlaced', '{"total": 12.50}', '{"tenant": "acme"}');
COMMIT;

-- A statement is a transaction, too: the event tells of the rows that it changed.
WITH paid AS (
  UPDATE orders SET paid = true WHERE id = '4711' AND NOT paid RETURNING id, total
)
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
SELECT '0199a1b2-0000-7000-8000-000000000002', 'order', id, 'OrderPaid', jsonb_build_object('total', total) FROM paid;
