-- What testdata/pgoutput-*.gz were recorded from, on each version of Postgres. Statements end with a semicolon at the end
-- of a line; a block between "begin;" and "commit;" or "rollback;" is one transaction. Lines before "-- slot" run before the
-- slot is made.
create schema "Shop";
create type mood as enum ('sad', 'ok', 'it''s "fine"');
create type "Shop"."Point" as (x int, y int);
create domain email as text check (value like '%@%');
create table plain (id bigint primary key, name text, note varchar(20), price numeric(10,2), ok boolean, at timestamptz, raw bytea, doc jsonb, tags text[]);
create table "Shop"."orderEvents" ("Id" uuid primary key, "aggregateType" text not null, "pay load" jsonb, feeling mood, place "Shop"."Point", contact email, moods mood[]);
create table toasted (id int primary key, small text, big text);
alter table toasted alter column big set storage external;
create table id_nothing (a int, b text);
alter table id_nothing replica identity nothing;
create table id_full (a int, b text);
alter table id_full replica identity full;
create table id_index (a int, b text not null, c text);
create unique index id_index_b on id_index (b);
alter table id_index replica identity using index id_index_b;
create table parted (id int, day date, v text, primary key (id, day)) partition by range (day);
create table parted_1 partition of parted for values from ('2026-01-01') to ('2026-02-01');
create table parted_2 (v text, day date not null, id int not null, primary key (id, day));
alter table parted attach partition parted_2 for values from ('2026-02-01') to ('2026-03-01');
create table empty_table ();
create table unpublished (id int);
create publication golden for table plain, "Shop"."orderEvents", toasted, id_full, id_index, parted, empty_table with (publish_via_partition_root = true);
create publication golden_inserts for table id_nothing with (publish = 'insert');
-- slot
-- One row, with every kind of value, then NULLs and empty strings.
insert into plain values (1, 'one', 'n', 1.50, true, '2026-01-02 03:04:05.678901+02', '\x00ff10', '{"b": 1,  "a": 12345678901234567890}', '{a,"b c",NULL}');
insert into plain values (2, null, '', null, null, null, '', 'null', '{}');
insert into plain values (3, 'ünïcödé 🐘', E'tab\tnl\nq''"', -0.00, false, 'infinity', null, '""', null);
-- Several rows by one statement, and by one COPY: their positions are the same.
insert into plain (id, name) select n, 'row ' || n from generate_series(10, 14) n;
copy plain (id, name) from stdin;
-- A key change, a change of something else, an unchanged TOASTed value, a changed one.
update plain set name = 'uno' where id = 1;
update plain set id = 100 where id = 1;
insert into toasted values (1, 'small', repeat('0123456789', 1000));
update toasted set small = 'smaller' where id = 1;
update toasted set big = repeat('x', 3000) where id = 1;
-- A large value.
insert into toasted values (2, null, repeat('y', 1048576));
delete from plain where id = 100;
delete from toasted where id = 1;
-- Each replica identity.
insert into id_nothing values (1, 'n');
insert into id_full values (1, 'old'), (2, null);
update id_full set b = 'new' where a = 1;
delete from id_full where a = 2;
insert into id_index values (1, 'key', 'c');
update id_index set c = 'd' where a = 1;
update id_index set b = 'other' where a = 1;
delete from id_index where a = 1;
-- Names that need quotes, and types that are not built in.
insert into "Shop"."orderEvents" values ('6f0c1a8e-0000-4000-8000-000000000001', 'Order', '{"k": "v"}', 'it''s "fine"', '(1,2)', 'a@b', '{sad,ok}');
-- Partitions, as the table they belong to; one has its columns in another order.
insert into parted values (1, '2026-01-05', 'january'), (2, '2026-02-05', 'february');
update parted set v = 'moved', day = '2026-02-06' where id = 1;
delete from parted where id = 2;
-- Not published.
insert into unpublished values (1);
-- A transaction that is rolled back, and one that is in part.
begin;
insert into plain (id) values (200);
rollback;
begin;
insert into plain (id) values (201);
savepoint s;
insert into plain (id) values (202);
rollback to s;
insert into plain (id) values (203);
commit;
-- The table changes within a transaction, and between two.
begin;
insert into plain (id, name) values (300, 'before');
alter table plain add column extra mood default 'ok';
insert into plain (id, name, extra) values (301, 'after', 'sad');
alter table plain drop column note;
insert into plain (id, name) values (302, 'without note');
commit;
alter table plain rename column name to title;
insert into plain (id, title) values (303, 'renamed');
alter type mood rename to temper;
insert into plain (id, title) values (304, 'type renamed');
-- A row that comes and goes in one transaction.
begin;
insert into plain (id) values (400);
delete from plain where id = 400;
commit;
-- Truncate gives no event, but its transaction does.
truncate id_full;
-- Logical messages: in the transaction; at once, also where it is rolled back.
begin;
select pg_logical_emit_message(true, 'prefix', 'transactional');
insert into plain (id) values (500);
commit;
begin;
insert into plain (id) values (501);
select pg_logical_emit_message(false, 'heart beat', '');
rollback;
insert into empty_table default values;
