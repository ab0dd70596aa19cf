SET check_function_bodies = false;

CREATE SCHEMA tollgate;

CREATE TYPE tollgate.answer AS (
	did text,
	now_us bigint,
	stamp bigint,
	shape bytea,
	revision bigint,
	at_us bigint,
	next_stamp bigint,
	states bigint[],
	settled bigint[],
	settled_floor bigint,
	closed bigint[],
	changed bigint[],
	given bigint[]
);

CREATE TYPE tollgate.taken AS (
	states bigint[],
	idle_at_us bigint
);

CREATE TABLE tollgate.entries (
    policy text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    shape bytea NOT NULL,
    revision bigint NOT NULL,
    at_us bigint NOT NULL,
    next_stamp bigint NOT NULL,
    states bigint[] NOT NULL,
    settled_floor bigint DEFAULT 0 NOT NULL,
    closed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    changed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    absent_at_us bigint NOT NULL,
    settled_runs integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', toast.autovacuum_vacuum_scale_factor='0', toast.autovacuum_vacuum_threshold='2000', toast.autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY tollgate.entries ALTER COLUMN states SET STORAGE MAIN;

CREATE FUNCTION tollgate.as_read(p_row tollgate.entries, p_clock bigint) RETURNS tollgate.answer
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT 'read', p_clock, NULL::bigint, p_row.shape, p_row.revision, p_row.at_us, p_row.next_stamp, p_row.states,
           NULL::bigint[], p_row.settled_floor, p_row.closed, p_row.changed, NULL::bigint[]
$$;

CREATE FUNCTION tollgate.clean_up(p_after_policy text, p_after_subject text, p_rows integer, p_now bigint, OUT removed bigint, OUT last_policy text, OUT last_subject text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now      bigint := "tollgate".now_us(p_now);
    v_policies text[];
    v_subjects text[];
BEGIN
    SELECT l.policy, l.subject INTO last_policy, last_subject FROM (
        SELECT e.policy, e.subject FROM "tollgate".entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
         ORDER BY e.policy, e.subject LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC LIMIT 1;
    SELECT array_agg(g.policy), array_agg(g.subject) INTO v_policies, v_subjects FROM (
        SELECT e.policy, e.subject FROM "tollgate".entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
           AND (e.policy, e.subject) <= (last_policy, last_subject)
           AND e.absent_at_us <= v_now
           FOR UPDATE SKIP LOCKED) g;
    DELETE FROM "tollgate".settled s USING unnest(v_policies, v_subjects) g(policy, subject)
     WHERE s.policy = g.policy AND s.subject = g.subject;
    DELETE FROM "tollgate".entries e USING unnest(v_policies, v_subjects) g(policy, subject)
     WHERE e.policy = g.policy AND e.subject = g.subject;
    GET DIAGNOSTICS removed = ROW_COUNT;
END $$;

CREATE FUNCTION tollgate.clean_up_ids(p_after_policy text, p_after_subject text, p_after_id text, p_rows integer, p_now bigint, OUT removed bigint, OUT last_policy text, OUT last_subject text, OUT last_id text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now bigint := "tollgate".now_us(p_now);
BEGIN
    SELECT l.policy, l.subject, l.id INTO last_policy, last_subject, last_id FROM (
        SELECT i.policy, i.subject, i.id FROM "tollgate".ids i
         WHERE (i.policy, i.subject, i.id) > (p_after_policy, p_after_subject, p_after_id)
         ORDER BY i.policy, i.subject, i.id LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC, l.id DESC LIMIT 1;
    DELETE FROM "tollgate".ids WHERE ctid = ANY (ARRAY(
        SELECT i.ctid FROM "tollgate".ids i
         WHERE (i.policy, i.subject, i.id) > (p_after_policy, p_after_subject, p_after_id)
           AND (i.policy, i.subject, i.id) <= (last_policy, last_subject, last_id)
           AND i.expires_at_us <= v_now
           FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
END $$;

CREATE FUNCTION tollgate.close_limit(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_place bigint, p_until bigint, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    tries_max CONSTANT int := 8;
    result    "tollgate".answer;
    row       "tollgate".entries;
    taken     "tollgate".taken;
    v_now     bigint;
    v_next    bigint;
    v_closed  bigint[];
    v_absent  bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
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
        taken := "tollgate".take(row.states, coalesce(row.at_us, v_now), v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_next := coalesce(row.next_stamp, greatest(v_now, 1));
        v_absent := greatest(row.absent_at_us, taken.idle_at_us, v_next, p_until);
        IF row.revision IS NULL THEN
            INSERT INTO "tollgate".entries (policy, subject, shape, revision, at_us, next_stamp, states, closed, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next, taken.states, v_closed, v_absent)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE "tollgate".entries e
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
END $$;

CREATE FUNCTION tollgate.find(p_policy text, p_subject text, p_lock boolean) RETURNS tollgate.entries
    LANGUAGE plpgsql
    AS $$
DECLARE
    row "tollgate".entries;
BEGIN
    IF p_lock THEN
        SELECT * INTO row FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
    ELSE
        SELECT * INTO row FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject;
    END IF;
    RETURN row;
END $$;

CREATE FUNCTION tollgate.forget(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    permit_ttl CONSTANT bigint := 3600000000;
    tries_max  CONSTANT int := 8;
    result     "tollgate".answer;
    row        "tollgate".entries;
    taken      "tollgate".taken;
    v_now      bigint;
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape THEN RETURN result; END IF;
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL OR taken.idle_at_us <= v_now
            AND NOT EXISTS (SELECT FROM generate_series(2, cardinality(row.closed), 2) k WHERE v_now < row.closed[k])
        THEN
            RETURN result;
        END IF;
        taken := "tollgate".take(NULL, v_now, v_now, p_numbers, p_none, 0, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        UPDATE "tollgate".entries e
           SET revision = e.revision + 1, at_us = v_now, next_stamp = greatest(row.next_stamp + 1, v_now),
               states = taken.states, settled_runs = 1, settled_floor = 0, closed = '{}', changed = '{}',
               absent_at_us = greatest(row.next_stamp, v_now + permit_ttl)
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        IF FOUND THEN
            DELETE FROM "tollgate".settled s WHERE s.policy = p_policy AND s.subject = p_subject;
            INSERT INTO "tollgate".settled VALUES (p_policy, p_subject, 0, row.next_stamp - 1, v_now);
            result.did := 'reset';
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $$;

CREATE FUNCTION tollgate.give_back(p_states bigint[], p_now bigint, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[], p_stamp bigint, p_admitted bigint, p_admitted_ends bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    number_max CONSTANT bigint := 9007199254740991;
    states bigint[] := '{}';
    log    bigint[];
    p      int := 1;
    b      int := 0;
    n      int;
    i      int;
    j      int;
    amount bigint;
    n1     bigint;
    n2     bigint;
    n3     bigint;
    used   bigint;
    late   bigint;
    filed  bigint;
BEGIN
    WHILE b < cardinality(p_numbers) LOOP
        amount := p_estimate[p_numbers[b + 2]] - p_wanted[p_numbers[b + 2]];
        n := p_states[p + 1];
        n1 := p_numbers[b + 3];
        n2 := p_numbers[b + 4];
        n3 := p_numbers[b + 5];
        log := p_states[p : p + 1 + n];
        IF p_numbers[b + 1] = 5 THEN
            log := '{}';
            i := p + 2;
            WHILE i < p + 2 + n LOOP
                IF p_states[i] <> p_stamp THEN log := log || p_states[i : i + 2]; END IF;
                i := i + 3;
            END LOOP;
            log := ARRAY[3, cardinality(log)] || log;
        ELSIF amount > 0 THEN
            CASE p_numbers[b + 1]
            WHEN 1 THEN
                -- The lowest since the charge is what time has not given back; without a record, all of it has come back.
                IF n > 1 THEN
                    i := 6;
                    filed := 0;
                    WHILE i < n + 2 AND log[i] <= p_stamp LOOP
                        filed := filed + log[i + 1];
                        i := i + 2;
                    END LOOP;
                    used := least(log[3], filed + log[i + 1], CASE
                        WHEN amount > number_max / n2 THEN number_max ELSE amount * n2 END);
                    log[3] := log[3] - used;
                    IF i < n + 2 THEN
                        -- Later give-backs are judged by the history without it; lows that it undercuts say nothing any more.
                        log[4] := log[4] - used;
                        log[5] := 0;
                        log[i + 1] := log[i + 1] - used;
                        j := i;
                        WHILE j > 6 AND log[i + 1] <= 0 LOOP
                            log[i + 1] := log[i + 1] + log[j - 1];
                            j := j - 2;
                        END LOOP;
                        log := log[: j - 1] || log[i :];
                        log[2] := cardinality(log) - 2;
                    END IF;
                END IF;
            WHEN 2 THEN
                IF p_admitted / n3 = p_now / n3 THEN log[3] := greatest(0, log[3] - amount); END IF;
            WHEN 3 THEN
                filed := CASE WHEN n3 = 0 THEN p_admitted ELSE (p_admitted / n3 + 1) * n3 END;
                IF p_now < filed + n2 THEN
                    i := 4;
                    WHILE i < cardinality(log) AND log[i] < filed LOOP i := i + 2; END LOOP;
                    -- Where it was merged with a later one nothing is given back, so that a younger charge never is.
                    IF i < cardinality(log) AND log[i] = filed THEN
                        used := least(amount, log[i + 1]);
                        log[3] := log[3] - used;
                        log[i + 1] := log[i + 1] - used;
                        IF log[i + 1] = 0 THEN
                            log := log[: i - 1] || log[i + 2 :];
                            log[2] := log[2] - 2;
                        END IF;
                    END IF;
                END IF;
            WHEN 4 THEN
                -- Only the window of the charge gets anything back.
                IF p_admitted < log[3] AND p_admitted_ends[b / 8 + 1] = log[3] THEN
                    log[4] := greatest(0, log[4] - amount);
                    IF log[3] - n2 <= p_admitted THEN log[5] := greatest(0, log[5] - amount); END IF;
                END IF;
            END CASE;
        END IF;
        states := states || log;
        p := p + 2 + n;
        b := b + 8;
    END LOOP;
    RETURN states;
END $$;

CREATE FUNCTION tollgate.hold(p_policies text[], p_subjects text[], p_now bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- The condition is evaluated on the locked row, and leaves it as it is.
    INSERT INTO "tollgate".entries AS e (policy, subject, shape, revision, at_us, next_stamp, states, absent_at_us)
    SELECT l.policy, l.subject, '', greatest("tollgate".now_us(p_now), 1), 0, 0, '{}', 0
      FROM unnest(p_policies, p_subjects) l(policy, subject)
        ON CONFLICT (policy, subject) DO UPDATE SET revision = e.revision WHERE false;
    RETURN ARRAY(
        SELECT (SELECT CASE WHEN e.shape = '' THEN -e.revision ELSE e.revision END
                  FROM "tollgate".entries e WHERE e.policy = l.policy AND e.subject = l.subject)
          FROM unnest(p_policies, p_subjects) l(policy, subject));
END $$;

CREATE FUNCTION tollgate.is_shut(p_closed bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[]) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_closed) / 2 LOOP
        IF p_now < p_closed[2 * i] AND p_amounts[p_numbers[8 * p_closed[2 * i - 1] + 2]] > 0 THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END $$;

CREATE FUNCTION tollgate.last_expiry(p_states bigint[]) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    latest bigint := 0;
    p      int := 1;
    n      int;
BEGIN
    WHILE p < cardinality(p_states) LOOP
        n := p_states[p + 1];
        IF p_states[p] = 3 AND n > 0 THEN latest := greatest(latest, p_states[p + n]); END IF;
        p := p + 2 + n;
    END LOOP;
    RETURN latest;
END $$;

CREATE FUNCTION tollgate.look(p_policy text, p_subject text, p_id text, p_now bigint) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    row    "tollgate".entries := "tollgate".find(p_policy, p_subject, false);
    result "tollgate".answer := "tollgate".as_read(row, "tollgate".now_us(p_now));
BEGIN
    IF row.settled_runs > 0 THEN
        SELECT array_agg(u.number ORDER BY s.first, u.k) INTO result.settled
          FROM "tollgate".settled s, unnest(ARRAY[s.first, s.last, s.admitted_us]) WITH ORDINALITY u(number, k)
         WHERE s.policy = p_policy AND s.subject = p_subject;
    END IF;
    IF p_id IS NOT NULL THEN
        SELECT ARRAY[i.at_us, i.stamp, i.digest, i.expires_at_us] || i.others INTO result.given
          FROM "tollgate".ids i WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id;
    END IF;
    RETURN result;
END $$;

CREATE FUNCTION tollgate.lost_slots(p_states bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[], p_stamp bigint) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
END $$;

CREATE FUNCTION tollgate.now_us(p_now bigint) RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
$$;

CREATE FUNCTION tollgate.place_slot(p_held bigint[], p_slot bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    held   bigint[] := '{}';
    placed boolean := false;
    i      int := 1;
BEGIN
    WHILE i < cardinality(p_held) LOOP
        IF p_held[i] <> p_slot[1] THEN
            IF NOT placed AND p_slot[2] < p_held[i + 1] THEN
                held := held || p_slot;
                placed := true;
            END IF;
            held := held || p_held[i : i + 2];
        END IF;
        i := i + 3;
    END LOOP;
    RETURN CASE WHEN placed THEN held ELSE held || p_slot END;
END $$;

CREATE FUNCTION tollgate.remember(p_policy text, p_subject text, p_id text, p_known bigint, p_at bigint, p_stamp bigint, p_digest bigint, p_expires bigint, p_others bigint[] DEFAULT NULL::bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO "tollgate".ids AS i VALUES (p_policy, p_subject, p_id, p_at, p_stamp, p_digest, p_expires, p_others)
    ON CONFLICT (policy, subject, id) DO UPDATE
       SET at_us = excluded.at_us, stamp = excluded.stamp, digest = excluded.digest, expires_at_us = excluded.expires_at_us,
           others = excluded.others
     WHERE i.stamp = p_known;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another ask with the id % was charged meanwhile', p_id USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

CREATE FUNCTION tollgate.renew_slots(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    tries_max CONSTANT int := 8;
    result    "tollgate".answer;
    row       "tollgate".entries;
    taken     "tollgate".taken;
    v_now     bigint;
    v_states  bigint[];
    v_none    bigint[] := array_fill(0::bigint, ARRAY[cardinality(p_amounts)]);
    v_held    bigint[];
    v_renewed bigint[];
    v_first   bigint;
    p         int;
    b         int;
    n         int;
BEGIN
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape THEN RETURN result; END IF;
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, v_none, p_stamp, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_states := '{}';
        v_first := NULL;
        p := 1;
        b := 0;
        WHILE b < cardinality(p_numbers) LOOP
            n := taken.states[p + 1];
            v_held := taken.states[p : p + 1 + n];
            IF p_numbers[b + 1] = 5 AND p_amounts[p_numbers[b + 2]] > 0 THEN
                v_renewed := NULL;
                FOR i IN 1 .. n / 3 LOOP
                    IF v_held[3 * i] = p_stamp THEN
                        v_renewed := ARRAY[p_stamp, greatest(v_held[3 * i + 1], v_now + p_numbers[b + 4]), v_held[3 * i + 2]];
                    END IF;
                END LOOP;
                IF v_renewed IS NULL THEN RETURN result; END IF;
                v_first := least(v_first, v_renewed[2]);
                v_held := ARRAY[3, n]::bigint[] || "tollgate".place_slot(v_held[3:], v_renewed);
            END IF;
            v_states := v_states || v_held;
            p := p + 2 + n;
            b := b + 8;
        END LOOP;
        IF v_first IS NULL THEN RETURN result; END IF;
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        UPDATE "tollgate".entries e
           SET revision = e.revision + 1, at_us = v_now, states = v_states,
               -- No slot lives longer than one that was just renewed, or it did so before.
               absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, "tollgate".last_expiry(v_states))
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        IF FOUND THEN
            result.did := 'renewed';
            result.stamp := v_first;
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $$;

CREATE FUNCTION tollgate.settle(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[], p_stamp bigint, p_admitted bigint, p_admitted_ends bigint[], p_same_numbers boolean, p_id text, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    permit_ttl      CONSTANT bigint := 3600000000;
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    tries_max       CONSTANT int := 8;
    result     "tollgate".answer;
    row        "tollgate".entries;
    taken      "tollgate".taken;
    v_run      record;
    v_now      bigint;
    v_extra    bigint[];
    v_kept     bigint[];
    v_changed  bigint[];
    v_wanted   bigint[];
    v_too_old  boolean;
    v_before   bigint;    -- the first stamp of the run that ends just before this one
    v_last     bigint;
    v_after    boolean;
    v_admitted bigint;
    v_expired  bigint[];
    v_runs     int;
BEGIN
    SELECT array_agg(greatest(w - e, 0) ORDER BY k), array_agg(greatest(w, e) ORDER BY k) INTO v_extra, v_kept
      FROM unnest(p_estimate, p_wanted) WITH ORDINALITY u(e, w, k);
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        v_too_old := p_stamp <= row.settled_floor;
        IF row.revision IS NULL OR row.shape <> p_shape OR p_admitted + permit_ttl <= v_now
            OR v_too_old AND v_kept = p_estimate AND row.settled_runs = 0 THEN
            RETURN result;
        END IF;
        v_before := NULL;
        v_last := p_stamp;
        v_after := false;
        v_admitted := p_admitted;
        IF row.settled_runs > 0 THEN
            FOR v_run IN
                SELECT s.first, s.last, s.admitted_us FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first <= p_stamp + 1
                 ORDER BY s.first DESC LIMIT 2
            LOOP
                IF v_run.first > p_stamp THEN
                    v_after := true;
                    v_last := v_run.last;
                    v_admitted := greatest(v_admitted, v_run.admitted_us);
                    CONTINUE;
                END IF;
                IF p_stamp <= v_run.last THEN
                    result.settled := ARRAY[v_run.first, v_run.last, v_run.admitted_us];
                    RETURN result;
                END IF;
                IF v_run.last + 1 = p_stamp THEN
                    v_before := v_run.first;
                    v_admitted := greatest(v_admitted, v_run.admitted_us);
                END IF;
                EXIT;
            END LOOP;
        END IF;
        IF v_too_old AND v_kept = p_estimate THEN RETURN result; END IF;
        -- First what the call took beyond its estimate, then what it did not take; each touches other units.
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, v_extra, row.next_stamp, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_changed := CASE WHEN v_now < row.changed[2] + permit_ttl THEN row.changed ELSE '{}' END;
        v_wanted := CASE WHEN p_same_numbers AND NOT v_too_old AND coalesce(v_changed[1] <= p_stamp, true)
                         THEN p_wanted ELSE v_kept END;
        taken.states := "tollgate".give_back(
            taken.states, v_now, p_numbers, p_estimate, v_wanted, p_stamp, p_admitted, p_admitted_ends);
        v_runs := row.settled_runs + 1 - (v_before IS NOT NULL)::int - v_after::int;
        v_expired := NULL;
        IF v_runs > row.settled_runs AND row.settled_runs > 1 THEN
            -- A run more takes up to two that are over with it. Later stamps were not admitted earlier.
            SELECT array_agg(o.first) INTO v_expired FROM (
                SELECT s.first, s.admitted_us FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 2) o
             WHERE o.admitted_us + permit_ttl <= v_now;
            v_runs := v_runs - coalesce(cardinality(v_expired), 0);
        END IF;
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        UPDATE "tollgate".entries e
           SET revision = e.revision + 1, at_us = v_now, states = taken.states, settled_runs = v_runs, changed = v_changed,
               absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, p_admitted + permit_ttl)
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        CONTINUE WHEN NOT FOUND;
        IF v_before IS NOT NULL THEN
            IF v_after THEN
                DELETE FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = p_stamp + 1;
            END IF;
            UPDATE "tollgate".settled s SET last = v_last, admitted_us = v_admitted
             WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = v_before;
        ELSIF v_after THEN
            UPDATE "tollgate".settled s SET first = p_stamp, admitted_us = v_admitted
             WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = p_stamp + 1;
        ELSE
            INSERT INTO "tollgate".settled VALUES (p_policy, p_subject, p_stamp, p_stamp, p_admitted);
            IF v_expired IS NOT NULL THEN
                DELETE FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = ANY (v_expired);
            END IF;
        END IF;
        IF v_runs > runs_max THEN
            SELECT s.first, s.last, s.admitted_us INTO v_run FROM "tollgate".settled s
             WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 1;
            -- What was settled just now must be known if it comes again.
            IF v_run.admitted_us + abandoned_after <= v_now AND NOT p_stamp BETWEEN v_run.first AND v_run.last THEN
                DELETE FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = v_run.first;
                UPDATE "tollgate".entries e
                   SET settled_runs = v_runs - 1, settled_floor = greatest(e.settled_floor, v_run.last)
                 WHERE e.policy = p_policy AND e.subject = p_subject;
            END IF;
        END IF;
        IF p_id IS NOT NULL THEN
            DELETE FROM "tollgate".ids i
             WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id AND i.stamp = p_stamp;
        END IF;
        result.did := 'settled';
        RETURN result;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $$;

CREATE FUNCTION tollgate.spend(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_refundable boolean, p_id text, p_digest bigint, p_id_ttl bigint, p_now bigint, p_lock_timeout text, p_decide boolean) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    tries_max       CONSTANT int := 8;
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    taken        "tollgate".taken;
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
              FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject;
        ELSE
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us, e.settled_runs
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_runs
              FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
        END IF;
        -- After the wait, and never before the row was last written.
        v_clock := coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);
        v_now := greatest(v_clock, v_at);
        IF NOT v_same THEN RETURN ARRAY[3, v_clock, 0, v_at, v_next]; END IF;
        -- For this ask, unless it was let through before.
        v_shut := p_decide AND CASE WHEN v_closed <> '{}' THEN "tollgate".is_shut(v_closed, v_now, p_numbers, p_amounts) END;
        IF p_id IS NOT NULL THEN
            SELECT ARRAY[i.at_us, i.stamp, i.digest, i.expires_at_us] INTO v_given
              FROM "tollgate".ids i WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id;
            IF v_now < v_given[4]
                -- A reset voids what was given before it.
                AND NOT (v_runs > 0 AND EXISTS (
                    SELECT FROM "tollgate".settled s
                     WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = 0 AND v_given[2] <= s.last))
                AND NOT (p_decide AND v_given[3] = p_digest
                    AND "tollgate".lost_slots(v_states, v_now, p_numbers, p_amounts, v_given[2]))
            THEN
                RETURN ARRAY[0, v_clock, 0, coalesce(v_at, -1), coalesce(v_next, 0), coalesce(cardinality(v_closed), 0)]
                    || v_closed || 4::bigint || v_given || v_states;
            END IF;
        END IF;
        taken := NULL;
        IF v_shut IS NOT TRUE THEN
            taken := "tollgate".take(
                v_states, coalesce(v_at, v_now), v_now, p_numbers, p_amounts, coalesce(v_next, greatest(v_now, 1)), p_decide,
                p_refundable);
        END IF;
        IF taken.states IS NULL THEN
            IF v_at IS NULL THEN RETURN ARRAY[0, v_clock, 0, -1, 0, 0, 0]; END IF;
            RETURN ARRAY[0, v_clock, 0, v_at, v_next, cardinality(v_closed)] || v_closed || 0::bigint || v_states;
        END IF;
        -- No permit is given that could not be settled: old runs make room only once they may be abandoned.
        IF v_runs >= runs_max AND p_refundable AND p_decide THEN
            IF (SELECT v_now < s.admitted_us + abandoned_after FROM "tollgate".settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 1)
            THEN
                RETURN ARRAY[4, v_clock];
            END IF;
        END IF;
        v_next := coalesce(v_next, greatest(v_now, 1));
        v_absent := greatest(taken.idle_at_us, v_next + 1, v_absent);
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        IF v_revision IS NULL THEN
            INSERT INTO "tollgate".entries (policy, subject, shape, revision, at_us, next_stamp, states, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next + 1, taken.states, v_absent)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE "tollgate".entries e
               SET revision = v_revision + 1, at_us = v_now, next_stamp = v_next + 1, states = taken.states,
                   absent_at_us = v_absent
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = v_revision;
        END IF;
        IF FOUND THEN
            IF p_id IS NOT NULL THEN
                PERFORM "tollgate".remember(
                    p_policy, p_subject, p_id, v_given[2], v_now, v_next, p_digest, v_now + p_id_ttl);
            END IF;
            RETURN ARRAY[1, v_clock, v_next, v_now, v_next + 1, coalesce(cardinality(v_closed), 0)]
                || v_closed || 0::bigint || taken.states;
        END IF;
    END LOOP;
    RETURN ARRAY[2, v_clock];
END $$;

CREATE FUNCTION tollgate.spend_all(p_policies text[], p_subjects text[], p_shapes bytea[], p_numbers bigint[], p_numbers_each integer[], p_amounts bigint[], p_amounts_each integer[], p_refundable boolean[], p_ids text[], p_digests bigint[], p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text) RETURNS SETOF bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    n int := 1;
    a int := 1;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    FOR i IN 1 .. cardinality(p_policies) LOOP
        RETURN NEXT "tollgate".spend(
            p_policies[i], p_subjects[i], p_shapes[i], p_numbers[n : n + p_numbers_each[i] - 1],
            p_amounts[a : a + p_amounts_each[i] - 1], p_refundable[i], p_ids[i], p_digests[i], p_id_ttls[i], p_nows[i], NULL,
            p_decide[i]);
        n := n + p_numbers_each[i];
        a := a + p_amounts_each[i];
    END LOOP;
END $$;

CREATE FUNCTION tollgate.spend_joint(p_policies text[], p_subjects text[], p_shapes bytea[], p_charges integer[], p_rows integer[], p_numbers bigint[], p_numbers_at integer[], p_amounts bigint[], p_amounts_at integer[], p_refundable boolean[], p_ids text[], p_digests bigint[], p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text) RETURNS SETOF bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    -- Of each row.
    v_read     bigint[];                   -- its revision
    v_ats      bigint[];
    v_nexts    bigint[];
    v_states   "tollgate".taken[];
    v_closed   "tollgate".taken[];
    v_others   boolean[];                  -- whether it has other numbers
    v_full     boolean[];                  -- whether it may have too many permits
    v_dirty    boolean[];
    v_needed   boolean[];                  -- whether it has to be locked though nothing is charged to it
    -- Of each ask.
    v_pending  boolean[];                  -- not refused by the unlocked rows
    v_charged  boolean[];
    v_known    bigint[];                   -- the stamp that its id had before
    v_given    "tollgate".taken[];           -- with an id: time and stamp of each charge, as `states`
    -- Of each charge.
    v_takes    "tollgate".taken[];           -- of the ask in turn
    v_replies  "tollgate".taken[];           -- as `states`
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
        SELECT array_agg(e.revision), array_agg(e.at_us), array_agg(e.next_stamp), array_agg(ROW(e.states, 0)::"tollgate".taken),
               array_agg(ROW(e.closed, 0)::"tollgate".taken), array_agg(e.shape <> l.shape),
               array_agg(e.settled_runs >= runs_max), bool_or(e.shape <> l.shape), bool_or(e.closed <> '{}'),
               bool_or(e.settled_runs >= runs_max)
          INTO v_read, v_ats, v_nexts, v_states, v_closed, v_others, v_full, v_is_other, v_is_shut, v_is_full
          FROM unnest(p_policies, p_subjects, p_shapes) l(policy, subject, shape) LEFT JOIN LATERAL (
               SELECT * FROM "tollgate".entries r
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
                SELECT d.stamp, d.expires_at_us INTO v_stamp, v_expires FROM "tollgate".ids d
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
                v_takes[j] := "tollgate".take(
                    (v_states[k]).states, coalesce(v_ats[k], v_now), v_now,
                    p_numbers[p_numbers_at[c + j] : p_numbers_at[c + j + 1] - 1],
                    p_amounts[p_amounts_at[c + j] : p_amounts_at[c + j + 1] - 1],
                    coalesce(v_nexts[k], greatest(v_now, 1)), p_decide[i], p_refundable[i]);
                IF (v_takes[j]).states IS NULL THEN
                    v_code := 0;
                ELSIF v_is_shut OR v_is_full THEN
                    IF (CASE WHEN p_decide[i] AND (v_closed[k]).states <> '{}' THEN "tollgate".is_shut(
                            (v_closed[k]).states, v_now, p_numbers[p_numbers_at[c + j] : p_numbers_at[c + j + 1] - 1],
                            p_amounts[p_amounts_at[c + j] : p_amounts_at[c + j + 1] - 1]) END)
                    THEN
                        v_code := 0;
                    -- No permit is given that could not be settled: old runs make room only once they may be abandoned.
                    ELSIF v_full[k] AND p_refundable[i] AND p_decide[i] AND (
                        SELECT v_now < s.admitted_us + abandoned_after FROM "tollgate".settled s
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
                        ARRAY[1, v_clock, v_stamp, v_now, v_stamp + 1] || v_shut || (v_takes[j]).states, 0)::"tollgate".taken;
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
                    v_given[i] := ROW(v_got, 0)::"tollgate".taken;
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
                    END, 0)::"tollgate".taken;
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
                   SELECT r.revision FROM "tollgate".entries r
                    WHERE r.policy = l.policy AND r.subject = l.subject FOR UPDATE) e ON true
             WHERE l.is_dirty OR l.is_needed;
            -- To insert a row now would be to lock out of order.
            IF v_is_gone THEN
                RETURN QUERY SELECT ARRAY[3, v_clock] FROM unnest(p_rows);
                RETURN;
            END IF;
        ELSE
            SELECT bool_and(coalesce(h.held = h.revision, h.held < 0)) INTO v_is_same FROM (
                SELECT unnest("tollgate".hold(array_agg(l.policy), array_agg(l.subject), p_nows[1])) AS held,
                       unnest(array_agg(l.revision)) AS revision
                  FROM unnest(p_policies, p_subjects, v_read, v_dirty, v_needed) l(policy, subject, revision, is_dirty, is_needed)
                 WHERE l.is_dirty OR l.is_needed) h;
        END IF;
        EXIT WHEN v_is_same;
    END LOOP;
    IF true = ANY (v_dirty) THEN
        UPDATE "tollgate".entries e
           SET shape = l.shape, revision = e.revision + 1, at_us = l.at_us, next_stamp = l.next_stamp, states = l.states,
               absent_at_us = greatest(l.idle_at_us, l.next_stamp, e.absent_at_us)
          FROM unnest(p_policies, p_subjects, p_shapes, v_dirty, v_ats, v_nexts, v_states)
               l(policy, subject, shape, is_dirty, at_us, next_stamp, states, idle_at_us)
         WHERE l.is_dirty AND e.policy = l.policy AND e.subject = l.subject;
    END IF;
    IF v_is_same IS NOT NULL AND array_position(v_read, NULL) IS NOT NULL THEN
        DELETE FROM "tollgate".entries e USING unnest(p_policies, p_subjects) l(policy, subject)
         WHERE e.policy = l.policy AND e.subject = l.subject AND e.shape = '';
    END IF;
    IF v_given IS NOT NULL THEN
        c := 1;
        FOR i IN 1 .. cardinality(p_charges) LOOP
            IF v_charged[i] AND p_ids[i] IS NOT NULL THEN
                v_got := (v_given[i]).states;
                PERFORM "tollgate".remember(
                    p_policies[p_rows[c]], p_subjects[p_rows[c]], p_ids[i], v_known[i], v_got[1], v_got[2], p_digests[i],
                    v_got[1] + p_id_ttls[i], CASE WHEN p_charges[i] > 1 THEN v_got[3 :] END);
            END IF;
            c := c + p_charges[i];
        END LOOP;
    END IF;
    RETURN QUERY SELECT r.states FROM unnest(v_replies) r;
END $$;

CREATE FUNCTION tollgate.swap(p_policy text, p_subject text, p_revision bigint, p_shape bytea, p_at bigint, p_next_stamp bigint, p_states bigint[], p_settled bigint[], p_settled_floor bigint, p_closed bigint[], p_changed bigint[], p_absent_at bigint, p_id text, p_known bigint, p_given bigint[], p_lock_timeout text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    IF p_revision IS NULL THEN
        INSERT INTO "tollgate".entries
            (policy, subject, shape, revision, at_us, next_stamp, states, settled_runs, settled_floor, closed, changed, absent_at_us)
        VALUES (p_policy, p_subject, p_shape, p_at, p_at, p_next_stamp, p_states, cardinality(p_settled) / 3,
                p_settled_floor, p_closed, p_changed, p_absent_at)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE "tollgate".entries e
           SET shape = p_shape, revision = p_revision + 1, at_us = p_at, next_stamp = p_next_stamp, states = p_states,
               settled_runs = cardinality(p_settled) / 3, settled_floor = p_settled_floor, closed = p_closed,
               changed = p_changed, absent_at_us = p_absent_at
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = p_revision;
    END IF;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM "tollgate".settled s
     WHERE s.policy = p_policy AND s.subject = p_subject
       AND (s.first, s.last, s.admitted_us) NOT IN (
           SELECT p_settled[3 * k - 2], p_settled[3 * k - 1], p_settled[3 * k]
             FROM generate_series(1, cardinality(p_settled) / 3) k);
    INSERT INTO "tollgate".settled
    SELECT p_policy, p_subject, p_settled[3 * k - 2], p_settled[3 * k - 1], p_settled[3 * k]
      FROM generate_series(1, cardinality(p_settled) / 3) k
    ON CONFLICT DO NOTHING;
    IF p_given IS NOT NULL THEN
        PERFORM "tollgate".remember(p_policy, p_subject, p_id, p_known, p_given[1], p_given[2], p_given[3], p_given[4]);
    ELSIF p_id IS NOT NULL THEN
        DELETE FROM "tollgate".ids i
         WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id AND i.stamp = p_known;
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION tollgate.take(p_states bigint[], p_at bigint, p_now bigint, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_decide boolean, p_refundable boolean) RETURNS tollgate.taken
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    number_max  CONSTANT bigint := 9007199254740991;
    entries_max CONSTANT int := 1024;
    lows_max    CONSTANT int := 64;
    -- A window of a calendar is never longer.
    page_max    CONSTANT bigint := 32::bigint * 86400 * 1000000;
    result "tollgate".taken;
    states bigint[] := '{}';
    log    bigint[];
    idle   bigint := 0;
    p      int := 1;      -- where the state of this limit begins
    b      int := 0;      -- the offset of the numbers of this limit
    n      int;
    i      int;
    k      int;
    kind   bigint;
    cost   bigint;
    n1     bigint;
    n2     bigint;
    n3     bigint;
    used   bigint;
    amount bigint;
    filed  bigint;
    page   bigint;
    late   bigint;
    start  bigint;
    placed boolean;
BEGIN
    WHILE b < cardinality(p_numbers) LOOP
        kind := p_numbers[b + 1];
        cost := p_amounts[p_numbers[b + 2]];
        -- The server sets up every expression again in each transaction, so the common rules have few.
        IF kind = 1 THEN
            -- Capacity, fine units per token, fine units per microsecond.
            used := greatest(0, p_states[p + 2] - p_numbers[b + 5]
                * least(greatest(p_now - p_at, 0), p_states[p + 2] / p_numbers[b + 5] + 1));
            IF p_decide AND cost > 0
                AND (cost > p_numbers[b + 3] / p_numbers[b + 4] OR used + cost * p_numbers[b + 4] > p_numbers[b + 3])
            THEN
                RETURN NULL;
            END IF;
            amount := CASE WHEN cost > number_max / p_numbers[b + 4] THEN number_max
                           ELSE least(number_max, used + cost * p_numbers[b + 4]) END;
            idle := greatest(idle, p_now + (amount + p_numbers[b + 5] - 1) / p_numbers[b + 5]);
            IF used = 0 OR p_states[p + 1] = 1 THEN
                -- There is no record of lows, or it is over: it begins with a charge that may be given back.
                states := states || CASE WHEN p_refundable AND cost > 0 THEN ARRAY[0, 5, amount, 0, 0, p_stamp, 0]
                                         ELSE ARRAY[0, 1, amount] END;
            ELSIF cost = 0 THEN
                states := states || ARRAY[0, p_states[p + 1], amount] || p_states[p + 3 : p + 1 + p_states[p + 1]];
            ELSE
                -- Lows that are not below this one say nothing any more.
                i := p + 1 + p_states[p + 1];
                late := p_states[p + 3];
                WHILE i > p + 4 AND late >= used LOOP
                    late := late - p_states[i];
                    i := i - 2;
                END LOOP;
                n := p + 4 + 2 * lows_max;
                IF i > p + 4 AND p_states[i - 1] = p_stamp THEN
                    states := states || ARRAY[0, i - p - 1, amount, late] || p_states[p + 4 : i];
                ELSIF i < n THEN
                    states := states || ARRAY[0, i - p + 1, amount, used, least(p_states[p + 4], used - late)]
                        || p_states[p + 5 : i] || ARRAY[p_stamp, used - late];
                ELSE
                    -- Full: the neighbours with the smallest rise between them, the earliest of several, become the later
                    -- stamp and the lower low, so that permits between them get less back and none gets more.
                    filed := p_states[p + 4];
                    IF used - late >= filed THEN
                        -- Nine rises at a time, since an expression costs more than what it computes.
                        filed := number_max + 1;
                        FOR e IN 0 .. 6 LOOP
                            k := p + 8 + 18 * e;
                            start := least(
                                p_states[k], p_states[k + 2], p_states[k + 4], p_states[k + 6], p_states[k + 8],
                                p_states[k + 10], p_states[k + 12], p_states[k + 14], p_states[k + 16]);
                            IF start < filed THEN
                                filed := start;
                                i := k;
                            END IF;
                        END LOOP;
                    END IF;
                    IF used - late < filed THEN
                        states := states || ARRAY[0, n - p - 1, amount, late, filed] || p_states[p + 5 : n - 2]
                            || ARRAY[p_stamp, p_states[n]];
                    ELSE
                        WHILE p_states[i] > filed LOOP i := i + 2; END LOOP;
                        IF i = n THEN late := late - filed; ELSE p_states[i + 2] := p_states[i + 2] + filed; END IF;
                        p_states[i] := p_states[i - 2];
                        states := states || ARRAY[0, n - p - 1, amount, used, filed] || p_states[p + 5 : i - 4]
                            || p_states[i - 1 : n] || ARRAY[p_stamp, used - late];
                    END IF;
                END IF;
            END IF;
            p := p + 2 + coalesce(p_states[p + 1], 1);
            b := b + 8;
            CONTINUE;
        END IF;
        n1 := p_numbers[b + 3];
        n2 := p_numbers[b + 4];
        n3 := p_numbers[b + 5];
        n := coalesce(p_states[p + 1], 0);
        CASE kind
        WHEN 3 THEN
            -- Limit, window, slot.
            used := coalesce(p_states[p + 2], 0);
            i := p + 3;
            WHILE i < p + 2 + n AND p_states[i] + n2 <= p_now LOOP
                used := used - p_states[i + 1];
                i := i + 2;
            END LOOP;
            log := coalesce(p_states[i : p + 1 + n], '{}');
            IF cost > 0 THEN
                IF p_decide AND used + cost > n1 THEN RETURN NULL; END IF;
                amount := least(cost, number_max - used);
                IF amount > 0 THEN
                    filed := CASE WHEN n3 = 0 THEN p_now ELSE (p_now / n3 + 1) * n3 END;
                    used := used + amount;
                    i := cardinality(log);
                    IF i > 0 AND filed <= log[i - 1] THEN
                        log[i] := log[i] + amount;
                    ELSIF i >= 2 * entries_max THEN
                        -- A full log merges its newest entries to the later time, so that nothing leaves early.
                        log[i - 1] := filed;
                        log[i] := log[i] + amount;
                    ELSE
                        log := log || ARRAY[filed, amount];
                    END IF;
                END IF;
            END IF;
            i := cardinality(log);
            states := states || ARRAY[1, 1 + i, used] || log;
            IF i > 0 THEN idle := greatest(idle, log[i - 1] + n2); END IF;
        WHEN 2 THEN
            -- Capacity, refill, period.
            used := coalesce(p_states[p + 2], 0);
            amount := p_now / n3 - p_at / n3;
            IF amount > 0 THEN
                IF amount > used / n2 THEN used := 0; ELSE used := used - n2 * amount; END IF;
            END IF;
            IF cost > 0 THEN
                IF p_decide AND used + cost > n1 THEN RETURN NULL; END IF;
                used := least(number_max, used + cost);
            END IF;
            states := states || ARRAY[0, 1, used];
            idle := greatest(idle, least(number_max, (p_now / n3 + (used + n2 - 1) / n2)::numeric * n3)::bigint);
        WHEN 4 THEN
            -- Limit, margin.
            page := coalesce(p_states[p + 2], 0);
            used := coalesce(p_states[p + 3], 0);
            late := coalesce(p_states[p + 4], 0);
            IF p_now >= page THEN
                IF p_numbers[b + 6] <= p_now AND p_now < p_numbers[b + 7] THEN
                    start := p_numbers[b + 6]; filed := p_numbers[b + 7];
                ELSIF p_numbers[b + 7] <= p_now AND p_now < p_numbers[b + 8] THEN
                    start := p_numbers[b + 7]; filed := p_numbers[b + 8];
                ELSE
                    RETURN NULL;
                END IF;
                -- What was late in the page before counts in this one.
                used := CASE WHEN start = page THEN late ELSE 0 END;
                late := 0;
                page := filed;
            END IF;
            IF cost > 0 THEN
                IF p_decide AND used + cost > n1 THEN RETURN NULL; END IF;
                used := least(number_max, used + cost);
                IF page - n2 <= p_now THEN late := least(number_max, late + cost); END IF;
            END IF;
            states := states || ARRAY[2, 3, page, used, late];
            idle := greatest(idle, CASE WHEN late > 0 THEN page + page_max WHEN used > 0 THEN page ELSE 0 END);
        WHEN 5 THEN
            -- Limit, time to live. The new slot goes behind those that expire no later.
            used := 0;
            log := '{}';
            placed := NOT p_decide OR cost = 0;
            i := p + 2;
            WHILE i < p + 2 + n LOOP
                IF p_now < p_states[i + 1] THEN
                    IF NOT placed AND p_now + n2 < p_states[i + 1] THEN
                        log := log || ARRAY[p_stamp, p_now + n2, cost];
                        placed := true;
                    END IF;
                    used := used + p_states[i + 2];
                    log := log || p_states[i : i + 2];
                END IF;
                i := i + 3;
            END LOOP;
            IF p_decide AND cost > 0 AND used + cost > n1 THEN RETURN NULL; END IF;
            IF NOT placed THEN log := log || ARRAY[p_stamp, p_now + n2, cost]; END IF;
            i := cardinality(log);
            states := states || ARRAY[3, i] || log;
            IF i > 0 THEN idle := greatest(idle, log[i - 1]); END IF;
        END CASE;
        p := p + 2 + n;
        b := b + 8;
    END LOOP;
    result.states := states;
    result.idle_at_us := least(idle, number_max);
    RETURN result;
END $$;

CREATE TABLE tollgate.audit (
    number bigint NOT NULL,
    at_us bigint NOT NULL,
    policy text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    outcome text NOT NULL COLLATE pg_catalog."C",
    degraded boolean NOT NULL,
    limit_name text COLLATE pg_catalog."C",
    unit text COLLATE pg_catalog."C",
    asked bigint,
    retry_after_us bigint,
    by_key text COLLATE pg_catalog."C",
    charges jsonb
);

ALTER TABLE tollgate.audit ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tollgate.audit_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tollgate.ids (
    policy text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    at_us bigint NOT NULL,
    stamp bigint NOT NULL,
    digest bigint NOT NULL,
    expires_at_us bigint NOT NULL,
    others bigint[]
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE tollgate.migrations (
    version integer NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tollgate.overrides (
    only_one boolean DEFAULT true NOT NULL,
    version bigint NOT NULL,
    document text NOT NULL,
    CONSTRAINT overrides_only_one_check CHECK (only_one)
);

CREATE TABLE tollgate.secrets (
    only_one boolean DEFAULT true NOT NULL,
    permit_key bytea NOT NULL,
    CONSTRAINT secrets_only_one_check CHECK (only_one)
);

CREATE TABLE tollgate.settled (
    policy text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    first bigint NOT NULL,
    last bigint NOT NULL,
    admitted_us bigint NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

INSERT INTO tollgate.audit OVERRIDING SYSTEM VALUE VALUES (1, 1000000, 'api', 'a\0b', 'denied', false, 'burst', 'requests', 3, 1500001, NULL, NULL);
INSERT INTO tollgate.audit OVERRIDING SYSTEM VALUE VALUES (2, 2000000, 'api', 'c', 'denied', false, 'burst', 'requests', 3, 1500001, 'ops', NULL);

INSERT INTO tollgate.entries VALUES ('bucket', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990896000005, 1749990906000000, 1749990896000004, '{0,11,40000000,30000000,0,1749990896000000,0,1749990896000001,8765433,1749990896000002,10000000,1749990896000003,11234567}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('interval', 's', '\x0001046f6e6c79087265717565737473010505808ece1c000000', 1749990896000005, 1749990906000000, 1749990896000004, '{0,1,1}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('exact', 's', '\x0001046f6e6c790872657175657374730205808ece1c00000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,7,5,1749990896000000,1,1749990897234567,3,1749990906000000,1}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('resolution', 's', '\x0001046f6e6c790872657175657374730232808ece1c0106000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,5,5,1749990900000000,4,1749990910000000,1}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('wide', 's', '\x0001046f6e6c7908726571756573747302a09c01808ece1c0140000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,7,5,1749990896250000,1,1749990898125000,3,1749990906562500,1}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('calendar', 's', '\x0001046f6e6c7908726571756573747303190013416d65726963612f4c6f735f416e67656c6573000000', 1749990896000005, 1749990906000000, 1749990896000004, '{2,3,1749990960000000,1,0}', 0, '{}', '{}', 1749994497234567, 1);
INSERT INTO tollgate.entries VALUES ('late', 's', '\x0001046f6e6c7908726571756573747303190013416d65726963612f4c6f735f416e67656c6573000080dac409', 1749990896000005, 1749990906000000, 1749990896000004, '{2,3,1749990960000000,5,0}', 0, '{}', '{}', 1752755700000000, 1);
INSERT INTO tollgate.entries VALUES ('changed', 's', '\x0001046f6e6c79087265717565737473003c3c80c8ceb40d000000', 1749990914000001, 1749990936000000, 1749990914000002, '{0,5,1478000000,0,0,1749990914000001,0}', 0, '{}', '{1749990914000001,1749990914000000}', 1749994514000000, 0);
INSERT INTO tollgate.entries VALUES ('slots', 's', '\x0001046f6e6c790872657175657374730405808ece1c000000', 1749990906000004, 1749990907000000, 1749990906000003, '{3,6,1749990906000002,1749990967000000,1,1749990906000000,1749990967000000,2}', 0, '{}', '{}', 1749994506000000, 1);
INSERT INTO tollgate.entries VALUES ('closed', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990907000001, 1749990907000000, 1749990907000001, '{0,5,10000000,0,0,1749990907000000,0}', 0, '{0,1749992707000000}', '{}', 1749992707000000, 0);
INSERT INTO tollgate.entries VALUES ('ids', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990936000003, 1749990941000000, 1749990936000003, '{0,7,35000000,10000000,0,1749990936000000,0,1749990936000002,10000000}', 0, '{}', '{}', 1749994536000000, 1);
INSERT INTO tollgate.entries VALUES ('many', 's', '\x00030372706d0872657175657374730205808ece1c000000000374706d06746f6b656e730090a10f90a10f808ece1c000000046a6f6273046a6f6273040380c6868f01000000', 1749990941000002, 1749990942000000, 1749990941000002, '{1,5,2,1749990941000000,1,1749990942000000,1,0,5,900000,0,0,1749990941000001,0,3,3,1749990941000001,1749991242000000,1}', 0, '{}', '{}', 1749994541000000, 1);
INSERT INTO tollgate.entries VALUES ('settled', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990907000011, 1749990914000000, 1749990907000007, '{0,17,193000000,194000000,0,1749990907000000,0,1749990907000001,39000000,1749990907000002,29000000,1749990907000003,29000000,1749990907000004,29000000,1749990907000005,39000000,1749990907000006,29000000}', 0, '{}', '{}', 1749994513000000, 2);
INSERT INTO tollgate.entries VALUES ('reset', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990914000001, 1749990914000000, 1749990914000002, '{0,1,0}', 0, '{}', '{}', 1749994514000000, 1);

INSERT INTO tollgate.ids VALUES ('reset', 's', 'before', 1749990914000000, 1749990914000000, 7666314011573216, 1749991034000000, NULL);
INSERT INTO tollgate.ids VALUES ('ids', 's', 'one', 1749990936000000, 1749990936000000, 4913447600901352, 1749991056000000, NULL);
INSERT INTO tollgate.ids VALUES ('ids', 's', 'back\\slash\0', 1749990936000000, 1749990936000002, 1973431184548138, 1749991056000000, NULL);
INSERT INTO tollgate.ids VALUES ('many', 's', 'first', 1749990941000000, 1749990941000000, 1493724333497047, 1749991061000000, NULL);
INSERT INTO tollgate.ids VALUES ('many', 's', 'second', 1749990942000000, 1749990941000001, 1493724333497047, 1749991062000000, NULL);

INSERT INTO tollgate.migrations VALUES (1, '2025-11-15 00:00:00+00');
INSERT INTO tollgate.migrations VALUES (2, '2025-11-15 00:00:00+00');
INSERT INTO tollgate.migrations VALUES (3, '2025-11-15 00:00:00+00');
INSERT INTO tollgate.migrations VALUES (4, '2025-11-15 00:00:00+00');

INSERT INTO tollgate.overrides VALUES (true, 1, '{}');

INSERT INTO tollgate.secrets VALUES (true, '\x0707070707070707070707070707070707070707070707070707070707070707');

INSERT INTO tollgate.settled VALUES ('bucket', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('interval', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('exact', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('resolution', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('wide', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('calendar', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('late', 's', 1749990896000000, 1749990896000001, 1749990897234567);
INSERT INTO tollgate.settled VALUES ('slots', 's', 1749990906000001, 1749990906000001, 1749990906000000);
INSERT INTO tollgate.settled VALUES ('settled', 's', 1749990907000001, 1749990907000003, 1749990910000000);
INSERT INTO tollgate.settled VALUES ('settled', 's', 1749990907000005, 1749990907000006, 1749990913000000);
INSERT INTO tollgate.settled VALUES ('reset', 's', 0, 1749990914000000, 1749990914000000);
INSERT INTO tollgate.settled VALUES ('ids', 's', 1749990936000001, 1749990936000001, 1749990936000000);
INSERT INTO tollgate.settled VALUES ('many', 's', 1749990941000000, 1749990941000000, 1749990941000000);

SELECT pg_catalog.setval('tollgate.audit_number_seq', 2, true);

ALTER TABLE ONLY tollgate.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (number);

ALTER TABLE ONLY tollgate.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (policy, subject);

ALTER TABLE ONLY tollgate.ids
    ADD CONSTRAINT ids_pkey PRIMARY KEY (policy, subject, id);

ALTER TABLE ONLY tollgate.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY tollgate.overrides
    ADD CONSTRAINT overrides_pkey PRIMARY KEY (only_one);

ALTER TABLE ONLY tollgate.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (only_one);

ALTER TABLE ONLY tollgate.settled
    ADD CONSTRAINT settled_pkey PRIMARY KEY (policy, subject, first);

CREATE INDEX audit_at_us_idx ON tollgate.audit USING btree (at_us);

CREATE INDEX audit_charges_idx ON tollgate.audit USING gin (charges jsonb_path_ops);

CREATE INDEX audit_outcome_number_idx ON tollgate.audit USING btree (outcome, number);

CREATE INDEX audit_subject_number_idx ON tollgate.audit USING btree (subject, number);
