-- Locks rows in the order in which they are given. The caller sorts them by key, so that two callers cannot deadlock. Inserts
-- an empty row where there is none, which the caller fills or removes before it commits. Returns the revision of each row,
-- negative if it was inserted.
CREATE FUNCTION @schema@.hold(p_policies text[], p_subjects text[], p_now bigint)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $hold$
BEGIN
    -- The condition is evaluated on the locked row, and leaves it as it is.
    INSERT INTO @schema@.entries AS e (policy, subject, shape, revision, at_us, next_stamp, states, absent_at_us)
    SELECT l.policy, l.subject, '', greatest(@schema@.now_us(p_now), 1), 0, 0, '{}', 0
      FROM unnest(p_policies, p_subjects) l(policy, subject)
        ON CONFLICT (policy, subject) DO UPDATE SET revision = e.revision WHERE false;
    RETURN ARRAY(
        SELECT (SELECT CASE WHEN e.shape = '' THEN -e.revision ELSE e.revision END
                  FROM @schema@.entries e WHERE e.policy = l.policy AND e.subject = l.subject)
          FROM unnest(p_policies, p_subjects) l(policy, subject));
END $hold$;

-- Asks with several charges each, in one transaction and in order. An ask is charged to all of its rows or to none.
-- `p_policies`, `p_subjects` and `p_shapes` are the rows of all asks, each once and sorted. `p_charges` is how many charges each
-- ask has, and `p_rows` the row of each charge, by its place from 1, or null if the shape of the charge is not that of its row.
-- `p_numbers_at` and `p_amounts_at` are where the numbers and the amounts of each charge begin, and where the last ones end.
--
-- Answers for each charge what `spend` does: 1 for every charge of an ask that was charged; 0 with the rows for one that was
-- refused; 3, and the caller has to look for itself, if numbers are others or the id is known; 4 for too many permits.
--
-- The asks are first decided on rows that are read without a lock. Asks that these rows refuse are answered. The rows of
-- all others are locked in order; if one of them changed meanwhile, the asks are decided again. One statement reads, locks
-- or writes the rows of all asks, because a statement costs more than what it does to a row. What is rare is in branches of
-- its own: the server sets up every expression again in each transaction, and one with a query is slow even if it is skipped.
CREATE FUNCTION @schema@.spend_joint(
    p_policies text[], p_subjects text[], p_shapes bytea[], p_charges int[], p_rows int[], p_numbers bigint[],
    p_numbers_at int[], p_amounts bigint[], p_amounts_at int[], p_refundable boolean[], p_ids text[], p_digests bigint[],
    p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text
) RETURNS SETOF bigint[] LANGUAGE plpgsql VOLATILE
    -- Otherwise the server plans each statement again in every call, because it knows the lengths of the arrays then, and
    -- that takes as long as all the rest. A plan that is kept must suit a table that grows, so it reads rows by their key.
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $joint$
DECLARE
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    -- Of each row.
    v_read     bigint[];                   -- its revision
    v_ats      bigint[];
    v_nexts    bigint[];
    v_states   @schema@.taken[];
    v_closed   @schema@.taken[];
    v_others   boolean[];                  -- whether it has other numbers
    v_full     boolean[];                  -- whether it may have too many permits
    v_dirty    boolean[];
    v_needed   boolean[];                  -- whether it has to be locked though nothing is charged to it
    -- Of each ask.
    v_pending  boolean[];                  -- not refused by the unlocked rows
    v_charged  boolean[];
    v_known    bigint[];                   -- the stamp that its id had before
    v_given    @schema@.taken[];           -- with an id: time and stamp of each charge, as `states`
    -- Of each charge.
    v_takes    @schema@.taken[];           -- of the ask in turn
    v_replies  @schema@.taken[];           -- as `states`
    v_is_other boolean;                    -- of any row
    v_is_shut  boolean;
    v_is_full  boolean;
    v_is_same  boolean;
    v_is_gone  boolean;
    v_new_ids  text[];
    v_shut     bigint[] := '{0, 0}';       -- how many numbers of closed limits and of an id follow in an answer, and those
    v_got      bigint[];
    v_clock    bigint;
    v_now      bigint;
    v_stamp    bigint;
    v_expires  bigint;
    v_code     bigint;
    c          int;    -- the charges before those of the ask in turn
    k          int;    -- the row of a charge
BEGIN
    v_pending := array_fill(true, ARRAY[cardinality(p_charges)]);
    v_charged := array_fill(false, ARRAY[cardinality(p_charges)]);
    FOR v_run IN 1 .. 2 LOOP
        -- A row that `hold` made has no shape.
        SELECT array_agg(e.revision), array_agg(e.at_us), array_agg(e.next_stamp), array_agg(ROW(e.states, 0)::@schema@.taken),
               array_agg(ROW(e.closed, 0)::@schema@.taken), array_agg(e.shape <> l.shape),
               array_agg(e.settled_runs >= runs_max), bool_or(e.shape <> l.shape), bool_or(e.closed <> '{}'),
               bool_or(e.settled_runs >= runs_max)
          INTO v_read, v_ats, v_nexts, v_states, v_closed, v_others, v_full, v_is_other, v_is_shut, v_is_full
          FROM unnest(p_policies, p_subjects, p_shapes) l(policy, subject, shape) LEFT JOIN LATERAL (
               SELECT * FROM @schema@.entries r
                WHERE r.policy = l.policy AND r.subject = l.subject AND r.shape <> '' OFFSET 0) e ON true;
        v_dirty := array_fill(false, ARRAY[cardinality(p_policies)]);
        v_needed := v_dirty;
        v_new_ids := '{}';
        c := 0;
        FOR i IN 1 .. cardinality(p_charges) LOOP
            IF NOT v_pending[i] THEN
                c := c + p_charges[i];
                CONTINUE;
            END IF;
            -- After the wait, and never before a row was last written.
            v_clock := coalesce(p_nows[i], (date_part('epoch', clock_timestamp()) * 1000000)::bigint);
            v_code := 1;
            IF v_is_other OR array_position(p_rows, NULL) IS NOT NULL THEN
                FOR j IN 1 .. p_charges[i] LOOP
                    k := p_rows[c + j];
                    IF k IS NULL OR v_others[k] THEN v_code := 3; END IF;
                END LOOP;
            END IF;
            IF p_ids[i] IS NOT NULL AND v_code = 1 THEN
                k := p_rows[c + 1];
                SELECT d.stamp, d.expires_at_us INTO v_stamp, v_expires FROM @schema@.ids d
                 WHERE d.policy = p_policies[k] AND d.subject = p_subjects[k] AND d.id = p_ids[i];
                v_known[i] := v_stamp;
                IF greatest(v_clock, v_ats[k]) < v_expires OR k || ':' || p_ids[i] = ANY (v_new_ids) THEN
                    v_code := 3;
                END IF;
            END IF;
            FOR j IN 1 .. p_charges[i] LOOP
                EXIT WHEN v_code <> 1;
                k := p_rows[c + j];
                v_now := greatest(v_clock, v_ats[k]);
                v_takes[j] := @schema@.take(
                    (v_states[k]).states, coalesce(v_ats[k], v_now), v_now,
                    p_numbers[p_numbers_at[c + j] : p_numbers_at[c + j + 1] - 1],
                    p_amounts[p_amounts_at[c + j] : p_amounts_at[c + j + 1] - 1],
                    coalesce(v_nexts[k], greatest(v_now, 1)), p_decide[i], p_refundable[i]);
                IF (v_takes[j]).states IS NULL THEN
                    v_code := 0;
                ELSIF v_is_shut OR v_is_full THEN
                    IF (CASE WHEN p_decide[i] AND (v_closed[k]).states <> '{}' THEN @schema@.is_shut(
                            (v_closed[k]).states, v_now, p_numbers[p_numbers_at[c + j] : p_numbers_at[c + j + 1] - 1],
                            p_amounts[p_amounts_at[c + j] : p_amounts_at[c + j + 1] - 1]) END)
                    THEN
                        v_code := 0;
                    -- No permit is given that could not be settled: old runs make room only once they may be abandoned.
                    ELSIF v_full[k] AND p_refundable[i] AND p_decide[i] AND (
                        SELECT v_now < s.admitted_us + abandoned_after FROM @schema@.settled s
                         WHERE s.policy = p_policies[k] AND s.subject = p_subjects[k] ORDER BY s.first LIMIT 1)
                    THEN
                        v_code := 4;
                    END IF;
                END IF;
            END LOOP;
            v_charged[i] := v_code = 1;
            IF v_code = 1 THEN
                FOR j IN 1 .. p_charges[i] LOOP
                    k := p_rows[c + j];
                    v_now := greatest(v_clock, v_ats[k]);
                    v_stamp := coalesce(v_nexts[k], greatest(v_now, 1));
                    IF v_is_shut THEN
                        v_shut := coalesce(cardinality((v_closed[k]).states), 0) || (v_closed[k]).states || 0::bigint;
                    END IF;
                    v_replies[c + j] := ROW(
                        ARRAY[1, v_clock, v_stamp, v_now, v_stamp + 1] || v_shut || (v_takes[j]).states, 0)::@schema@.taken;
                    v_states[k] := v_takes[j];
                    v_ats[k] := v_now;
                    v_nexts[k] := v_stamp + 1;
                    v_dirty[k] := true;
                END LOOP;
                IF p_ids[i] IS NOT NULL THEN
                    v_got := '{}';
                    FOR j IN 1 .. p_charges[i] LOOP
                        k := p_rows[c + j];
                        v_got := v_got || ARRAY[v_ats[k], v_nexts[k] - 1];
                    END LOOP;
                    v_given[i] := ROW(v_got, 0)::@schema@.taken;
                    v_new_ids := v_new_ids || (p_rows[c + 1] || ':' || p_ids[i]);
                END IF;
            ELSE
                v_pending[i] := false;
                FOR j IN 1 .. p_charges[i] LOOP
                    k := p_rows[c + j];
                    v_replies[c + j] := ROW(CASE
                        WHEN v_code <> 0 THEN ARRAY[v_code, v_clock]
                        WHEN v_ats[k] IS NULL THEN ARRAY[0, v_clock, 0, -1, 0, 0, 0]
                        ELSE ARRAY[0, v_clock, 0, v_ats[k], v_nexts[k], coalesce(cardinality((v_closed[k]).states), 0)]
                            || (v_closed[k]).states || 0::bigint || (v_states[k]).states
                    END, 0)::@schema@.taken;
                    -- What an ask before it in the same statement caused may be otherwise once the rows are locked.
                    IF v_code <> 3 AND v_dirty[k] THEN v_pending[i] := true; END IF;
                END LOOP;
                IF v_pending[i] THEN
                    FOR j IN 1 .. p_charges[i] LOOP v_needed[p_rows[c + j]] := true; END LOOP;
                END IF;
            END IF;
            c := c + p_charges[i];
        END LOOP;
        EXIT WHEN v_run = 2 OR NOT true = ANY (v_charged);
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        IF array_position(v_read, NULL) IS NULL THEN
            SELECT bool_and(e.revision = l.revision), bool_or(e.revision IS NULL) INTO v_is_same, v_is_gone
              FROM unnest(p_policies, p_subjects, v_read, v_dirty, v_needed) l(policy, subject, revision, is_dirty, is_needed)
              LEFT JOIN LATERAL (
                   SELECT r.revision FROM @schema@.entries r
                    WHERE r.policy = l.policy AND r.subject = l.subject FOR UPDATE) e ON true
             WHERE l.is_dirty OR l.is_needed;
            -- To insert a row now would be to lock out of order.
            IF v_is_gone THEN
                RETURN QUERY SELECT ARRAY[3, v_clock] FROM unnest(p_rows);
                RETURN;
            END IF;
        ELSE
            SELECT bool_and(coalesce(h.held = h.revision, h.held < 0)) INTO v_is_same FROM (
                SELECT unnest(@schema@.hold(array_agg(l.policy), array_agg(l.subject), p_nows[1])) AS held,
                       unnest(array_agg(l.revision)) AS revision
                  FROM unnest(p_policies, p_subjects, v_read, v_dirty, v_needed) l(policy, subject, revision, is_dirty, is_needed)
                 WHERE l.is_dirty OR l.is_needed) h;
        END IF;
        EXIT WHEN v_is_same;
    END LOOP;
    IF true = ANY (v_dirty) THEN
        UPDATE @schema@.entries e
           SET shape = l.shape, revision = e.revision + 1, at_us = l.at_us, next_stamp = l.next_stamp, states = l.states,
               absent_at_us = greatest(l.idle_at_us, l.next_stamp, e.absent_at_us)
          FROM unnest(p_policies, p_subjects, p_shapes, v_dirty, v_ats, v_nexts, v_states)
               l(policy, subject, shape, is_dirty, at_us, next_stamp, states, idle_at_us)
         WHERE l.is_dirty AND e.policy = l.policy AND e.subject = l.subject;
    END IF;
    IF v_is_same IS NOT NULL AND array_position(v_read, NULL) IS NOT NULL THEN
        DELETE FROM @schema@.entries e USING unnest(p_policies, p_subjects) l(policy, subject)
         WHERE e.policy = l.policy AND e.subject = l.subject AND e.shape = '';
    END IF;
    IF v_given IS NOT NULL THEN
        c := 1;
        FOR i IN 1 .. cardinality(p_charges) LOOP
            IF v_charged[i] AND p_ids[i] IS NOT NULL THEN
                v_got := (v_given[i]).states;
                PERFORM @schema@.remember(
                    p_policies[p_rows[c]], p_subjects[p_rows[c]], p_ids[i], v_known[i], v_got[1], v_got[2], p_digests[i],
                    v_got[1] + p_id_ttls[i], CASE WHEN p_charges[i] > 1 THEN v_got[3 :] END);
            END IF;
            c := c + p_charges[i];
        END LOOP;
    END IF;
    RETURN QUERY SELECT r.states FROM unnest(v_replies) r;
END $joint$;
