-- Replaces what a permit was charged by `p_wanted` and frees its slots; with `p_id` the call was not made, and that id
-- is forgotten if it was given this permit. Nothing is given back if the numbers changed since (not `p_same_numbers`, or
-- the row says so) or if the permit is below the floor; what it cost beyond its estimate is charged all the same. Answers
-- `settled` if it did; with `read` it wrote nothing, and the caller finds out why from the row: settled before, too old,
-- or other numbers.
--
-- The stamp becomes a run of its own or joins its neighbours, which are read after the row and written after it, so that
-- the revision of the row covers them.
CREATE FUNCTION @schema@.settle(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[],
    p_stamp bigint, p_admitted bigint, p_admitted_ends bigint[], p_same_numbers boolean, p_id text,
    p_now bigint, p_lock_timeout text
) RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $settle$
DECLARE
    permit_ttl      CONSTANT bigint := 3600000000;
    runs_max        CONSTANT int := 10000;
    abandoned_after CONSTANT bigint := 60000000;
    tries_max       CONSTANT int := 8;
    result     @schema@.answer;
    row        @schema@.entries;
    taken      @schema@.taken;
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
        row := @schema@.find(p_policy, p_subject, v_try > 1);
        result := @schema@.as_read(row, @schema@.now_us(p_now));
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
                SELECT s.first, s.last, s.admitted_us FROM @schema@.settled s
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
        taken := @schema@.take(row.states, row.at_us, v_now, p_numbers, v_extra, row.next_stamp, false, false);
        IF taken.states IS NULL THEN RETURN result; END IF;
        v_changed := CASE WHEN v_now < row.changed[2] + permit_ttl THEN row.changed ELSE '{}' END;
        v_wanted := CASE WHEN p_same_numbers AND NOT v_too_old AND coalesce(v_changed[1] <= p_stamp, true)
                         THEN p_wanted ELSE v_kept END;
        taken.states := @schema@.give_back(
            taken.states, v_now, p_numbers, p_estimate, v_wanted, p_stamp, p_admitted, p_admitted_ends);
        v_runs := row.settled_runs + 1 - (v_before IS NOT NULL)::int - v_after::int;
        v_expired := NULL;
        IF v_runs > row.settled_runs AND row.settled_runs > 1 THEN
            -- A run more takes up to two that are over with it. Later stamps were not admitted earlier.
            SELECT array_agg(o.first) INTO v_expired FROM (
                SELECT s.first, s.admitted_us FROM @schema@.settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 2) o
             WHERE o.admitted_us + permit_ttl <= v_now;
            v_runs := v_runs - coalesce(cardinality(v_expired), 0);
        END IF;
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        UPDATE @schema@.entries e
           SET revision = e.revision + 1, at_us = v_now, states = taken.states, settled_runs = v_runs, changed = v_changed,
               absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, p_admitted + permit_ttl)
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        CONTINUE WHEN NOT FOUND;
        IF v_before IS NOT NULL THEN
            IF v_after THEN
                DELETE FROM @schema@.settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = p_stamp + 1;
            END IF;
            UPDATE @schema@.settled s SET last = v_last, admitted_us = v_admitted
             WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = v_before;
        ELSIF v_after THEN
            UPDATE @schema@.settled s SET first = p_stamp, admitted_us = v_admitted
             WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = p_stamp + 1;
        ELSE
            INSERT INTO @schema@.settled VALUES (p_policy, p_subject, p_stamp, p_stamp, p_admitted);
            IF v_expired IS NOT NULL THEN
                DELETE FROM @schema@.settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = ANY (v_expired);
            END IF;
        END IF;
        IF v_runs > runs_max THEN
            SELECT s.first, s.last, s.admitted_us INTO v_run FROM @schema@.settled s
             WHERE s.policy = p_policy AND s.subject = p_subject ORDER BY s.first LIMIT 1;
            -- What was settled just now must be known if it comes again.
            IF v_run.admitted_us + abandoned_after <= v_now AND NOT p_stamp BETWEEN v_run.first AND v_run.last THEN
                DELETE FROM @schema@.settled s
                 WHERE s.policy = p_policy AND s.subject = p_subject AND s.first = v_run.first;
                UPDATE @schema@.entries e
                   SET settled_runs = v_runs - 1, settled_floor = greatest(e.settled_floor, v_run.last)
                 WHERE e.policy = p_policy AND e.subject = p_subject;
            END IF;
        END IF;
        IF p_id IS NOT NULL THEN
            DELETE FROM @schema@.ids i
             WHERE i.policy = p_policy AND i.subject = p_subject AND i.id = p_id AND i.stamp = p_stamp;
        END IF;
        result.did := 'settled';
        RETURN result;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $settle$;

-- Gives back what was estimated and not wanted, to states that were advanced to `p_now`, without making room twice; frees the
-- slots of the permit.
CREATE FUNCTION @schema@.give_back(
    p_states bigint[], p_now bigint, p_numbers bigint[], p_estimate bigint[], p_wanted bigint[], p_stamp bigint,
    p_admitted bigint, p_admitted_ends bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $give$
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
END $give$;

-- Keeps the slots of a permit for another time to live. Answers `renewed`, with the new expiry as the stamp; with `read`
-- it wrote nothing: a slot is lost, or the numbers are others.
CREATE FUNCTION @schema@.renew_slots(
    p_policy text, p_subject text, p_shape bytea, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_now bigint,
    p_lock_timeout text
) RETURNS @schema@.answer LANGUAGE plpgsql VOLATILE AS $renew$
DECLARE
    tries_max CONSTANT int := 8;
    result    @schema@.answer;
    row       @schema@.entries;
    taken     @schema@.taken;
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
        row := @schema@.find(p_policy, p_subject, v_try > 1);
        result := @schema@.as_read(row, @schema@.now_us(p_now));
        v_now := greatest(result.now_us, row.at_us);
        IF row.revision IS NULL OR row.shape <> p_shape THEN RETURN result; END IF;
        taken := @schema@.take(row.states, row.at_us, v_now, p_numbers, v_none, p_stamp, false, false);
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
                v_held := ARRAY[3, n]::bigint[] || @schema@.place_slot(v_held[3:], v_renewed);
            END IF;
            v_states := v_states || v_held;
            p := p + 2 + n;
            b := b + 8;
        END LOOP;
        IF v_first IS NULL THEN RETURN result; END IF;
        IF p_lock_timeout IS NOT NULL THEN PERFORM set_config('lock_timeout', p_lock_timeout, true); END IF;
        UPDATE @schema@.entries e
           SET revision = e.revision + 1, at_us = v_now, states = v_states,
               -- No slot lives longer than one that was just renewed, or it did so before.
               absent_at_us = greatest(row.absent_at_us, taken.idle_at_us, @schema@.last_expiry(v_states))
         WHERE e.policy = p_policy AND e.subject = p_subject AND e.revision = row.revision;
        IF FOUND THEN
            result.did := 'renewed';
            result.stamp := v_first;
            RETURN result;
        END IF;
    END LOOP;
    result.did := 'contended';
    RETURN result;
END $renew$;

-- The slots with the one that has the stamp of `p_slot` replaced by it, in order of expiry.
CREATE FUNCTION @schema@.place_slot(p_held bigint[], p_slot bigint[]) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $place$
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
END $place$;

-- The latest expiry of any slot.
CREATE FUNCTION @schema@.last_expiry(p_states bigint[]) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $last$
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
END $last$;
