-- A quota over the rows of @table@: at most @limit@ per user in any @window@. Written by `tollgate postgres install`.
--
--   SELECT @quota@.consume('alice');      -- ask, and insert the row if there is room
--   SELECT @quota@.check('alice');        -- ask, consuming nothing
--   SELECT @quota@.remaining('alice');
--   SELECT @quota@.info('alice');
--   SELECT * FROM @quota@.history(now() - interval '7 days', now());

-- Whoever was refused, when and why.
CREATE TABLE IF NOT EXISTS @quota@.rejections (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rejected_at         timestamptz NOT NULL,
    level               text NOT NULL DEFAULT 'warn',
    user_id             @user_type@ NOT NULL,
    request_count       int NOT NULL,
    oldest_request_time timestamptz NOT NULL,
    reset_time          timestamptz NOT NULL,
    recent_requests     timestamptz[] NOT NULL
);
CREATE INDEX IF NOT EXISTS rejections_user ON @quota@.rejections (user_id, rejected_at);

-- Keys of requests that were let through, where the table has no column for them.
CREATE TABLE IF NOT EXISTS @quota@.ids (
    user_id     @user_type@ NOT NULL,
    id          text COLLATE "C" NOT NULL,
    consumed_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, id)
);

-- The newest requests of a user in the window that ends at `p_now`, newest first, at most @limit@ of them: so many
-- entries of the index are read and no more, however large the table is.
CREATE OR REPLACE FUNCTION @quota@.recent(p_user @user_type@, p_now timestamptz) RETURNS timestamptz[]
LANGUAGE plpgsql VOLATILE AS $recent$
BEGIN
    -- The window is half open: a request made exactly @window@ ago is outside, so a retry at the promised time passes.
    RETURN ARRAY(
        SELECT @row_out@ FROM @table@ r
         WHERE r.@user@ = p_user AND r.@time@ > @window_start@@filter@
         ORDER BY r.@time@ DESC LIMIT @limit@);
END $recent$;

-- A time as JSON wants it, in UTC.
CREATE OR REPLACE FUNCTION @quota@.utc(p_time timestamptz) RETURNS text LANGUAGE sql STABLE AS $utc$
    SELECT to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$utc$;

-- A length of time for people, as in "2h 15m": the two largest units, rounded up.
CREATE OR REPLACE FUNCTION @quota@.for_people(p_span interval) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $people$
DECLARE
    sizes CONSTANT bigint[] := ARRAY[86400, 3600, 60, 1];
    marks CONSTANT text[] := ARRAY['d', 'h', 'm', 's'];
    v_secs bigint := ceil(extract(epoch FROM p_span));
    v_unit int := 1;
    v_next int;
BEGIN
    IF v_secs <= 0 THEN RETURN '0s'; END IF;
    WHILE v_secs < sizes[v_unit] LOOP v_unit := v_unit + 1; END LOOP;
    v_next := least(v_unit + 1, 4);
    v_secs := (v_secs + sizes[v_next] - 1) / sizes[v_next] * sizes[v_next];
    -- Rounding up may reach the next larger unit: 59m 60s is 1h.
    IF v_unit > 1 AND v_secs >= sizes[v_unit - 1] THEN
        v_unit := v_unit - 1;
        v_next := v_unit + 1;
    END IF;
    IF v_next > v_unit AND v_secs % sizes[v_unit] / sizes[v_next] > 0 THEN
        RETURN v_secs / sizes[v_unit] || marks[v_unit] || ' ' || v_secs % sizes[v_unit] / sizes[v_next] || marks[v_next];
    END IF;
    RETURN v_secs / sizes[v_unit] || marks[v_unit];
END $people$;

-- What the quota says to `p_recent` requests at `p_now`. The reset comes from the @limit@th newest, which is the one
-- that makes room, and not from the oldest, which may be one of many too many.
CREATE OR REPLACE FUNCTION @quota@.says(p_allowed boolean, p_recent timestamptz[], p_now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE AS $says$
    SELECT jsonb_build_object(
        'allowed', p_allowed,
        'remaining', @limit@ - cardinality(p_recent),
        'resetTime', @quota@.utc(p_recent[@limit@] + @window@),
        'waitSeconds', CASE WHEN p_allowed THEN 0
            ELSE greatest(0, ceil(extract(epoch FROM p_recent[@limit@] + @window@ - p_now)))::bigint END)
$says$;

-- Asks whether a request would be let through, consuming nothing: {allowed, remaining, resetTime, waitSeconds}.
CREATE OR REPLACE FUNCTION @quota@.check_at(p_user @user_type@, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $check$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := @quota@.recent(p_user, v_now);
BEGIN
    RETURN @quota@.says(cardinality(v_recent) < @limit@, v_recent, v_now);
END $check$;

-- CHECK is a word of SQL, but with the schema in front of it, it is a name like any other.
CREATE OR REPLACE FUNCTION @quota@."check"(p_user @user_type@) RETURNS jsonb LANGUAGE sql VOLATILE AS $check$
    SELECT @quota@.check_at(p_user, NULL)
$check$;

-- How many more requests would be let through now.
CREATE OR REPLACE FUNCTION @quota@.remaining(p_user @user_type@) RETURNS int LANGUAGE sql VOLATILE AS $remaining$
    SELECT @limit@ - cardinality(@quota@.recent(p_user, clock_timestamp()))
$remaining$;

-- Where a user stands: {quotaUsed, quotaLimit, resetTime, resetIn}. The reset is when the number of requests that are
-- left next grows; null if nothing is used.
CREATE OR REPLACE FUNCTION @quota@.info_at(p_user @user_type@, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $info$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := @quota@.recent(p_user, v_now);
    v_reset  timestamptz := v_recent[cardinality(v_recent)] + @window@;
BEGIN
    RETURN jsonb_build_object(
        'quotaUsed', cardinality(v_recent), 'quotaLimit', @limit@,
        'resetTime', @quota@.utc(v_reset), 'resetIn', @quota@.for_people(v_reset - v_now));
END $info$;

CREATE OR REPLACE FUNCTION @quota@.info(p_user @user_type@) RETURNS jsonb LANGUAGE sql VOLATILE AS $info$
    SELECT @quota@.info_at(p_user, NULL)
$info$;

-- Under another isolation level a statement after the lock would still see the rows as they were before it.
CREATE OR REPLACE FUNCTION @quota@.need_read_committed() RETURNS void LANGUAGE plpgsql VOLATILE AS $need$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the quota needs READ COMMITTED, and this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $need$;

-- One user at a time. The wait is bounded, and the caller's own lock_timeout is put back.
CREATE OR REPLACE FUNCTION @quota@.lock_user(p_user @user_type@) RETURNS void LANGUAGE plpgsql VOLATILE AS $lock$
DECLARE
    v_before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '@lock_timeout@', true);
    PERFORM pg_advisory_xact_lock(hashtextextended(p_user::text, @seed@));
    PERFORM set_config('lock_timeout', v_before, true);
END $lock$;

-- Asks, and inserts the row if there is room; `p_row` has values for further columns. With a key, a repeat is
-- recognised and let through without another row.
--
-- The first pass takes no lock: whoever is at the limit is refused at once. Whoever may pass takes the lock of the user, in
-- a statement of its own, and counts again in the next, which sees every row that was committed before.
CREATE OR REPLACE FUNCTION @quota@.consume_at(p_user @user_type@, p_key text, p_row jsonb, p_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $consume$
DECLARE
    v_now    timestamptz;
    v_recent timestamptz[];
    v_new    jsonb;
BEGIN
    PERFORM @quota@.need_read_committed();
    FOR v_pass IN 1 .. 2 LOOP
        IF v_pass = 2 THEN
            PERFORM @quota@.lock_user(p_user);
        END IF;
        -- After the wait; now() would be the time when the transaction began.
        v_now := coalesce(p_now, clock_timestamp());
        v_recent := @quota@.recent(p_user, v_now);
        IF p_key IS NOT NULL THEN
            @find_key@
            IF FOUND THEN
                RETURN @quota@.says(true, v_recent, v_now) || jsonb_build_object('duplicate', true, 'row', v_new);
            END IF;
        END IF;
        EXIT WHEN cardinality(v_recent) >= @limit@;
    END LOOP;
    IF cardinality(v_recent) >= @limit@ THEN
        @audit@
        RETURN @quota@.says(false, v_recent, v_now);
    END IF;
    v_new := @quota@.insert_row(p_user, p_key, coalesce(p_row, '{}'), v_now);
    v_recent := v_now || v_recent;
    RETURN @quota@.says(true, v_recent, v_now) || jsonb_build_object('row', v_new);
END $consume$;

CREATE OR REPLACE FUNCTION @quota@.consume(p_user @user_type@, p_key text DEFAULT NULL, p_row jsonb DEFAULT '{}')
RETURNS jsonb LANGUAGE sql VOLATILE AS $consume$
    SELECT @quota@.consume_at(p_user, p_key, p_row, NULL)
$consume$;

-- Inserts the request. Columns that `p_row` does not name get their defaults.
CREATE OR REPLACE FUNCTION @quota@.insert_row(p_user @user_type@, p_key text, p_row jsonb, v_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $insert$
DECLARE
    v_columns text;
    v_values  text;
    v_new     jsonb;
BEGIN
    SELECT string_agg(format(', %I', k), '' ORDER BY k), string_agg(format(', n.%I', k), '' ORDER BY k)
      INTO v_columns, v_values FROM jsonb_object_keys(p_row) k;
    IF v_columns IS NULL THEN
        INSERT INTO @table@ AS r (@user@, @time@@key_column@) VALUES (p_user, @now_value@@key_value@)
        RETURNING to_jsonb(r) INTO v_new;
    ELSE
        EXECUTE format(
            'INSERT INTO %s AS r (%s%s) SELECT $1, $2%s%s FROM jsonb_populate_record(NULL::%s, $4) n RETURNING to_jsonb(r)',
            @table_text@, @columns_text@, v_columns, @key_parameter@, v_values, @table_text@)
        INTO v_new USING p_user, @now_value@, p_key, p_row;
    END IF;
    @keep_key@
    RETURN v_new;
END $insert$;

-- For tables that others insert into: CREATE TRIGGER … BEFORE INSERT … EXECUTE FUNCTION @quota@.enforce(). A row too many
-- is refused with SQLSTATE RL429. What it raises rolls everything back, so the refusal is in the server's log and not
-- in the table of rejections. The time of the row is the time of the check.
CREATE OR REPLACE FUNCTION @quota@.enforce() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $enforce$
DECLARE
    v_now    timestamptz;
    v_recent timestamptz[];
BEGIN
    PERFORM @quota@.need_read_committed();
    PERFORM @quota@.lock_user(NEW.@user@);
    v_now := clock_timestamp();
    v_recent := @quota@.recent(NEW.@user@, v_now);
    IF cardinality(v_recent) >= @limit@ THEN
        RAISE EXCEPTION 'rate limit: user % has made % requests in @window_text@', NEW.@user@, cardinality(v_recent)
            USING ERRCODE = 'RL429', DETAIL = @quota@.says(false, v_recent, v_now)::text,
                  HINT = 'Try again in ' || @quota@.for_people(v_recent[@limit@] + @window@ - v_now) || '.';
    END IF;
    NEW.@time@ := @now_value@;
    RETURN NEW;
END $enforce$;

-- Users who reached the limit in any window that ended from `p_from` to `p_to`, with their requests in that time and
-- when they first had no more.
CREATE OR REPLACE FUNCTION @quota@.history(p_from timestamptz DEFAULT '-infinity', p_to timestamptz DEFAULT 'infinity')
RETURNS TABLE (user_id @user_type@, total_requests bigint, first_limited_at timestamptz)
LANGUAGE sql STABLE AS $history$
    WITH s AS (
        SELECT r.@user@ AS u, @row_out@ AS c,
               lag(@row_out@, @limit@ - 1) OVER (PARTITION BY r.@user@ ORDER BY r.@time@) AS n_back
          FROM @table@ r
         WHERE @row_out@ > p_from - @window@ AND @row_out@ <= p_to@filter@)
    SELECT s.u, count(*) FILTER (WHERE s.c >= p_from),
           min(s.c) FILTER (WHERE s.c >= p_from AND s.n_back > s.c - @window@)
      FROM s GROUP BY s.u
    HAVING bool_or(s.c >= p_from AND s.n_back > s.c - @window@)
     ORDER BY 3, 1
$history$;

-- Removes rejections before `p_before` and keys that are out of the window; answers how many.
CREATE OR REPLACE FUNCTION @quota@.clean_up(p_before timestamptz DEFAULT now() - interval '30 days') RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $clean$
DECLARE
    v_all bigint;
    v_now timestamptz := clock_timestamp();
    v_one bigint;
BEGIN
    DELETE FROM @quota@.rejections WHERE rejected_at < p_before;
    GET DIAGNOSTICS v_all = ROW_COUNT;
    DELETE FROM @quota@.ids WHERE consumed_at <= v_now - @window@;
    GET DIAGNOSTICS v_one = ROW_COUNT;
    RETURN v_all + v_one;
END $clean$;
