-- The entity OutboxEvent of Debezium's Quarkus extension, which many Spring services have copied. The column seq is new: it tells
-- walpost recover the order of the rows. Hibernate does not need to know it.
CREATE TABLE public.outboxevent (
  id uuid PRIMARY KEY,
  aggregatetype varchar(255) NOT NULL,
  aggregateid varchar(255) NOT NULL,
  type varchar(255) NOT NULL,
  timestamp timestamp NOT NULL,
  payload varchar(8000),
  tracingspancontext varchar(256),
  seq bigint GENERATED ALWAYS AS IDENTITY
);
