-- What walpost setup prints, but for the role of walpost, and a table of the application.
CREATE TABLE public.outbox (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  seq bigint GENERATED ALWAYS AS IDENTITY,
  aggregate_type text NOT NULL,
  aggregate_id text NOT NULL,
  event_type text NOT NULL,
  payload jsonb NOT NULL,
  headers jsonb,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE orders (id text PRIMARY KEY, total numeric NOT NULL, paid boolean NOT NULL DEFAULT false);
