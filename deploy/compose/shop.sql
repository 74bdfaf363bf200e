-- A small shop: each second it stores an order and its event, in one transaction.
CREATE TABLE IF NOT EXISTS orders (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  placed timestamptz NOT NULL DEFAULT now(),
  total  numeric(10,2) NOT NULL
);
WITH placed AS (
  INSERT INTO orders (total) VALUES (10 + 90 * random()) RETURNING id, total
)
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT 'order', id, 'OrderPlaced', jsonb_build_object('order', id, 'total', total) FROM placed
\watch 1
