-- The clock that decides: the server's, read when it is asked for and not when the transaction began.
CREATE FUNCTION @schema@.now_us(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $now$
    SELECT coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
$now$;

-- Returns a row, locked if `p_lock`; all columns are null without one.
CREATE FUNCTION @schema@.find(p_policy text, p_subject text, p_lock boolean)
RETURNS @schema@.entries LANGUAGE plpgsql VOLATILE AS $find$
DECLARE
    row @schema@.entries;
BEGIN
    IF p_lock THEN
        SELECT * INTO row FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
    ELSE
        SELECT * INTO row FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject;
    END IF;
    RETURN row;
END $find$;

-- The answer of a function that only read `p_row`: without settled permits and ids.
CREATE FUNCTION @schema@.as_read(p_row @schema@.entries, p_clock bigint)
RETURNS @schema@.answer LANGUAGE sql IMMUTABLE AS $read$
    SELECT 'read', p_clock, NULL::bigint, p_row.shape, p_row.revision, p_row.at_us, p_row.next_stamp, p_row.states,
           NULL::bigint[], p_row.settled_floor, p_row.closed, p_row.changed, NULL::bigint[]
$read$;

-- The row as it is, with all settled permits, what `p_id` was given, and the time: consumes nothing, locks nothing.
CREATE FUNCTION @schema@.look(p_policy text, p_subject text, p_id text, p_now bigint)
RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $look$
DECLARE
    row    @schema@.entries := @schema@.find(p_policy, p_subject, false);
    result @schema@.answer := @schema@.as_read(row, @schema@.now_us(p_now));
BEGIN
    IF row.settled_runs > 0 THEN
        SELECT array_agg(u.number ORDER BY s.first, u.k) INTO result.settled
          FROM @schema@.settled s, unnest(ARRAY[s.first, s.last, s.admitted_us]) WITH ORDINALITY u(number, k)
         WHERE s.policy = p_policy AND s.subject = p_subject;
    END IF;
    IF p_id IS NOT NULL THEN
        SELECT ARRAY[i.at_us, i.stamp, i.digest, i.expires_at_us] || i.others INTO result.given
          FROM @schema@.ids i WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id;
    END IF;
    RETURN result;
END $look$;

-- Remembers an id under the lock of its entry. `p_known` is the stamp that was remembered when the caller looked (null:
-- none). If another was written since, which only an entry that was removed in between allows, everything is undone.
CREATE FUNCTION @schema@.remember(
    p_policy text, p_subject text, p_id text, p_known bigint, p_at bigint, p_stamp bigint, p_digest bigint, p_expires bigint,
    p_others bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql VOLATILE AS $remember$
BEGIN
    INSERT INTO @schema@.ids AS i VALUES (p_policy, p_subject, p_id, p_at, p_stamp, p_digest, p_expires, p_others)
    ON CONFLICT (policy, subject, id) DO UPDATE
       SET at_us = excluded.at_us, stamp = excluded.stamp, digest = excluded.digest, expires_at_us = excluded.expires_at_us,
           others = excluded.others
     WHERE i.stamp = p_known;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another ask with the id % was charged meanwhile', p_id USING ERRCODE = 'serialization_failure';
    END IF;
END $remember$;

-- Decides and charges (`p_decide`), or charges without deciding. Writes nothing unless it answers 1 (charged); with 0
-- (read) the caller explains from the row that comes along, which decided. 2 is contended, with 3 the caller has to look
-- for itself because the numbers are others, and 4 says that too many permits wait to be settled.
--
-- The first attempt reads without a lock and writes by compare-and-swap. The loser of that race locks the row for the
-- second, so that many callers on one row queue instead of racing. An id is read after the row
-- and written after it, so the revision of the row covers both: of two asks with the same new id one is charged.
--
-- The answer is one array, because that is what a call spends least on: what was done, the time, the stamp, when the row
-- was written (-1 without a row), its next stamp; how many numbers of closed limits, and those; how many numbers of
-- the id that was recognised, and those; the states.
CREATE FUNCTION @schema@.spend(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_refundable boolean,
    p_id text, p_digest bigint, p_id_ttl bigint, p_now bigint, p_lock_timeout text, p_decide boolean
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $spend$
DECLARE
    tries_max       CONSTANT int := 8;
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    taken        @schema@.taken;
    v_same       boolean;
    v_revision   bigint;
    v_at         bigint;
    v_next       bigint;
    v_states     bigint[];
    v_closed     bigint[];
    v_absent     bigint;
    v_runs       int;
    v_given      bigint[];
    v_clock      bigint;
    v_now        bigint;
    v_shut       boolean;
BEGIN
    FOR v_try IN 1 .. tries_max LOOP
        IF v_try = 1 THEN
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us, e.settled_runs
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_runs
              FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject;
        ELSE
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us, e.settled_runs
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_runs
              FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
        END IF;
        -- After the wait, and never before the row was last written.
        v_clock := coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);
        v_now := greatest(v_clock, v_at);
        IF NOT v_same THEN RETURN ARRAY[3, v_clock, 0, v_at, v_next]; END IF;
        -- For this ask, unless it was let through before.
        v_shut := p_decide AND CASE WHEN v_closed <> '{}' THEN @schema@.is_shut(v_closed, v_now, p_numbers, p_amounts) END;
        IF p_id IS NOT NULL THEN
            SELECT ARRAY[i.at_us, i.stamp, i.digest, i.expires_at_us] INTO v_given
              FROM @schema@.ids i WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id;
            IF v_now < v_given[4]
                -- A reset voids what was given before it.
                AND NOT (v_runs > 0 AND EXISTS (
                    SELECT FROM @schema@.settled s
                     WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = 0 AND v_given[2] <= s.last))
                AND NOT (p_decide AND v_given[3] = p_digest
                    AND @schema@.lost_slots(v_states, v_now, p_numbers, p_amounts, v_given[2]))
            THEN
                RETURN ARRAY[0, v_clock, 0, coalesce(v_at, -1), coalesce(v_next, 0), coalesce(cardinality(v_closed), 0)]
                    || v_closed || 4::bigint || v_given || v_states;
            END IF;
        END IF;
        taken := NULL;
        IF v_shut IS NOT TRUE THEN
            taken := @schema@.take(
                v_states, coalesce(v_at, v_now), v_now, p_numbers, p_amounts, coalesce(v_next, greatest(v_now, 1)), p_decide,
                p_refundable);
        END IF;
        IF taken.states IS NULL THEN
            IF v_at IS NULL THEN RETURN ARRAY[0, v_clock, 0, -1, 0, 0, 0]; END IF;
            RETURN ARRAY[0, v_clock, 0, v_at, v_next, cardinality(v_closed)] || v_closed || 0::bigint || v_states;
        END IF;
        -- No permit is given that could not be settled: old runs make room only once they may be abandoned.
        IF v_runs >= runs_max AND p_refundable AND p_decide THEN
            IF (SELECT v_now < s.admitted_us + abandoned_after FROM @schema@.settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 1)
            THEN
                RETURN ARRAY[4, v_clock];
            END IF;
        END IF;
        v_next := coalesce(v_next, greatest(v_now, 1));
        v_absent := greatest(taken.idle_at_us, v_next + 1, v_absent);
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        IF v_revision IS NULL THEN
            INSERT INTO @schema@.entries (policy, subject, shape, revision, at_us, next_stamp, states, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next + 1, taken.states, v_absent)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE @schema@.entries e
               SET revision = v_revision + 1, at_us = v_now, next_stamp = v_next + 1, states = taken.states,
                   absent_at_us = v_absent
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = v_revision;
        END IF;
        IF FOUND THEN
            IF p_id IS NOT NULL THEN
                PERFORM @schema@.remember(
                    p_policy, p_subject, p_id, v_given[2], v_now, v_next, p_digest, v_now + p_id_ttl);
            END IF;
            RETURN ARRAY[1, v_clock, v_next, v_now, v_next + 1, coalesce(cardinality(v_closed), 0)]
                || v_closed || 0::bigint || taken.states;
        END IF;
    END LOOP;
    RETURN ARRAY[2, v_clock];
END $spend$;

-- Whether one of the closed limits counts what is asked for.
CREATE FUNCTION @schema@.is_shut(p_closed bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[])
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $shut$
BEGIN
    FOR i IN 1 .. cardinality(p_closed) / 2 LOOP
        IF p_now < p_closed[2 * i] AND p_amounts[p_numbers[8 * p_closed[2 * i - 1] + 2]] > 0 THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END $shut$;

-- Several asks in one transaction, in order. The caller sorts them by row, so that two callers cannot deadlock. `p_numbers` and `p_amounts` are those of all asks in a row; how many each
-- ask has is beside them.
CREATE FUNCTION @schema@.spend_all(
    p_policies text[], p_subjects text[], p_shapes bytea[], p_numbers bigint[], p_numbers_each int[], p_amounts bigint[],
    p_amounts_each int[], p_refundable boolean[], p_ids text[], p_digests bigint[], p_id_ttls bigint[], p_nows bigint[],
    p_decide boolean[], p_lock_timeout text
) RETURNS SETOF bigint[] LANGUAGE plpgsql VOLATILE AS $all$
DECLARE
    n int := 1;
    a int := 1;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    FOR i IN 1 .. cardinality(p_policies) LOOP
        RETURN NEXT @schema@.spend(
            p_policies[i], p_subjects[i], p_shapes[i], p_numbers[n : n + p_numbers_each[i] - 1],
            p_amounts[a : a + p_amounts_each[i] - 1], p_refundable[i], p_ids[i], p_digests[i], p_id_ttls[i], p_nows[i], NULL,
            p_decide[i]);
        n := n + p_numbers_each[i];
        a := a + p_amounts_each[i];
    END LOOP;
END $all$;

-- Whether a repeat of `p_amounts` is worth nothing: the charge `p_stamp` took slots, and none of them is held any more.
CREATE FUNCTION @schema@.lost_slots(
    p_states bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[], p_stamp bigint
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $lost$
DECLARE
    took boolean := false;
    p    int := 1;
    b    int := 0;
    n    int;
BEGIN
    WHILE b < cardinality(p_numbers) LOOP
        n := coalesce(p_states[p + 1], 0);
        IF p_numbers[b + 1] = 5 THEN
            took := took OR p_amounts[p_numbers[b + 2]] > 0;
            FOR i IN 1 .. n / 3 LOOP
                IF p_states[p + 3 * i - 1] = p_stamp AND p_now < p_states[p + 3 * i] THEN RETURN false; END IF;
            END LOOP;
        END IF;
        p := p + 2 + n;
        b := b + 8;
    END LOOP;
    RETURN took;
END $lost$;

-- Writes a row that the caller computed, if it still has the revision that the caller read (null: no row).
-- `p_settled` are all runs of the row. With `p_id`, `p_given` is what to remember of it in place of the stamp `p_known`;
-- null forgets the id if it was given that stamp.
CREATE FUNCTION @schema@.swap(
    p_policy text, p_subject text, p_revision bigint, p_shape bytea, p_at bigint, p_next_stamp bigint, p_states bigint[],
    p_settled bigint[], p_settled_floor bigint, p_closed bigint[], p_changed bigint[], p_absent_at bigint,
    p_id text, p_known bigint, p_given bigint[], p_lock_timeout text
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $swap$
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    IF p_revision IS NULL THEN
        INSERT INTO @schema@.entries
            (policy, subject, shape, revision, at_us, next_stamp, states, settled_runs, settled_floor, closed, changed, absent_at_us)
        VALUES (p_policy, p_subject, p_shape, p_at, p_at, p_next_stamp, p_states, cardinality(p_settled) / 3,
                p_settled_floor, p_closed, p_changed, p_absent_at)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE @schema@.entries e
           SET shape = p_shape, revision = p_revision + 1, at_us = p_at, next_stamp = p_next_stamp, states = p_states,
               settled_runs = cardinality(p_settled) / 3, settled_floor = p_settled_floor, closed = p_closed,
               changed = p_changed, absent_at_us = p_absent_at
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = p_revision;
    END IF;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM @schema@.settled s
     WHERE s.policy = p_policy AND s.subject = p_subject
       AND (s.first, s.last, s.admitted_us) NOT IN (
           SELECT p_settled[3 * k - 2], p_settled[3 * k - 1], p_settled[3 * k]
             FROM generate_series(1, cardinality(p_settled) / 3) k);
    INSERT INTO @schema@.settled
    SELECT p_policy, p_subject, p_settled[3 * k - 2], p_settled[3 * k - 1], p_settled[3 * k]
      FROM generate_series(1, cardinality(p_settled) / 3) k
    ON CONFLICT DO NOTHING;
    IF p_given IS NOT NULL THEN
        PERFORM @schema@.remember(p_policy, p_subject, p_id, p_known, p_given[1], p_given[2], p_given[3], p_given[4]);
    ELSIF p_id IS NOT NULL THEN
        DELETE FROM @schema@.ids i
         WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id AND i.stamp = p_known;
    END IF;
    RETURN true;
END $swap$;

-- Removes at most `p_rows` rows that are equivalent to an absent one, from `p_after` on, and answers how many it removed and
-- the last key it looked at (nothing at the end). Locked rows are left for the next run.
CREATE FUNCTION @schema@.clean_up(
    p_after_policy text, p_after_subject text, p_rows int, p_now bigint,
    OUT removed bigint, OUT last_policy text, OUT last_subject text
) LANGUAGE plpgsql VOLATILE AS $clean$
DECLARE
    v_now      bigint := @schema@.now_us(p_now);
    v_policies text[];
    v_subjects text[];
BEGIN
    SELECT l.policy, l.subject INTO last_policy, last_subject FROM (
        SELECT e.policy, e.subject FROM @schema@.entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
         ORDER BY e.policy, e.subject LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC LIMIT 1;
    SELECT array_agg(g.policy), array_agg(g.subject) INTO v_policies, v_subjects FROM (
        SELECT e.policy, e.subject FROM @schema@.entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
           AND (e.policy, e.subject) <= (last_policy, last_subject)
           AND e.absent_at_us <= v_now
           FOR UPDATE SKIP LOCKED) g;
    DELETE FROM @schema@.settled s USING unnest(v_policies, v_subjects) g(policy, subject)
     WHERE s.policy = g.policy AND s.subject = g.subject;
    DELETE FROM @schema@.entries e USING unnest(v_policies, v_subjects) g(policy, subject)
     WHERE e.policy = g.policy AND e.subject = g.subject;
    GET DIAGNOSTICS removed = ROW_COUNT;
END $clean$;

-- Removes the expired ones of the next `p_rows` ids after a key, and answers how many it removed and the last key it
-- looked at (nothing at the end). Locked ids are left for the next run.
CREATE FUNCTION @schema@.clean_up_ids(
    p_after_policy text, p_after_subject text, p_after_id text, p_rows int, p_now bigint,
    OUT removed bigint, OUT last_policy text, OUT last_subject text, OUT last_id text
) LANGUAGE plpgsql VOLATILE AS $ids$
DECLARE
    v_now bigint := @schema@.now_us(p_now);
BEGIN
    SELECT l.policy, l.subject, l.id INTO last_policy, last_subject, last_id FROM (
        SELECT i.policy, i.subject, i.id FROM @schema@.ids i
         WHERE (i.policy, i.subject, i.id) > (p_after_policy, p_after_subject, p_after_id)
         ORDER BY i.policy, i.subject, i.id LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC, l.id DESC LIMIT 1;
    DELETE FROM @schema@.ids WHERE ctid = ANY (ARRAY(
        SELECT i.ctid FROM @schema@.ids i
         WHERE (i.policy, i.subject, i.id) > (p_after_policy, p_after_subject, p_after_id)
           AND (i.policy, i.subject, i.id) <= (last_policy, last_subject, last_id)
           AND i.expires_at_us <= v_now
           FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
END $ids$;
