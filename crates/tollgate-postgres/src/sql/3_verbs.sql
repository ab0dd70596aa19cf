-- The clock that decides: the server's, read when it is asked for and not when the transaction began.
CREATE FUNCTION @schema@.now_us(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $now$
    SELECT coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
$now$;

-- A row, locked if `p_lock`; nothing but nulls where there is none.
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

-- The answer of whoever did nothing but read `p_row`, without its ids.
CREATE FUNCTION @schema@.as_read(p_row @schema@.entries, p_clock bigint)
RETURNS @schema@.answer LANGUAGE sql IMMUTABLE AS $read$
    SELECT 'read', p_clock, NULL::bigint, p_row.shape, p_row.revision, p_row.at_us, p_row.next_stamp, p_row.states,
           NULL::text[], NULL::bigint[], p_row.settled, p_row.settled_floor, p_row.closed, p_row.changed
$read$;

-- The row as it is, and the time: consumes nothing, locks nothing.
CREATE FUNCTION @schema@.look(p_policy text, p_subject text, p_now bigint)
RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $look$
DECLARE
    row    @schema@.entries := @schema@.find(p_policy, p_subject, false);
    result @schema@.answer := @schema@.as_read(row, @schema@.now_us(p_now));
BEGIN
    result.ids := row.ids;
    result.id_numbers := row.id_numbers;
    RETURN result;
END $look$;

-- Decides and charges (`p_decide`), or charges without deciding. Writes nothing unless it answers 1 (charged); with 0
-- (read) the caller explains from the row that comes along, which decided. 2 is contended, and with 3 the caller has to
-- look for itself: other numbers, or too many ids.
--
-- The first try reads without a lock, and its write counts only if the row is still the same. Whoever loses that race
-- locks the row for the second, so that many callers on one row queue up instead of racing.
--
-- The answer is one array, because that is what a call spends least on: what was done, the time, the stamp, when the row
-- was written (-1: there is none), its next stamp; how many numbers of closed limits, and those; how many numbers of
-- the id that was recognised, and those; the states.
CREATE FUNCTION @schema@.spend(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[],
    p_id text, p_id_ttl bigint, p_now bigint, p_lock_timeout text, p_decide boolean
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $spend$
DECLARE
    tries_max    CONSTANT int := 8;
    ids_max      CONSTANT int := 1024;
    taken        @schema@.taken;
    v_same       boolean;
    v_revision   bigint;
    v_at         bigint;
    v_next       bigint;
    v_states     bigint[];
    v_closed     bigint[];
    v_absent     bigint;
    v_ids        text[];
    v_id_numbers bigint[];
    v_clock      bigint;
    v_now        bigint;
    v_width      int;
    v_place      int;
    v_shut       boolean;
BEGIN
    FOR v_try IN 1 .. tries_max LOOP
        IF v_try = 1 THEN
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us,
                   CASE WHEN p_id IS NOT NULL THEN e.ids END, CASE WHEN p_id IS NOT NULL THEN e.id_numbers END
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_ids, v_id_numbers
              FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject;
        ELSE
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us, e.ids, e.id_numbers
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_ids, v_id_numbers
              FROM @schema@.entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
        END IF;
        -- After the wait, and never before the row was last written.
        v_clock := coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);
        v_now := greatest(v_clock, v_at);
        IF NOT v_same THEN RETURN ARRAY[3, v_clock, 0, v_at, v_next]; END IF;
        -- For this ask, unless it was let through before.
        v_shut := p_decide AND CASE WHEN v_closed <> '{}' THEN @schema@.is_shut(v_closed, v_now, p_numbers, p_amounts) END;
        IF p_id IS NOT NULL AND v_ids IS NOT NULL THEN
            v_width := 3 + cardinality(p_amounts);
            v_place := array_position(v_ids, p_id);
            WHILE v_place IS NOT NULL LOOP
                IF v_now < v_id_numbers[(v_place - 1) * v_width + 3]
                    AND NOT (p_decide AND @schema@.lost_slots(
                        v_states, v_now, p_numbers, p_amounts, v_id_numbers[(v_place - 1) * v_width + 1 : v_place * v_width]))
                THEN
                    RETURN ARRAY[0, v_clock, 0, v_at, v_next, cardinality(v_closed)] || v_closed || v_width::bigint
                        || v_id_numbers[(v_place - 1) * v_width + 1 : v_place * v_width] || v_states;
                END IF;
                v_place := array_position(v_ids, p_id, v_place + 1);
            END LOOP;
        END IF;
        taken := NULL;
        IF v_shut IS NOT TRUE THEN
            taken := @schema@.take(
                v_states, coalesce(v_at, v_now), v_now, p_numbers, p_amounts, coalesce(v_next, greatest(v_now, 1)), p_decide);
        END IF;
        IF taken.states IS NULL THEN
            IF v_at IS NULL THEN RETURN ARRAY[0, v_clock, 0, -1, 0, 0, 0]; END IF;
            RETURN ARRAY[0, v_clock, 0, v_at, v_next, cardinality(v_closed)] || v_closed || 0::bigint || v_states;
        END IF;
        v_next := coalesce(v_next, greatest(v_now, 1));
        v_absent := greatest(taken.idle_at_us, v_next + 1, v_absent);
        IF p_id IS NOT NULL THEN
            v_width := 3 + cardinality(p_amounts);
            IF v_ids IS NULL THEN
                v_ids := '{}';
                v_id_numbers := '{}';
            ELSIF cardinality(v_ids) >= ids_max OR v_id_numbers[3] <= v_now THEN
                SELECT coalesce(array_agg(v_ids[k] ORDER BY k), '{}'),
                       coalesce(@schema@.flatten(array_agg(v_id_numbers[(k - 1) * v_width + 1 : k * v_width] ORDER BY k)), '{}')
                  INTO v_ids, v_id_numbers
                  FROM generate_series(1, cardinality(v_ids)) k
                 WHERE v_now < v_id_numbers[(k - 1) * v_width + 3];
            END IF;
            IF cardinality(v_ids) >= ids_max THEN RETURN ARRAY[3, v_clock, 0, v_at, v_next]; END IF;
            -- What was remembered under this id before is over.
            v_place := array_position(v_ids, p_id);
            WHILE v_place IS NOT NULL LOOP
                v_ids := v_ids[: v_place - 1] || v_ids[v_place + 1 :];
                v_id_numbers := v_id_numbers[: (v_place - 1) * v_width] || v_id_numbers[v_place * v_width + 1 :];
                v_place := array_position(v_ids, p_id);
            END LOOP;
            v_ids := v_ids || p_id;
            v_id_numbers := v_id_numbers || ARRAY[v_now, v_next, v_now + p_id_ttl] || p_amounts;
            v_absent := greatest(v_absent, v_now + p_id_ttl);
        END IF;
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        IF v_revision IS NULL THEN
            INSERT INTO @schema@.entries
                (policy, subject, shape, revision, at_us, next_stamp, states, ids, id_numbers, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next + 1, taken.states,
                    coalesce(v_ids, '{}'), coalesce(v_id_numbers, '{}'), v_absent)
            ON CONFLICT DO NOTHING;
        ELSIF p_id IS NULL THEN
            -- Columns that are not named keep their place outside of the row, if they are large.
            UPDATE @schema@.entries e
               SET revision = v_revision + 1, at_us = v_now, next_stamp = v_next + 1, states = taken.states,
                   absent_at_us = v_absent
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = v_revision;
        ELSE
            UPDATE @schema@.entries e
               SET revision = v_revision + 1, at_us = v_now, next_stamp = v_next + 1, states = taken.states,
                   absent_at_us = v_absent, ids = v_ids, id_numbers = v_id_numbers
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = v_revision;
        END IF;
        IF FOUND THEN
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

-- Several asks in one transaction, in the order in which they come: whoever calls this sorts them by row, so that two
-- callers never wait for each other in a circle. `p_numbers` and `p_amounts` are those of all asks in a row; how many each
-- ask has is beside them.
CREATE FUNCTION @schema@.spend_all(
    p_policies text[], p_subjects text[], p_shapes bytea[], p_numbers bigint[], p_numbers_each int[], p_amounts bigint[],
    p_amounts_each int[], p_ids text[], p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text
) RETURNS SETOF bigint[] LANGUAGE plpgsql VOLATILE AS $all$
DECLARE
    n int := 1;
    a int := 1;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    FOR i IN 1 .. cardinality(p_policies) LOOP
        RETURN NEXT @schema@.spend(
            p_policies[i], p_subjects[i], p_shapes[i], p_numbers[n : n + p_numbers_each[i] - 1],
            p_amounts[a : a + p_amounts_each[i] - 1], p_ids[i], p_id_ttls[i], p_nows[i], NULL, p_decide[i]);
        n := n + p_numbers_each[i];
        a := a + p_amounts_each[i];
    END LOOP;
END $all$;

-- Whether a repeat of `p_amounts` is worth nothing: what the id was given (`p_known`, its numbers) took slots, and none of
-- them is held any more. An id that was used with other amounts is a conflict, which the caller explains.
CREATE FUNCTION @schema@.lost_slots(
    p_states bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[], p_known bigint[]
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $lost$
DECLARE
    took boolean := false;
    p    int := 1;
    b    int := 0;
    n    int;
BEGIN
    IF p_known[4:] <> p_amounts THEN RETURN false; END IF;
    WHILE b < cardinality(p_numbers) LOOP
        n := p_states[p + 1];
        IF p_numbers[b + 1] = 5 THEN
            took := took OR p_amounts[p_numbers[b + 2]] > 0;
            FOR i IN 1 .. n / 3 LOOP
                IF p_states[p + 3 * i - 1] = p_known[2] AND p_now < p_states[p + 3 * i] THEN RETURN false; END IF;
            END LOOP;
        END IF;
        p := p + 2 + n;
        b := b + 8;
    END LOOP;
    RETURN took;
END $lost$;

-- An array of arrays of the same length as one array.
CREATE FUNCTION @schema@.flatten(p_all bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $flatten$
    SELECT array_agg(number) FROM unnest(p_all) number
$flatten$;

-- Writes a row that the caller worked out, if it is still at the revision that the caller saw (null: if there is none).
CREATE FUNCTION @schema@.swap(
    p_policy text, p_subject text, p_revision bigint, p_shape bytea, p_at bigint, p_next_stamp bigint, p_states bigint[],
    p_ids text[], p_id_numbers bigint[], p_settled bigint[], p_settled_floor bigint, p_closed bigint[], p_changed bigint[],
    p_absent_at bigint, p_lock_timeout text
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $swap$
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    IF p_revision IS NULL THEN
        INSERT INTO @schema@.entries VALUES
            (p_policy, p_subject, p_shape, p_at, p_at, p_next_stamp, p_states, p_ids, p_id_numbers, p_settled,
             p_settled_floor, p_closed, p_changed, p_absent_at)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE @schema@.entries e
           SET shape = p_shape, revision = p_revision + 1, at_us = p_at, next_stamp = p_next_stamp, states = p_states,
               ids = p_ids, id_numbers = p_id_numbers, settled = p_settled, settled_floor = p_settled_floor,
               closed = p_closed, changed = p_changed, absent_at_us = p_absent_at
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = p_revision;
    END IF;
    RETURN FOUND;
END $swap$;

-- Removes at most `p_rows` rows that say what an absent one says, from `p_after` on, and answers how many it removed and
-- the last key it looked at (nothing at the end). Rows that somebody holds are left for the next time.
CREATE FUNCTION @schema@.clean_up(
    p_after_policy text, p_after_subject text, p_rows int, p_now bigint,
    OUT removed bigint, OUT last_policy text, OUT last_subject text
) LANGUAGE plpgsql VOLATILE AS $clean$
DECLARE
    v_now bigint := @schema@.now_us(p_now);
BEGIN
    SELECT l.policy, l.subject INTO last_policy, last_subject FROM (
        SELECT e.policy, e.subject FROM @schema@.entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
         ORDER BY e.policy, e.subject LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC LIMIT 1;
    WITH gone AS (
        SELECT e.policy, e.subject FROM @schema@.entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
           AND (e.policy, e.subject) <= (last_policy, last_subject)
           AND e.absent_at_us <= v_now
           FOR UPDATE SKIP LOCKED)
    DELETE FROM @schema@.entries e USING gone g WHERE e.policy = g.policy AND e.subject = g.subject;
    GET DIAGNOSTICS removed = ROW_COUNT;
END $clean$;
