-- Version 4: ask ids and settled permits are kept beside the entries, so that a decision rewrites neither.
-- Ids of version 3 are not carried over: their digests are not known here.
DROP FUNCTION IF EXISTS
    @schema@.take, @schema@.merge_neighbours, @schema@.now_us, @schema@.find, @schema@.as_read, @schema@.look, @schema@.spend,
    @schema@.is_shut, @schema@.spend_all, @schema@.lost_slots, @schema@.flatten, @schema@.swap, @schema@.clean_up,
    @schema@.mark_settled, @schema@.settle, @schema@.give_back, @schema@.renew, @schema@.place_slot, @schema@.last_expiry,
    @schema@.close, @schema@.reset;

-- What an ask with an id was given. The row of its subject in `entries` is locked whenever one of these is written, which
-- makes two asks with the same new id one after the other. Expired ids are removed by `clean_up_ids`.
CREATE TABLE @schema@.ids (
    policy        text COLLATE "C" NOT NULL,
    subject       text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    at_us         bigint NOT NULL,
    stamp         bigint NOT NULL,
    digest        bigint NOT NULL,
    expires_at_us bigint NOT NULL,
    -- What the other charges of its ask got: (at, stamp) for each; null if there are none.
    others        bigint[],
    PRIMARY KEY (policy, subject, id)
) WITH (
    -- Every row dies within minutes, so a share of the table is the wrong measure: vacuum after so many rows.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- Settled permits of an entry as runs of stamps, rising and apart; a run from 0 on is a reset. A settle writes one or two
-- of them under the lock of the entry's row; `entries.settled_runs` is their number.
CREATE TABLE @schema@.settled (
    policy      text COLLATE "C" NOT NULL,
    subject     text COLLATE "C" NOT NULL,
    first       bigint NOT NULL,
    last        bigint NOT NULL,
    -- When the youngest of them was admitted.
    admitted_us bigint NOT NULL,
    PRIMARY KEY (policy, subject, first)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE @schema@.entries ADD COLUMN settled_runs int NOT NULL DEFAULT 0;
INSERT INTO @schema@.settled
SELECT e.policy, e.subject, e.settled[3 * k - 2], e.settled[3 * k - 1], e.settled[3 * k]
  FROM @schema@.entries e, generate_series(1, cardinality(e.settled) / 3) k;
UPDATE @schema@.entries SET settled_runs = cardinality(settled) / 3 WHERE settled <> '{}';
-- Numbers of `states` from here on:
--   0 bucket    used; where charges can be given back, the last low, a number that no rise but the first is below, and
--               (stamp, rise) for each low: what was used just before the charge with that stamp, less the low before
--   1 window    sum, then (time, amount) for each logged amount, oldest first
--   2 calendar  end of the open page, used, how much of it counts in the next page too
--   3 slots     (stamp, expiry, places) for each holder, in order of expiry
ALTER TABLE @schema@.entries
    DROP COLUMN ids, DROP COLUMN id_numbers, DROP COLUMN settled,
    -- Compressed if it must be, and in the row as long as it fits: outside, every update would leave dead chunks.
    ALTER COLUMN states SET STORAGE MAIN,
    -- A hot row is updated hundreds of times a second in a table of a few hundred rows. A share of the table would never
    -- be reached in time, and the default pauses let dead rows grow faster than vacuum removes them.
    SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
         toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000,
         toast.autovacuum_vacuum_cost_delay = 0);

-- Who may use the entries may use what is beside them.
DO $grants$
DECLARE
    v_schema oid := (SELECT c.relnamespace FROM pg_class c WHERE c.oid = (SELECT m.tableoid FROM @schema@.migrations m LIMIT 1));
    v_right  record;
BEGIN
    FOR v_right IN
        SELECT a.privilege_type, a.grantee, t.oid::regclass AS beside
          FROM pg_class e CROSS JOIN aclexplode(e.relacl) a
          JOIN pg_class t ON t.relnamespace = v_schema AND t.relname IN ('ids', 'settled')
         WHERE e.relnamespace = v_schema AND e.relname = 'entries' AND a.grantee <> e.relowner
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', v_right.privilege_type, v_right.beside,
                       CASE v_right.grantee WHEN 0 THEN 'PUBLIC' ELSE v_right.grantee::regrole::text END);
    END LOOP;
END $grants$;

-- Of settled permits, the runs that matter to the question; of its id, what it was given: admitted at, stamp, digest,
-- expires at, and what the other charges of its ask got.
ALTER TYPE @schema@.answer DROP ATTRIBUTE ids, DROP ATTRIBUTE id_numbers, ADD ATTRIBUTE given bigint[];

-- The name of the API key that did what a record is about; null for decisions.
ALTER TABLE @schema@.audit ADD COLUMN by_key text COLLATE "C";
-- Every charge of an ask that had several, so that a record is found by each of them; null for other records.
ALTER TABLE @schema@.audit ADD COLUMN charges jsonb;
CREATE INDEX ON @schema@.audit USING gin (charges jsonb_path_ops);
