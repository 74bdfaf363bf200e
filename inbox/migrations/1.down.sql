DROP TABLE @inbox_messages, @inbox_processed, @inbox_generations, @inbox_retention;
