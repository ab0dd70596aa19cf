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
	ids text[],
	id_numbers bigint[],
	settled bigint[],
	settled_floor bigint,
	closed bigint[],
	changed bigint[]
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
    ids text[] DEFAULT '{}'::text[] NOT NULL,
    id_numbers bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    settled bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    settled_floor bigint DEFAULT 0 NOT NULL,
    closed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    changed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    absent_at_us bigint NOT NULL
)
WITH (fillfactor='70');

CREATE FUNCTION tollgate.as_read(p_row tollgate.entries, p_clock bigint) RETURNS tollgate.answer
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT 'read', p_clock, NULL::bigint, p_row.shape, p_row.revision, p_row.at_us, p_row.next_stamp, p_row.states,
           NULL::text[], NULL::bigint[], p_row.settled, p_row.settled_floor, p_row.closed, p_row.changed
$$;

CREATE FUNCTION tollgate.clean_up(p_after_policy text, p_after_subject text, p_rows integer, p_now bigint, OUT removed bigint, OUT last_policy text, OUT last_subject text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now bigint := "tollgate".now_us(p_now);
BEGIN
    SELECT l.policy, l.subject INTO last_policy, last_subject FROM (
        SELECT e.policy, e.subject FROM "tollgate".entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
         ORDER BY e.policy, e.subject LIMIT p_rows) l
     ORDER BY l.policy DESC, l.subject DESC LIMIT 1;
    WITH gone AS (
        SELECT e.policy, e.subject FROM "tollgate".entries e
         WHERE (e.policy, e.subject) > (p_after_policy, p_after_subject)
           AND (e.policy, e.subject) <= (last_policy, last_subject)
           AND e.absent_at_us <= v_now
           FOR UPDATE SKIP LOCKED)
    DELETE FROM "tollgate".entries e USING gone g WHERE e.policy = g.policy AND e.subject = g.subject;
    GET DIAGNOSTICS removed = ROW_COUNT;
END $$;

CREATE FUNCTION tollgate.close(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_place bigint, p_until bigint, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
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
        taken := "tollgate".take(row.states, coalesce(row.at_us, v_now), v_now, p_numbers, p_none, 0, false);
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

CREATE FUNCTION tollgate.flatten(p_all bigint[]) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT array_agg(number) FROM unnest(p_all) number
$$;

CREATE FUNCTION tollgate.give_back(p_states bigint[], p_now bigint, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[], p_stamp bigint, p_admitted bigint, p_admitted_ends bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    states bigint[] := '{}';
    log    bigint[];
    p      int := 1;
    b      int := 0;
    n      int;
    i      int;
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
                -- What refilled since the charge has made that room already.
                log[3] := greatest(0, log[3] - greatest(
                    0, amount::numeric * n2 - n3::numeric * greatest(0, p_now - p_admitted)))::bigint;
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

CREATE FUNCTION tollgate.look(p_policy text, p_subject text, p_now bigint) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    row    "tollgate".entries := "tollgate".find(p_policy, p_subject, false);
    result "tollgate".answer := "tollgate".as_read(row, "tollgate".now_us(p_now));
BEGIN
    result.ids := row.ids;
    result.id_numbers := row.id_numbers;
    RETURN result;
END $$;

CREATE FUNCTION tollgate.lost_slots(p_states bigint[], p_now bigint, p_numbers bigint[], p_amounts bigint[], p_known bigint[]) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
END $$;

CREATE FUNCTION tollgate.mark_settled(p_runs bigint[], p_floor bigint, p_stamp bigint, p_admitted bigint, p_now bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    permit_ttl CONSTANT bigint := 3600000000;
    runs_max   CONSTANT int := 256;
    runs       bigint[] := '{}';
    v_floor    bigint := p_floor;
    v_first    bigint := p_stamp;
    v_last     bigint := p_stamp;
    v_admitted bigint := p_admitted;
    v_placed   boolean := false;
    v_live     boolean := false;
    i          int := 1;
BEGIN
    WHILE i < cardinality(p_runs) LOOP
        IF p_now < p_runs[i + 2] + permit_ttl THEN
            v_live := true;
            IF p_runs[i + 1] + 1 = v_first THEN
                v_first := p_runs[i];
                v_admitted := greatest(v_admitted, p_runs[i + 2]);
            ELSIF v_last + 1 = p_runs[i] THEN
                v_last := p_runs[i + 1];
                v_admitted := greatest(v_admitted, p_runs[i + 2]);
            ELSE
                IF NOT v_placed AND v_last < p_runs[i] THEN
                    runs := runs || ARRAY[v_first, v_last, v_admitted];
                    v_placed := true;
                END IF;
                runs := runs || p_runs[i : i + 2];
            END IF;
        END IF;
        i := i + 3;
    END LOOP;
    IF NOT v_live THEN v_floor := 0; END IF;
    IF NOT v_placed THEN runs := runs || ARRAY[v_first, v_last, v_admitted]; END IF;
    IF cardinality(runs) > 3 * runs_max THEN
        v_floor := greatest(v_floor, runs[2]);
        runs := runs[4:];
    END IF;
    RETURN v_floor || runs;
END $$;

CREATE FUNCTION tollgate.merge_neighbours(p_log bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    merged bigint[] := '{}';
    i int := 1;
BEGIN
    WHILE i < cardinality(p_log) LOOP
        IF i + 2 < cardinality(p_log) THEN
            merged := merged || ARRAY[p_log[i + 2], p_log[i + 1] + p_log[i + 3]];
        ELSE
            merged := merged || p_log[i : i + 1];
        END IF;
        i := i + 4;
    END LOOP;
    RETURN merged;
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

CREATE FUNCTION tollgate.renew(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
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
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, v_none, p_stamp, false);
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

CREATE FUNCTION tollgate.reset(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_none bigint[], p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    permit_ttl CONSTANT bigint := 3600000000;
    tries_max  CONSTANT int := 8;
    result     "tollgate".answer;
    row        "tollgate".entries;
    taken      "tollgate".taken;
    v_now      bigint;
    v_width    int := 3 + cardinality(p_none);
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
        -- The caller sees what decided: an id makes the difference even if nothing is used.
        result.ids := row.ids;
        result.id_numbers := row.id_numbers;
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape THEN RETURN result; END IF;
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, p_none, 0, false);
        IF taken.states IS NULL OR taken.idle_at_us <= v_now
            AND NOT EXISTS (SELECT FROM generate_series(3, cardinality(row.id_numbers), v_width) k WHERE v_now < row.id_numbers[k])
            AND NOT EXISTS (SELECT FROM generate_series(2, cardinality(row.closed), 2) k WHERE v_now < row.closed[k])
        THEN
            RETURN result;
        END IF;
        taken := "tollgate".take(NULL, v_now, v_now, p_numbers, p_none, 0, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        UPDATE "tollgate".entries e
           SET revision = e.revision + 1, at_us = v_now, next_stamp = greatest(row.next_stamp, v_now, 1),
               states = taken.states, ids = '{}', id_numbers = '{}', settled = ARRAY[0, row.next_stamp - 1, v_now],
               settled_floor = 0, closed = '{}', changed = '{}',
               absent_at_us = greatest(row.next_stamp, v_now + permit_ttl)
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        IF FOUND THEN
            result.did := 'reset';
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $$;

CREATE FUNCTION tollgate.settle(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[], p_stamp bigint, p_admitted bigint, p_admitted_ends bigint[], p_same_numbers boolean, p_release boolean, p_now bigint, p_lock_timeout text) RETURNS tollgate.answer
    LANGUAGE plpgsql
    AS $$
DECLARE
    permit_ttl CONSTANT bigint := 3600000000;
    tries_max  CONSTANT int := 8;
    result     "tollgate".answer;
    row        "tollgate".entries;
    taken      "tollgate".taken;
    v_now      bigint;
    v_extra    bigint[];
    v_kept     bigint[];
    v_changed  bigint[];
    v_wanted   bigint[];
    v_runs     bigint[];
    v_width    int := 3 + cardinality(p_estimate);
    v_place    int;
BEGIN
    SELECT array_agg(greatest(w - e, 0) ORDER BY k), array_agg(greatest(w, e) ORDER BY k) INTO v_extra, v_kept
      FROM unnest(p_estimate, p_wanted) WITH ORDINALITY u(e, w, k);
    FOR v_try IN 1 .. tries_max LOOP
        row := "tollgate".find(p_policy, p_subject, v_try > 1);
        result := "tollgate".as_read(row, "tollgate".now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape OR p_admitted + permit_ttl <= v_now
            OR p_stamp <= row.settled_floor THEN
            RETURN result;
        END IF;
        FOR i IN 1 .. cardinality(row.settled) / 3 LOOP
            IF row.settled[3 * i - 2] <= p_stamp AND p_stamp <= row.settled[3 * i - 1] THEN RETURN result; END IF;
        END LOOP;
        -- First what the call took beyond its estimate, then what it did not take; each touches other units.
        taken := "tollgate".take(row.states, row.at_us, v_now, p_numbers, v_extra, p_stamp, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_changed := CASE WHEN v_now < row.changed[2] + permit_ttl THEN row.changed ELSE '{}' END;
        v_wanted := CASE WHEN p_same_numbers AND coalesce(v_changed[1] <= p_stamp, true) THEN p_wanted ELSE v_kept END;
        taken.states := "tollgate".give_back(
            taken.states, v_now, p_numbers, p_estimate, v_wanted, p_stamp, p_admitted, p_admitted_ends);
        v_runs := "tollgate".mark_settled(row.settled, row.settled_floor, p_stamp, p_admitted, v_now);
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        v_place := NULL;
        IF p_release THEN
            SELECT (u.k - 1) / v_width + 1 INTO v_place FROM unnest(row.id_numbers) WITH ORDINALITY u(number, k)
             WHERE (u.k - 1) % v_width = 1 AND u.number = p_stamp;
        END IF;
        IF v_place IS NULL THEN
            -- Columns that are not named keep their place outside of the row, if they are large.
            UPDATE "tollgate".entries e
               SET revision = e.revision + 1, at_us = v_now, states = taken.states, settled = v_runs[2:],
                   settled_floor = v_runs[1], changed = v_changed,
                   absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, p_admitted + permit_ttl)
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        ELSE
            UPDATE "tollgate".entries e
               SET revision = e.revision + 1, at_us = v_now, states = taken.states, settled = v_runs[2:],
                   settled_floor = v_runs[1], changed = v_changed,
                   ids = row.ids[: v_place - 1] || row.ids[v_place + 1 :],
                   id_numbers = row.id_numbers[: (v_place - 1) * v_width] || row.id_numbers[v_place * v_width + 1 :],
                   absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, p_admitted + permit_ttl)
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        END IF;
        IF FOUND THEN
            result.did := 'settled';
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $$;

CREATE FUNCTION tollgate.spend(p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_id text, p_id_ttl bigint, p_now bigint, p_lock_timeout text, p_decide boolean) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    tries_max    CONSTANT int := 8;
    ids_max      CONSTANT int := 1024;
    taken        "tollgate".taken;
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
              FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject;
        ELSE
            SELECT e.shape = p_shape, e.revision, e.at_us, e.next_stamp, e.states, e.closed, e.absent_at_us, e.ids, e.id_numbers
              INTO v_same, v_revision, v_at, v_next, v_states, v_closed, v_absent, v_ids, v_id_numbers
              FROM "tollgate".entries e WHERE e.policy = p_policy AND e.subject = p_subject FOR UPDATE;
        END IF;
        -- After the wait, and never before the row was last written.
        v_clock := coalesce(p_now, (date_part('epoch', clock_timestamp()) * 1000000)::bigint);
        v_now := greatest(v_clock, v_at);
        IF NOT v_same THEN RETURN ARRAY[3, v_clock, 0, v_at, v_next]; END IF;
        -- For this ask, unless it was let through before.
        v_shut := p_decide AND CASE WHEN v_closed <> '{}' THEN "tollgate".is_shut(v_closed, v_now, p_numbers, p_amounts) END;
        IF p_id IS NOT NULL AND v_ids IS NOT NULL THEN
            v_width := 3 + cardinality(p_amounts);
            v_place := array_position(v_ids, p_id);
            WHILE v_place IS NOT NULL LOOP
                IF v_now < v_id_numbers[(v_place - 1) * v_width + 3]
                    AND NOT (p_decide AND "tollgate".lost_slots(
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
            taken := "tollgate".take(
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
                       coalesce("tollgate".flatten(array_agg(v_id_numbers[(k - 1) * v_width + 1 : k * v_width] ORDER BY k)), '{}')
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
            INSERT INTO "tollgate".entries
                (policy, subject, shape, revision, at_us, next_stamp, states, ids, id_numbers, absent_at_us)
            VALUES (p_policy, p_subject, p_shape, v_now, v_now, v_next + 1, taken.states,
                    coalesce(v_ids, '{}'), coalesce(v_id_numbers, '{}'), v_absent)
            ON CONFLICT DO NOTHING;
        ELSIF p_id IS NULL THEN
            -- Columns that are not named keep their place outside of the row, if they are large.
            UPDATE "tollgate".entries e
               SET revision = v_revision + 1, at_us = v_now, next_stamp = v_next + 1, states = taken.states,
                   absent_at_us = v_absent
             WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = v_revision;
        ELSE
            UPDATE "tollgate".entries e
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
END $$;

CREATE FUNCTION tollgate.spend_all(p_policies text[], p_subjects text[], p_shapes bytea[], p_numbers bigint[], p_numbers_each integer[], p_amounts bigint[], p_amounts_each integer[], p_ids text[], p_id_ttls bigint[], p_nows bigint[], p_decide boolean[], p_lock_timeout text) RETURNS SETOF bigint[]
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
            p_amounts[a : a + p_amounts_each[i] - 1], p_ids[i], p_id_ttls[i], p_nows[i], NULL, p_decide[i]);
        n := n + p_numbers_each[i];
        a := a + p_amounts_each[i];
    END LOOP;
END $$;

CREATE FUNCTION tollgate.swap(p_policy text, p_subject text, p_revision bigint, p_shape bytea, p_at bigint, p_next_stamp bigint, p_states bigint[], p_ids text[], p_id_numbers bigint[], p_settled bigint[], p_settled_floor bigint, p_closed bigint[], p_changed bigint[], p_absent_at bigint, p_lock_timeout text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
    IF p_revision IS NULL THEN
        INSERT INTO "tollgate".entries VALUES
            (p_policy, p_subject, p_shape, p_at, p_at, p_next_stamp, p_states, p_ids, p_id_numbers, p_settled,
             p_settled_floor, p_closed, p_changed, p_absent_at)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE "tollgate".entries e
           SET shape = p_shape, revision = p_revision + 1, at_us = p_at, next_stamp = p_next_stamp, states = p_states,
               ids = p_ids, id_numbers = p_id_numbers, settled = p_settled, settled_floor = p_settled_floor,
               closed = p_closed, changed = p_changed, absent_at_us = p_absent_at
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = p_revision;
    END IF;
    RETURN FOUND;
END $$;

CREATE FUNCTION tollgate.take(p_states bigint[], p_at bigint, p_now bigint, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_decide boolean) RETURNS tollgate.taken
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    number_max  CONSTANT bigint := 9007199254740991;
    entries_max CONSTANT int := 1024;
    -- A window of a calendar is never longer.
    page_max    CONSTANT bigint := 32::bigint * 86400 * 1000000;
    result "tollgate".taken;
    states bigint[] := '{}';
    log    bigint[];
    idle   bigint := 0;
    p      int := 1;      -- where the state of this limit begins
    b      int := 0;      -- what stands before the numbers of this limit
    n      int;
    i      int;
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
            used := coalesce(p_states[p + 2], 0);
            used := greatest(0, used - p_numbers[b + 5] * least(greatest(p_now - p_at, 0), used / p_numbers[b + 5] + 1));
            IF p_decide AND cost > 0
                AND (cost > p_numbers[b + 3] / p_numbers[b + 4] OR used + cost * p_numbers[b + 4] > p_numbers[b + 3])
            THEN
                RETURN NULL;
            END IF;
            used := CASE WHEN cost > number_max / p_numbers[b + 4] THEN number_max
                         ELSE least(number_max, used + cost * p_numbers[b + 4]) END;
            states := states || ARRAY[0, 1, used];
            idle := greatest(idle, p_now + (used + p_numbers[b + 5] - 1) / p_numbers[b + 5]);
            p := p + 3;
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
                    ELSE
                        log := log || ARRAY[filed, amount];
                        IF i >= 2 * entries_max THEN log := "tollgate".merge_neighbours(log); END IF;
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
    retry_after_us bigint
);

ALTER TABLE tollgate.audit ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tollgate.audit_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

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

INSERT INTO tollgate.audit OVERRIDING SYSTEM VALUE VALUES (1, 1000000, 'api', 'a\0b', 'denied', false, 'burst', 'requests', 3, 1500001);
INSERT INTO tollgate.audit OVERRIDING SYSTEM VALUE VALUES (2, 2000000, 'api', 'c', 'denied', false, 'burst', 'requests', 3, 1500001);

INSERT INTO tollgate.entries VALUES ('exact', 's', '\x0001046f6e6c790872657175657374730205808ece1c00000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,7,5,1749990896000000,1,1749990897234567,3,1749990906000000,1}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('resolution', 's', '\x0001046f6e6c790872657175657374730232808ece1c0106000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,5,5,1749990900000000,4,1749990910000000,1}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('wide', 's', '\x0001046f6e6c7908726571756573747302a09c01808ece1c00000000', 1749990896000005, 1749990906000000, 1749990896000004, '{1,7,5,1749990896000000,1,1749990897234567,3,1749990906000000,1}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('calendar', 's', '\x0001046f6e6c7908726571756573747303190013416d65726963612f4c6f735f416e67656c6573000000', 1749990896000005, 1749990906000000, 1749990896000004, '{2,3,1749990960000000,1,0}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('late', 's', '\x0001046f6e6c7908726571756573747303190013416d65726963612f4c6f735f416e67656c6573000080dac409', 1749990896000005, 1749990906000000, 1749990896000004, '{2,3,1749990960000000,5,0}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1752755700000000);
INSERT INTO tollgate.entries VALUES ('changed', 's', '\x0001046f6e6c79087265717565737473003c3c80c8ceb40d000000', 1749990914000001, 1749990936000000, 1749990914000002, '{0,1,1478000000}', '{}', '{}', '{}', 0, '{}', '{1749990914000001,1749990914000000}', 1749994514000000);
INSERT INTO tollgate.entries VALUES ('many', 's', '\x00030372706d0872657175657374730205808ece1c000000000374706d06746f6b656e730090a10f90a10f808ece1c000000046a6f6273046a6f6273040380c6868f01000000', 1749990941000002, 1749990942000000, 1749990941000002, '{1,5,2,1749990941000000,1,1749990942000000,1,0,1,900000,3,3,1749990941000001,1749991242000000,1}', '{first,second}', '{1749990941000000,1749990941000000,1749991061000000,1,3750,1,1749990942000000,1749990941000001,1749991062000000,1,3750,1}', '{1749990941000000,1749990941000000,1749990941000000}', 0, '{}', '{}', 1749994541000000);
INSERT INTO tollgate.entries VALUES ('ids', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990936000003, 1749990941000000, 1749990936000003, '{0,1,40000000}', '{one,"back\\\\slash\\0"}', '{1749990936000000,1749990936000000,1749991056000000,1,1749990936000000,1749990936000002,1749991056000000,3}', '{1749990936000001,1749990936000001,1749990936000000}', 0, '{}', '{}', 1749994536000000);
INSERT INTO tollgate.entries VALUES ('slots', 's', '\x0001046f6e6c790872657175657374730405808ece1c000000', 1749990906000004, 1749990907000000, 1749990906000003, '{3,6,1749990906000002,1749990967000000,1,1749990906000000,1749990967000000,2}', '{}', '{}', '{1749990906000001,1749990906000001,1749990906000000}', 0, '{}', '{}', 1749994506000000);
INSERT INTO tollgate.entries VALUES ('bucket', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990896000005, 1749990906000000, 1749990896000004, '{0,1,41234567}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('interval', 's', '\x0001046f6e6c79087265717565737473010505808ece1c000000', 1749990896000005, 1749990906000000, 1749990896000004, '{0,1,1}', '{}', '{}', '{1749990896000000,1749990896000001,1749990897234567}', 0, '{}', '{}', 1749994497234567);
INSERT INTO tollgate.entries VALUES ('closed', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990907000001, 1749990907000000, 1749990907000001, '{0,1,10000000}', '{}', '{}', '{}', 0, '{0,1749992707000000}', '{}', 1749992707000000);
INSERT INTO tollgate.entries VALUES ('settled', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990907000011, 1749990914000000, 1749990907000007, '{0,1,211000000}', '{}', '{}', '{1749990907000001,1749990907000003,1749990910000000,1749990907000005,1749990907000006,1749990913000000}', 0, '{}', '{}', 1749994513000000);
INSERT INTO tollgate.entries VALUES ('reset', 's', '\x0001046f6e6c79087265717565737473006406808ece1c000000', 1749990914000001, 1749990914000000, 1749990914000001, '{0,1,0}', '{}', '{}', '{0,1749990914000000,1749990914000000}', 0, '{}', '{}', 1749994514000000);

INSERT INTO tollgate.migrations VALUES (1, '2025-11-15 00:00:00+00');
INSERT INTO tollgate.migrations VALUES (2, '2025-11-15 00:00:00+00');
INSERT INTO tollgate.migrations VALUES (3, '2025-11-15 00:00:00+00');

INSERT INTO tollgate.overrides VALUES (true, 1, '{}');

INSERT INTO tollgate.secrets VALUES (true, '\x0707070707070707070707070707070707070707070707070707070707070707');

SELECT pg_catalog.setval('tollgate.audit_number_seq', 2, true);

ALTER TABLE ONLY tollgate.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (number);

ALTER TABLE ONLY tollgate.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (policy, subject);

ALTER TABLE ONLY tollgate.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY tollgate.overrides
    ADD CONSTRAINT overrides_pkey PRIMARY KEY (only_one);

ALTER TABLE ONLY tollgate.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (only_one);

CREATE INDEX audit_at_us_idx ON tollgate.audit USING btree (at_us);

CREATE INDEX audit_outcome_number_idx ON tollgate.audit USING btree (outcome, number);

CREATE INDEX audit_subject_number_idx ON tollgate.audit USING btree (subject, number);
