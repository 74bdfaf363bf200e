-- The generations become a fixed set. Retain empties the oldest one and begins it again, so its role
-- needs to own no table. A generation that waits for its turn has '-infinity' in both columns.
ALTER TABLE @inbox_retention ADD COLUMN version integer NOT NULL DEFAULT 2;
ALTER TABLE @inbox_retention RENAME COLUMN retry_at TO pause_until;
-- Retain deletes the oldest generation in parts, if it cannot truncate it: so many blocks are done.
ALTER TABLE @inbox_retention ADD COLUMN emptied_blocks bigint NOT NULL DEFAULT 0;
-- +goose StatementBegin
DO $inbox$
DECLARE
    processed text := @@ || 'inbox_processed';
    newest bigint;
    made bigint;
BEGIN
    SELECT max(generation), count(*) INTO newest, made FROM @inbox_generations;
    FOR n IN newest + 1 .. newest + greatest(6 - made, 1) LOOP
        -- A table that is attached later makes no consumer wait.
        EXECUTE format('CREATE TABLE %1$s_%2$s (LIKE %1$s INCLUDING DEFAULTS INCLUDING INDEXES)', processed, n);
        EXECUTE format('ALTER TABLE %1$s ATTACH PARTITION %1$s_%2$s FOR VALUES IN (%2$s)', processed, n);
        INSERT INTO @inbox_generations VALUES (n, '-infinity', '-infinity');
    END LOOP;
END $inbox$;
-- +goose StatementEnd
