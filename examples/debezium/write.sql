INSERT INTO outbox VALUES ('0199a1b2-0000-7000-8000-000000000004', 'order', '4711', 'OrderPlaced', '{"total": 12.50}');
