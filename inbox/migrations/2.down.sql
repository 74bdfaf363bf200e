LOCK TABLE @inbox_processed IN ACCESS EXCLUSIVE MODE;
-- +goose StatementBegin
DO $inbox$
DECLARE
    processed text := @@ || 'inbox_processed';
    newest bigint;
    n bigint;
BEGIN
    FOR n IN SELECT generation FROM @inbox_generations WHERE ended_at = '-infinity' LOOP
        EXECUTE format('DROP TABLE %s_%s', processed, n);
    END LOOP;
    DELETE FROM @inbox_generations WHERE ended_at = '-infinity';
    -- In version 1 the current generation has the highest number.
    SELECT max(generation) INTO newest FROM @inbox_generations;
    IF EXISTS (SELECT FROM @inbox_generations WHERE generation = newest AND ended_at IS NOT NULL) THEN
        EXECUTE format('CREATE TABLE %1$s_%2$s PARTITION OF %1$s FOR VALUES IN (%2$s)', processed, newest + 1);
        UPDATE @inbox_generations SET ended_at = clock_timestamp() WHERE ended_at IS NULL;
        INSERT INTO @inbox_generations VALUES (newest + 1, clock_timestamp(), NULL);
    END IF;
END $inbox$;
-- +goose StatementEnd
ALTER TABLE @inbox_retention RENAME COLUMN pause_until TO retry_at;
ALTER TABLE @inbox_retention DROP COLUMN version, DROP COLUMN emptied_blocks;
