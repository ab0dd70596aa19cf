-- Brings `p_states` from `p_at` to `p_now` and charges `p_amounts` to them. With `p_decide` it takes slots and returns null
-- where a limit has no room; without, it charges whether it fits or not, and takes no slots. `p_stamp` is that of the
-- charge; with `p_refundable` it may be given back later, so that a bucket begins to record its lows.
--
-- `p_numbers` are eight numbers for each limit: kind (1 continuous, 2 interval, 3 window, 4 calendar, 5 slots), the place
-- of its unit from 1, three numbers of the rule, and for a calendar three borders: start and end of the window that the
-- caller believes to be open, and the end of the next. A time outside of these returns null too, and the caller retries with other borders.
CREATE FUNCTION @schema@.take(
    p_states bigint[], p_at bigint, p_now bigint, p_numbers bigint[], p_amounts bigint[], p_stamp bigint, p_decide boolean,
    p_refundable boolean
) RETURNS @schema@.taken LANGUAGE plpgsql IMMUTABLE AS $take$
DECLARE
    number_max  CONSTANT bigint := 9007199254740991;
    entries_max CONSTANT int := 1024;
    lows_max    CONSTANT int := 64;
    -- A window of a calendar is never longer.
    page_max    CONSTANT bigint := 32::bigint * 86400 * 1000000;
    result @schema@.taken;
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
END $take$;
