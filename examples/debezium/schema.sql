-- The outbox of the connector, with what the connector made: its publication and its slot.
BEGIN;
CREATE TABLE public.outbox (
  id uuid PRIMARY KEY,
  aggregatetype varchar(255) NOT NULL,
  aggregateid varchar(255) NOT NULL,
  type varchar(255) NOT NULL,
  payload jsonb
);
CREATE PUBLICATION outbox FOR TABLE public.outbox;
COMMIT;
SELECT pg_create_logical_replication_slot('outbox', 'pgoutput');
