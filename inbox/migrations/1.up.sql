-- The generations of processed events. One row, the current generation, has no ended_at.
CREATE TABLE @inbox_generations (
    generation bigint PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz
);
CREATE UNIQUE INDEX inbox_generations_current ON @inbox_generations ((true)) WHERE ended_at IS NULL;
INSERT INTO @inbox_generations (generation) VALUES (1);

-- What the callers of Retain share: one row.
CREATE TABLE @inbox_retention (
    keep     interval    NOT NULL DEFAULT '0',        -- the greatest Keep that a caller gave
    failures integer     NOT NULL DEFAULT 0,          -- how often inbox_processed was busy, in a row
    retry_at timestamptz NOT NULL DEFAULT '-infinity' -- no caller locks inbox_processed before
);
CREATE UNIQUE INDEX inbox_retention_single ON @inbox_retention ((true));
INSERT INTO @inbox_retention DEFAULT VALUES;

-- One row for each event that a consumer has processed. Retain drops a generation at a time.
CREATE TABLE @inbox_processed (
    generation   bigint NOT NULL,
    consumer     text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL, -- what event_id is unique in: the topic by default
    event_id     text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, scope, event_id, generation)
) PARTITION BY LIST (generation);
CREATE TABLE @inbox_processed_1 PARTITION OF @inbox_processed FOR VALUES IN (1);

-- Messages that are stored first and handled later.
CREATE TABLE @inbox_messages (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer        text COLLATE "C" NOT NULL,
    scope           text COLLATE "C" NOT NULL,
    event_id        text COLLATE "C" NOT NULL,
    lane            bytea NOT NULL, -- messages of one lane are handled in the order of id
    topic           text NOT NULL,
    partition       integer NOT NULL,
    "offset"        bigint NOT NULL,
    key             bytea,
    value           bytea,
    headers         json,
    time            timestamptz NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'processed', 'dead')),
    attempts        integer NOT NULL DEFAULT 0, -- failures that count
    failures        integer NOT NULL DEFAULT 0, -- all failures: the pause grows with them
    unclear         integer NOT NULL DEFAULT 0, -- failures with an unclear cause: the first ones do not count
    last_error      text,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    received_at     timestamptz NOT NULL DEFAULT now(),
    processed_at    timestamptz,
    UNIQUE (consumer, scope, event_id)
);
CREATE INDEX inbox_messages_pending ON @inbox_messages (consumer, lane, id) WHERE state = 'pending';
CREATE INDEX inbox_messages_processed ON @inbox_messages (processed_at) WHERE state = 'processed';
CREATE INDEX inbox_messages_dead ON @inbox_messages (consumer, id) WHERE state = 'dead';
