-- Locks rows, which the caller sorts by key, so that two callers cannot deadlock. Inserts an empty row where there is none,
-- which the caller fills or removes before it commits. Returns the revision of each row, negative if it was inserted.
CREATE FUNCTION @schema@.hold(p_policies text[], p_subjects text[], p_now bigint)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $hold$
DECLARE
    tries_max  CONSTANT int := 8;
    v_new      bigint := greatest(@schema@.now_us(p_now), 1);
    v_revision bigint;
    v_held     bigint[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(p_policies) LOOP
        FOR v_try IN 1 .. tries_max LOOP
            SELECT e.revision INTO v_revision
              FROM @schema@.entries e WHERE e.policy = p_policies[i] AND e.subject = p_subjects[i] FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO @schema@.entries (policy, subject, shape, revision, at_us, next_stamp, states, absent_at_us)
            VALUES (p_policies[i], p_subjects[i], '', v_new, 0, 0, '{}', 0)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                v_revision := -v_new;
                EXIT;
            END IF;
        END LOOP;
        IF v_revision IS NULL THEN
            RAISE EXCEPTION 'subject % is created and removed all the time', p_subjects[i]
                USING ERRCODE = 'serialization_failure';
        END IF;
        v_held := v_held || v_revision;
    END LOOP;
    RETURN v_held;
END $hold$;

-- Asks with several charges each, in one transaction and in order. An ask is charged to all of its rows or to none.
-- `p_policies` and `p_subjects` are the rows of all asks, each once and sorted. `p_charges` is how many charges each ask has,
-- and `p_rows` the row of each charge, by its place from 1.
--
-- Answers for each charge what `spend` does: 1 for every charge of an ask that was charged; 0 with the rows for one that was
-- refused; 3, and the caller has to look for itself, if numbers are others or the id is known; 4 for too many permits.
--
-- The asks are first decided on rows that are read without a lock. Asks that these rows refuse are answered. The rows of
-- all others are locked in order; if one of them changed meanwhile, the asks are decided again. Each row is written once.
CREATE FUNCTION @schema@.spend_joint(
    p_policies text[], p_subjects text[], p_charges int[], p_rows int[], p_shapes bytea[], p_numbers bigint[],
    p_numbers_each int[], p_amounts bigint[], p_amounts_each int[], p_refundable boolean[], p_ids text[], p_digests bigint[],
    p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text
) RETURNS SETOF bigint[] LANGUAGE plpgsql VOLATILE AS $joint$
DECLARE
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    row        @schema@.entries;
    taken      @schema@.taken;
    v_rows     @schema@.entries[];
    v_read     @schema@.entries[];
    v_takes    @schema@.taken[];
    v_replies  @schema@.taken[];           -- the answer of each charge, as `states`
    v_others   @schema@.taken[];           -- of each ask with an id, what its other charges got, as `states`
    v_dirty    boolean[];
    v_needed   boolean[];                  -- the rows to lock
    v_pending  boolean[];                  -- the asks that the unlocked rows did not refuse
    v_charged  boolean[];
    v_known    bigint[];                   -- of each ask, the stamp that its id had before
    v_first    bigint[];                   -- of each ask with an id, its row, and what its first charge got
    v_stamps   bigint[];
    v_ats      bigint[];
    v_new_ids  text[];
    v_held     bigint[];
    v_places   int[];
    v_clock    bigint;
    v_now      bigint;
    v_next     bigint;
    v_stamp    bigint;
    v_expires  bigint;
    v_code     bigint;
    v_clean    boolean;
    v_same     boolean := true;
    v_numbers  bigint[];
    v_amounts  bigint[];
    v_given    bigint[];
    c          int;    -- the charge
    k          int;    -- its row
    n          int;    -- where its numbers begin
    a          int;    -- where its amounts begin
BEGIN
    v_pending := array_fill(true, ARRAY[cardinality(p_charges)]);
    v_charged := array_fill(false, ARRAY[cardinality(p_charges)]);
    FOR v_run IN 1 .. 2 LOOP
        v_rows := ARRAY(
            SELECT (SELECT e FROM @schema@.entries e WHERE e.policy = l.policy AND e.subject = l.subject)
              FROM unnest(p_policies, p_subjects) WITH ORDINALITY l(policy, subject, place) ORDER BY l.place);
        IF v_run = 2 THEN
            FOR i IN 1 .. cardinality(v_places) LOOP
                IF v_held[i] < 0 THEN v_rows[v_places[i]] := NULL; END IF;
            END LOOP;
        END IF;
        v_read := v_rows;
        v_dirty := array_fill(false, ARRAY[cardinality(p_policies)]);
        v_needed := v_dirty;
        v_new_ids := '{}';
        c := 0;
        n := 1;
        a := 1;
        FOR i IN 1 .. cardinality(p_charges) LOOP
            IF NOT v_pending[i] THEN
                FOR j IN 1 .. p_charges[i] LOOP
                    n := n + p_numbers_each[c + j];
                    a := a + p_amounts_each[c + j];
                END LOOP;
                c := c + p_charges[i];
                CONTINUE;
            END IF;
            -- After the wait, and never before a row was last written.
            v_clock := @schema@.now_us(p_nows[i]);
            v_code := 1;
            v_clean := true;
            v_charged[i] := false;
            v_takes := '{}';
            FOR j IN 1 .. p_charges[i] LOOP
                k := p_rows[c + j];
                row := v_rows[k];
                v_now := greatest(v_clock, row.at_us);
                v_numbers := p_numbers[n : n + p_numbers_each[c + j] - 1];
                v_amounts := p_amounts[a : a + p_amounts_each[c + j] - 1];
                n := n + p_numbers_each[c + j];
                a := a + p_amounts_each[c + j];
                v_clean := v_clean AND NOT v_dirty[k];
                IF row.shape <> p_shapes[c + j] THEN v_code := 3; END IF;
                IF j = 1 AND p_ids[i] IS NOT NULL THEN
                    SELECT d.stamp, d.expires_at_us INTO v_stamp, v_expires FROM @schema@.ids d
                     WHERE d.policy = p_policies[k] AND d.subject = p_subjects[k] AND d.id = p_ids[i];
                    v_known[i] := v_stamp;
                    IF v_now < v_expires OR k || ':' || p_ids[i] = ANY (v_new_ids) THEN v_code := 3; END IF;
                END IF;
                CONTINUE WHEN v_code <> 1;
                taken := NULL;
                IF (CASE WHEN p_decide[i] AND row.closed <> '{}'
                         THEN @schema@.is_shut(row.closed, v_now, v_numbers, v_amounts) END) IS NOT TRUE
                THEN
                    taken := @schema@.take(
                        row.states, coalesce(row.at_us, v_now), v_now, v_numbers, v_amounts,
                        coalesce(row.next_stamp, greatest(v_now, 1)), p_decide[i], p_refundable[i]);
                END IF;
                IF taken.states IS NULL THEN
                    v_code := 0;
                -- No permit is given that could not be settled: old runs make room only once they may be abandoned.
                ELSIF row.settled_runs >= runs_max AND p_refundable[i] AND p_decide[i] AND (
                    SELECT v_now < s.admitted_us + abandoned_after FROM @schema@.settled s
                     WHERE s.policy = row.policy AND s.subject = row.subject ORDER BY s.first LIMIT 1)
                THEN
                    v_code := 4;
                END IF;
                v_takes[j] := taken;
            END LOOP;
            IF v_code = 1 THEN
                v_charged[i] := true;
                v_given := '{}';
                FOR j IN 1 .. p_charges[i] LOOP
                    k := p_rows[c + j];
                    row := v_rows[k];
                    taken := v_takes[j];
                    v_now := greatest(v_clock, row.at_us);
                    v_next := coalesce(row.next_stamp, greatest(v_now, 1));
                    row.policy := p_policies[k];
                    row.subject := p_subjects[k];
                    row.shape := p_shapes[c + j];
                    row.revision := coalesce(row.revision + 1, v_now);
                    row.at_us := v_now;
                    row.next_stamp := v_next + 1;
                    row.states := taken.states;
                    row.absent_at_us := greatest(taken.idle_at_us, v_next + 1, row.absent_at_us);
                    v_rows[k] := row;
                    v_dirty[k] := true;
                    v_given := v_given || ARRAY[v_now, v_next];
                    v_replies[c + j] := ROW(
                        ARRAY[1, v_clock, v_next, v_now, v_next + 1, coalesce(cardinality(row.closed), 0)]
                            || row.closed || 0::bigint || taken.states, 0)::@schema@.taken;
                END LOOP;
                IF p_ids[i] IS NOT NULL THEN
                    k := p_rows[c + 1];
                    v_new_ids := v_new_ids || (k || ':' || p_ids[i]);
                    v_first[i] := k;
                    v_ats[i] := v_given[1];
                    v_stamps[i] := v_given[2];
                    v_others[i] := ROW(CASE WHEN p_charges[i] > 1 THEN v_given[3 :] END, 0)::@schema@.taken;
                END IF;
            ELSE
                FOR j IN 1 .. p_charges[i] LOOP
                    row := v_rows[p_rows[c + j]];
                    v_replies[c + j] := ROW(CASE
                        WHEN v_code <> 0 THEN ARRAY[v_code, v_clock]
                        WHEN row.at_us IS NULL THEN ARRAY[0, v_clock, 0, -1, 0, 0, 0]
                        ELSE ARRAY[0, v_clock, 0, row.at_us, row.next_stamp, coalesce(cardinality(row.closed), 0)]
                            || row.closed || 0::bigint || row.states
                    END, 0)::@schema@.taken;
                END LOOP;
            END IF;
            -- What an ask before it in the same statement caused may be otherwise once the rows are locked.
            v_pending[i] := v_code = 1 OR v_code <> 3 AND NOT v_clean;
            IF v_pending[i] THEN
                FOR j IN 1 .. p_charges[i] LOOP v_needed[p_rows[c + j]] := true; END LOOP;
            END IF;
            c := c + p_charges[i];
        END LOOP;
        EXIT WHEN v_run = 2 OR NOT true = ANY (v_charged);
        v_places := ARRAY(SELECT g FROM generate_series(1, cardinality(v_needed)) g WHERE v_needed[g] ORDER BY g);
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        v_held := @schema@.hold(
            ARRAY(SELECT p_policies[g] FROM unnest(v_places) WITH ORDINALITY u(g, place) ORDER BY u.place),
            ARRAY(SELECT p_subjects[g] FROM unnest(v_places) WITH ORDINALITY u(g, place) ORDER BY u.place), p_nows[1]);
        FOR i IN 1 .. cardinality(v_places) LOOP
            row := v_read[v_places[i]];
            v_same := v_same AND coalesce(row.revision = v_held[i], v_held[i] < 0);
        END LOOP;
        EXIT WHEN v_same;
    END LOOP;
    IF v_places IS NOT NULL THEN
        FOR i IN 1 .. cardinality(v_places) LOOP
            k := v_places[i];
            IF v_dirty[k] THEN
                row := v_rows[k];
                UPDATE @schema@.entries e
                   SET shape = row.shape, revision = row.revision, at_us = row.at_us, next_stamp = row.next_stamp,
                       states = row.states, absent_at_us = row.absent_at_us
                 WHERE e.policy = p_policies[k] AND e.subject = p_subjects[k];
            ELSIF v_held[i] < 0 THEN
                DELETE FROM @schema@.entries e WHERE e.policy = p_policies[k] AND e.subject = p_subjects[k];
            END IF;
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(p_charges) LOOP
        IF v_charged[i] AND p_ids[i] IS NOT NULL THEN
            taken := v_others[i];
            PERFORM @schema@.remember(
                p_policies[v_first[i]], p_subjects[v_first[i]], p_ids[i], v_known[i], v_ats[i], v_stamps[i], p_digests[i],
                v_ats[i] + p_id_ttls[i], taken.states);
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(v_replies) LOOP
        taken := v_replies[i];
        RETURN NEXT taken.states;
    END LOOP;
END $joint$;
