-- Closes one limit (its place from 0) until a time. Answers `closed` if it did; with `read` it wrote nothing, and the
-- caller finds out why from the row: it is closed for longer, or the numbers are others.
CREATE FUNCTION @schema@.close_limit(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_place bigint, p_until bigint,
    p_now bigint, p_lock_timeout text
) RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $close$
DECLARE
    tries_max CONSTANT int := 8;
    result    @schema@.answer;
    row       @schema@.entries;
    taken     @schema@.taken;
    v_now     bigint;
    v_next    bigint;
    v_closed  bigint[];
    v_absent  bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    FOR v_try IN 1 .. tries_max LOOP
        row := @schema@.find(p_policy, p_subject, v_try > 1);
        result := @schema@.as_read(row, @schema@.now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.shape <> p_shape OR p_until <= v_now THEN RETURN result; END IF;
        v_closed := '{}';
        FOR i IN 1 .. coalesce(cardinality(row.closed), 0) / 2 LOOP
            IF row.closed[2 * i - 1] <> p_place THEN
                v_closed := v_closed || row.closed[2 * i - 1 : 2 * i];
            ELSIF p_until <= row.closed[2 * i] THEN
                RETURN result;
            END IF;
        END LOOP;
        v_closed := v_closed || ARRAY[p_place, p_until];
        taken := @schema@.take(row.states, coalesce(row.at_us, v_now), v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_next := coalesce(row.next_stamp, greatest(v_now, 1));
        v_absent := greatest(row.absent_at_us, taken.idle_at_us, v_next, p_until);
        IF row.revision IS NULL THEN
            INSERT INTO @schema@.entries (policy, subject, shape, revision, at_us, next_stamp, states, closed, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next, taken.states, v_closed, v_absent)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE @schema@.entries e
               SET revision = e.revision + 1, at_us = v_now, states = taken.states, closed = v_closed, absent_at_us = v_absent
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        END IF;
        IF FOUND THEN
            result.did := 'closed';
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $close$;

-- Forgets what is used and closed. The permits that were given count as settled, so that none of them gives back what was
-- forgotten, and their ids are void. Answers `reset` if there was something; with `read` it wrote nothing: there is nothing, or
-- the numbers are others.
CREATE FUNCTION @schema@.forget(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_now bigint, p_lock_timeout text
) RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $reset$
DECLARE
    permit_ttl CONSTANT bigint := 3600000000;
    tries_max  CONSTANT int := 8;
    result     @schema@.answer;
    row        @schema@.entries;
    taken      @schema@.taken;
    v_now      bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    FOR v_try IN 1 .. tries_max LOOP
        row := @schema@.find(p_policy, p_subject, v_try > 1);
        result := @schema@.as_read(row, @schema@.now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape THEN RETURN result; END IF;
        taken := @schema@.take(row.states, row.at_us, v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL OR taken.idle_at_us <= v_now
            AND NOT EXISTS (SELECT FROM generate_series(2, cardinality(row.closed), 2) k WHERE v_now < row.closed[k])
        THEN
            RETURN result;
        END IF;
        taken := @schema@.take(NULL, v_now, v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        UPDATE @schema@.entries e
           SET revision = e.revision + 1, at_us = v_now, next_stamp = greatest(row.next_stamp + 1, v_now),
               states = taken.states, settled_runs = 1, settled_floor = 0, closed = '{}', changed = '{}',
               absent_at_us = greatest(row.next_stamp, v_now + permit_ttl)
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        IF FOUND THEN
            DELETE FROM @schema@.settled s WHERE s.policy = p_policy AND s.subject = p_subject;
            INSERT INTO @schema@.settled VALUES (p_policy, p_subject, 0, row.next_stamp - 1, v_now);
            result.did := 'reset';
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $reset$;
