-- A quota over the rows of a table: at most @limit@ rows per user in any @window@. Written by `tollgate postgres install`.
-- With the quota in the schema `q`:
--
--   SELECT q.consume('alice');      -- decides, and inserts the row if there is room
--   SELECT q.check('alice');        -- decides without consuming
--   SELECT q.remaining('alice');
--   SELECT q.info('alice');
--   SELECT * FROM q.history(now() - interval '7 days', now());
--
-- Every function is SECURITY DEFINER: callers need EXECUTE on it and no right on a table. A caller controls its session,
-- so nothing here may depend on it: search_path and row_security are pinned, names outside pg_catalog are qualified,
-- operators of types outside pg_catalog too. pg_temp is named last; otherwise it would be searched first. Arguments have
-- the exact types of the parameters, so that no overload that is added to the schema matches better.

-- CREATE OR REPLACE cannot change the types of a function, which depend on the user column. A function of other types is
-- dropped, and its grants are repeated on its successor at the end of this script; so is `replay` without `p_row`, which
-- would make calls ambiguous. Other roles may have created functions in the schema: a function is taken for one of an earlier install only if a role that may have installed it owns it.
DO $retire$
DECLARE
    v_old    record;
    v_grants jsonb := '[]';
    v_owners oid[];
BEGIN
    v_owners := ARRAY(
        SELECT r.oid FROM pg_roles r WHERE r.rolsuper OR r.rolname IN (@owner_text@, current_user)
         UNION ALL SELECT n.nspowner FROM pg_namespace n WHERE n.oid = @quota_text@::regnamespace);
    PERFORM set_config('tollgate.owners', v_owners::text, true);
    FOR v_old IN
        SELECT p.oid::regprocedure AS function, p.proname, p.proacl, p.proowner FROM pg_proc p
         WHERE p.pronamespace = @quota_text@::regnamespace AND p.proowner = ANY (v_owners)
           AND (p.proargnames[1] = 'p_user' AND p.proargtypes[0] <> @user_type_oid@
                AND p.proname IN ('recent', 'check_at', 'check', 'remaining', 'info_at', 'info', 'lock_user', 'consume_at',
                                  'consume', 'insert_row', 'replay')
             OR p.proargnames[1] = 'p_user' AND p.proname = 'replay' AND p.pronargs = 3
             OR p.proname = 'history' AND p.proargnames[3] = 'user_id' AND p.proallargtypes[3] <> @user_type_oid@)
    LOOP
        v_grants := v_grants || coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                       'function', v_old.proname, 'role', a.grantee::regrole, 'grantable', a.is_grantable))
              FROM aclexplode(v_old.proacl) a WHERE a.grantee NOT IN (0, v_old.proowner)), '[]');
        EXECUTE format('DROP FUNCTION %s', v_old.function);
    END LOOP;
    PERFORM set_config('tollgate.grants', v_grants::text, true);
    PERFORM set_config('tollgate.known', ARRAY(
        SELECT p.oid FROM pg_proc p WHERE p.pronamespace = @quota_text@::regnamespace
         UNION ALL SELECT c.oid FROM pg_class c WHERE c.relnamespace = @quota_text@::regnamespace)::text, true);
END $retire$;

-- Refusals, for the audit trail.
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

-- Idempotency keys of admitted requests, and the row that each was answered with, where the table has no key column.
CREATE TABLE IF NOT EXISTS @quota@.ids (
    user_id     @user_type@ NOT NULL,
    id          text COLLATE "C" NOT NULL,
    consumed_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, id)
);
ALTER TABLE @quota@.ids ADD COLUMN IF NOT EXISTS admitted_row jsonb;

-- The newest requests of a user in the window that ends at `p_now`, newest first, at most @limit@ of them. It reads at
-- most as many index entries, however large the table is.
CREATE OR REPLACE FUNCTION @quota@.recent(p_user @user_type@, p_now timestamptz) RETURNS timestamptz[]
LANGUAGE plpgsql VOLATILE @definer@ AS $recent$
BEGIN
    -- The window is half open: a request made exactly @window@ ago is outside, so a retry at the promised time passes.
    RETURN ARRAY(
        SELECT @row_out@ FROM @table@ r
         WHERE r.@user@ @user_equals@ p_user AND r.@time@ > @window_start@@filter@
         ORDER BY r.@time@ DESC LIMIT @limit@);
END $recent$;

-- A time as JSON wants it, in UTC.
CREATE OR REPLACE FUNCTION @quota@.utc(p_time timestamptz) RETURNS text
LANGUAGE plpgsql STABLE @definer@ AS $utc$
BEGIN
    RETURN to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
END $utc$;

-- A length of time for people, as in "2h 15m": the two largest units, rounded up.
CREATE OR REPLACE FUNCTION @quota@.for_people(p_span interval) RETURNS text
LANGUAGE plpgsql IMMUTABLE @definer@ AS $people$
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
LANGUAGE plpgsql STABLE @definer@ AS $says$
BEGIN
    RETURN jsonb_build_object(
        'allowed', p_allowed,
        'remaining', @limit@ - cardinality(p_recent),
        'resetTime', @quota@.utc(p_recent[@limit@] + @window@),
        'waitSeconds', CASE WHEN p_allowed THEN 0
            ELSE greatest(0, ceil(extract(epoch FROM p_recent[@limit@] + @window@ - p_now)))::bigint END);
END $says$;

-- Asks whether a request would be let through, consuming nothing: {allowed, remaining, resetTime, waitSeconds}.
CREATE OR REPLACE FUNCTION @quota@.check_at(p_user @user_type@, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE @definer@ AS $check$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := @quota@.recent(p_user, v_now);
BEGIN
    RETURN @quota@.says(cardinality(v_recent) < @limit@, v_recent, v_now);
END $check$;

-- CHECK is a word of SQL, but with the schema in front of it, it is a name like any other.
CREATE OR REPLACE FUNCTION @quota@."check"(p_user @user_type@) RETURNS jsonb
LANGUAGE plpgsql VOLATILE @definer@ AS $check$
BEGIN
    RETURN @quota@.check_at(p_user, NULL::timestamptz);
END $check$;

-- How many more requests would be let through now.
CREATE OR REPLACE FUNCTION @quota@.remaining(p_user @user_type@) RETURNS int
LANGUAGE plpgsql VOLATILE @definer@ AS $remaining$
BEGIN
    RETURN @limit@ - cardinality(@quota@.recent(p_user, clock_timestamp()));
END $remaining$;

-- The standing of a user: {quotaUsed, quotaLimit, resetTime, resetIn}. The reset is when the number of requests that are
-- left next grows; null if nothing is used.
CREATE OR REPLACE FUNCTION @quota@.info_at(p_user @user_type@, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE @definer@ AS $info$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := @quota@.recent(p_user, v_now);
    v_reset  timestamptz := v_recent[cardinality(v_recent)] + @window@;
BEGIN
    RETURN jsonb_build_object(
        'quotaUsed', cardinality(v_recent), 'quotaLimit', @limit@,
        'resetTime', @quota@.utc(v_reset), 'resetIn', @quota@.for_people(v_reset - v_now));
END $info$;

CREATE OR REPLACE FUNCTION @quota@.info(p_user @user_type@) RETURNS jsonb
LANGUAGE plpgsql VOLATILE @definer@ AS $info$
BEGIN
    RETURN @quota@.info_at(p_user, NULL::timestamptz);
END $info$;

-- Under another isolation level a statement after the lock would still see the rows as they were before it.
CREATE OR REPLACE FUNCTION @quota@.need_read_committed() RETURNS void LANGUAGE plpgsql VOLATILE @definer@ AS $need$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the quota needs READ COMMITTED, and this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $need$;

-- Serializes the requests of one user until the transaction ends. The wait is bounded by lock_timeout, which gets its
-- previous value back when the function returns.
CREATE OR REPLACE FUNCTION @quota@.lock_user(p_user @user_type@) RETURNS void
LANGUAGE plpgsql VOLATILE @definer@ SET lock_timeout = '@lock_timeout@' AS $lock$
BEGIN
    PERFORM pg_advisory_xact_lock(@lock_key@);
END $lock$;

-- Decides, and inserts the row if there is room; `p_row` has values for further columns. A repeated key is admitted again
-- with the row of its first admission, and inserts nothing.
--
-- The first pass takes no lock: a user at the limit is refused at once. The second takes the lock of the user in a
-- statement of its own and counts again in the next, which sees every row that was committed before.
--
-- `p_now` is the clock of tests. Grant `consume` instead, which has none.
CREATE OR REPLACE FUNCTION @quota@.consume_at(p_user @user_type@, p_key text, p_row jsonb, p_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE @definer@ AS $consume$
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
RETURNS jsonb LANGUAGE plpgsql VOLATILE @definer@ AS $consume$
BEGIN
    RETURN @quota@.consume_at(p_user, p_key, p_row, NULL::timestamptz);
END $consume$;

-- Records a request that was admitted at `p_at`, while the database was unavailable. The row is inserted even beyond the
-- limit, since the request was made; a repeated key inserts nothing. `p_row` is that of `consume`. Returns the row.
CREATE OR REPLACE FUNCTION @quota@.replay(p_user @user_type@, p_key text, p_at timestamptz, p_row jsonb DEFAULT '{}')
RETURNS jsonb LANGUAGE plpgsql VOLATILE @definer@ AS $replay$
DECLARE
    v_now timestamptz;
    v_new jsonb;
BEGIN
    IF p_key IS NULL OR p_at IS NULL THEN
        RAISE EXCEPTION 'replay needs a key and a time' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM @quota@.need_read_committed();
    PERFORM @quota@.lock_user(p_user);
    -- The clock of the caller may be ahead. A row in the future would count for longer than a window.
    v_now := least(p_at, clock_timestamp());
    @find_key@
    IF NOT FOUND THEN
        v_new := @quota@.insert_row(p_user, p_key, coalesce(p_row, '{}'), v_now);
    END IF;
    RETURN v_new;
END $replay$;

-- Inserts the request. Columns that `p_row` does not name get their defaults.
CREATE OR REPLACE FUNCTION @quota@.insert_row(p_user @user_type@, p_key text, p_row jsonb, v_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE @definer@ AS $insert$
DECLARE
    v_columns text;
    v_values  text;
    v_new     jsonb;
BEGIN
    IF p_user IS NULL THEN
        RAISE EXCEPTION 'the user of a request must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF jsonb_typeof(p_row) <> 'object' THEN
        RAISE EXCEPTION 'the columns of a row must be a JSON object, and this is: %', left(p_row::text, 100)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Name columns and values, as in {"title": "holidays"}.';
    END IF;
    SELECT string_agg(format(', %I', k), '' ORDER BY k), string_agg(format(', n.%I', k), '' ORDER BY k)
      INTO v_columns, v_values FROM jsonb_object_keys(p_row) k;
    IF v_columns IS NULL THEN
        INSERT INTO @table@ AS r (@user@, @time@@key_column@) VALUES (p_user, @now_value@@key_value@)
        RETURNING to_jsonb(r) INTO v_new;
    ELSE
        @check_row@
        EXECUTE format(
            'INSERT INTO %s AS r (%s%s) SELECT $1, $2%s%s FROM jsonb_populate_record(NULL::%s, $4) n RETURNING to_jsonb(r)',
            @table_text@, @columns_text@, v_columns, @key_parameter@, v_values, @table_text@)
        INTO v_new USING p_user, @now_value@, p_key, p_row;
    END IF;
    @keep_key@
    RETURN v_new;
END $insert$;

-- The trigger of tables that others write to, BEFORE INSERT OR UPDATE. Raises SQLSTATE RL429 for
--   * an INSERT of a user at the limit. Otherwise the time of the row becomes the time of the check;
--   * an UPDATE that gives a row which still counts another user or time: that would free its place before the window ends;
--   * an UPDATE after which a row counts where it did not before, if a window around its time would exceed the limit.
-- The error rolls the statement back, so these refusals are in the server's log and not in the table of rejections.
CREATE OR REPLACE FUNCTION @quota@.enforce() RETURNS trigger LANGUAGE plpgsql VOLATILE @definer@ AS $enforce$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_old     timestamptz;
    v_new     timestamptz;
    v_stays   boolean;
    v_counted boolean;
    v_counts  boolean;
    v_recent  timestamptz[];
BEGIN
    IF TG_OP = 'UPDATE' THEN
        v_old := @old_time@;
        v_new := @new_time@;
        v_counted := @old_counts@;
        v_counts := @new_counts@;
        v_stays := coalesce(NEW.@user@ @user_equals@ OLD.@user@, NEW.@user@ IS NULL AND OLD.@user@ IS NULL)
               AND v_new IS NOT DISTINCT FROM v_old;
        IF v_stays AND (v_counted OR NOT v_counts) THEN
            RETURN NEW;
        END IF;
        IF NOT v_stays AND v_counted AND OLD.@user@ IS NOT NULL AND v_old > v_now - @window@ THEN
            RAISE EXCEPTION 'rate limit: a row of user % counts until %, and keeps its user and time until then',
                OLD.@user@, @quota@.utc(v_old + @window@)
                USING ERRCODE = 'RL429',
                      DETAIL = @quota@.says(false, @quota@.recent(OLD.@user@, v_now), v_now) || jsonb_build_object(
                          'resetTime', @quota@.utc(v_old + @window@),
                          'waitSeconds', ceil(extract(epoch FROM v_old + @window@ - v_now))::bigint),
                      HINT = 'Try again in ' || @quota@.for_people(v_old + @window@ - v_now) || '.';
        END IF;
        IF NOT v_counts OR NEW.@user@ IS NULL OR v_new IS NULL THEN
            RETURN NEW;
        END IF;
    END IF;
    PERFORM @quota@.need_read_committed();
    PERFORM @quota@.lock_user(NEW.@user@);
    -- After the wait for the lock.
    v_now := clock_timestamp();
    v_recent := @quota@.recent(NEW.@user@, v_now);
    IF TG_OP = 'UPDATE' THEN
        -- The row keeps its own time, so windows that ended before now have to hold too. More than the limit are in one if
        -- a row and the one @limit@ rows before it are less than a window apart; only windows with this row matter.
        PERFORM FROM (
            SELECT a.c, lag(a.c, @limit@) OVER (ORDER BY a.c) AS n_back FROM (
                SELECT @row_out@ AS c FROM @table@ r
                 WHERE r.@user@ @user_equals@ NEW.@user@ AND @row_out@ > v_new - @window@ AND @row_out@ < v_new + @window@@filter@
                   AND (r.tableoid <> TG_RELID OR r.ctid <> OLD.ctid)
                UNION ALL SELECT v_new) a) w
          WHERE w.c >= v_new AND w.n_back <= v_new AND w.n_back > w.c - @window@;
        IF NOT FOUND THEN
            RETURN NEW;
        END IF;
    ELSIF cardinality(v_recent) < @limit@ THEN
        NEW.@time@ := @now_value@;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'rate limit: user % has made % requests in @window_text@', NEW.@user@, @limit@
        USING ERRCODE = 'RL429', DETAIL = @quota@.says(false, v_recent, v_now)::text,
              HINT = coalesce('Try again in ' || @quota@.for_people(v_recent[@limit@] + @window@ - v_now) || '.',
                              'The row would count at its own time, in a window that is full.');
END $enforce$;

-- Users who reached the limit in any window that ended from `p_from` to `p_to`, with their requests in that time and
-- when they first had no more.
CREATE OR REPLACE FUNCTION @quota@.history(p_from timestamptz DEFAULT '-infinity', p_to timestamptz DEFAULT 'infinity')
RETURNS TABLE (user_id @user_type@, total_requests bigint, first_limited_at timestamptz)
LANGUAGE sql STABLE @definer@ AS $history$
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
LANGUAGE plpgsql VOLATILE @definer@ AS $clean$
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

-- Every function above was written by this transaction, which distinguishes them from other functions of the schema. PUBLIC may
-- call none. Roles keep what they were granted on what is replaced; default privileges give nothing on what is new. All
-- run with the rights of one role, who also owns the tables.
DO $secure$
DECLARE
    v_owner CONSTANT name := @owner_text@;
    v_quota CONSTANT oid := @quota_text@::regnamespace;
    v_known CONSTANT oid[] := current_setting('tollgate.known');
    v_owners CONSTANT oid[] := current_setting('tollgate.owners');
    v_found record;
BEGIN
    IF NOT (has_schema_privilege(v_owner, v_quota, 'USAGE') AND has_schema_privilege(v_owner, v_quota, 'CREATE')) THEN
        EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO %I', v_quota::regnamespace, v_owner);
    END IF;
    FOR v_found IN
        SELECT 'function ' || p.oid::regprocedure AS object, p.oid, p.proowner AS owner, p.proacl AS acl FROM pg_proc p
         WHERE p.pronamespace = v_quota AND p.xmin = pg_current_xact_id()::xid
         UNION ALL
        SELECT 'table ' || c.oid::regclass, c.oid, c.relowner, c.relacl FROM pg_class c
         WHERE c.relnamespace = v_quota AND c.relname IN ('rejections', 'ids')
    LOOP
        IF v_found.owner <> ALL (v_owners) THEN
            RAISE EXCEPTION 'the % belongs to %, and the quota would run it as %; drop it, or name another schema',
                v_found.object, v_found.owner::regrole, v_owner;
        END IF;
        EXECUTE concat('REVOKE ALL ON ', v_found.object, ' FROM PUBLIC', (
            SELECT string_agg(DISTINCT ', ' || a.grantee::regrole, '') FROM aclexplode(v_found.acl) a
             WHERE v_found.oid <> ALL (v_known) AND a.grantee NOT IN (0, v_found.owner)));
        IF pg_get_userbyid(v_found.owner) <> v_owner THEN
            EXECUTE format('ALTER %s OWNER TO %I', v_found.object, v_owner);
        END IF;
    END LOOP;
    FOR v_found IN
        SELECT p.oid::regprocedure AS function, g.role, g.grantable
          FROM jsonb_to_recordset(current_setting('tollgate.grants')::jsonb) AS g (function name, role text, grantable boolean)
          JOIN pg_proc p ON p.pronamespace = v_quota AND p.proname = g.function AND p.xmin = pg_current_xact_id()::xid
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_found.function, v_found.role)
             || CASE WHEN v_found.grantable THEN ' WITH GRANT OPTION' ELSE '' END;
    END LOOP;
END $secure$;

-- From here on the owner's own code may run, such as the check of a domain: not with the rights of the installer.
DO $role$ BEGIN EXECUTE format('SET LOCAL ROLE %I', @owner_text@); END $role$;

DO $retype$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN
        SELECT a.attrelid FROM pg_attribute a
         WHERE a.attrelid IN ((@quota_text@ || '.rejections')::regclass, (@quota_text@ || '.ids')::regclass)
           AND a.attname = 'user_id' AND a.atttypid <> @user_type_oid@
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN user_id TYPE %s USING user_id::text::%2$s', v_table, @user_type_text@);
    END LOOP;
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'users in % do not convert to % (%); delete these rows, and install again', v_table, @user_type_text@, SQLERRM;
END $retype$;
