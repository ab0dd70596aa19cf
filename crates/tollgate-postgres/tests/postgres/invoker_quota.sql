-- A quota of 5 rows in 24 hours as it was installed when functions ran with the rights of their caller.
CREATE SCHEMA video_requests_quota;
CREATE TABLE IF NOT EXISTS "video_requests_quota".rejections (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rejected_at         timestamptz NOT NULL,
    level               text NOT NULL DEFAULT 'warn',
    user_id             text NOT NULL,
    request_count       int NOT NULL,
    oldest_request_time timestamptz NOT NULL,
    reset_time          timestamptz NOT NULL,
    recent_requests     timestamptz[] NOT NULL
);
CREATE INDEX IF NOT EXISTS rejections_user ON "video_requests_quota".rejections (user_id, rejected_at);
CREATE TABLE IF NOT EXISTS "video_requests_quota".ids (
    user_id     text NOT NULL,
    id          text COLLATE "C" NOT NULL,
    consumed_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, id)
);
CREATE OR REPLACE FUNCTION "video_requests_quota".recent(p_user text, p_now timestamptz) RETURNS timestamptz[]
LANGUAGE plpgsql VOLATILE AS $recent$
BEGIN
    RETURN ARRAY(
        SELECT r."created_at" FROM public.video_requests r
         WHERE r."user_id" = p_user AND r."created_at" > (p_now - interval '24 hours')
         ORDER BY r."created_at" DESC LIMIT 5);
END $recent$;
CREATE OR REPLACE FUNCTION "video_requests_quota".utc(p_time timestamptz) RETURNS text LANGUAGE sql STABLE AS $utc$
    SELECT to_char(p_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$utc$;
CREATE OR REPLACE FUNCTION "video_requests_quota".for_people(p_span interval) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $people$
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
    IF v_unit > 1 AND v_secs >= sizes[v_unit - 1] THEN
        v_unit := v_unit - 1;
        v_next := v_unit + 1;
    END IF;
    IF v_next > v_unit AND v_secs % sizes[v_unit] / sizes[v_next] > 0 THEN
        RETURN v_secs / sizes[v_unit] || marks[v_unit] || ' ' || v_secs % sizes[v_unit] / sizes[v_next] || marks[v_next];
    END IF;
    RETURN v_secs / sizes[v_unit] || marks[v_unit];
END $people$;
CREATE OR REPLACE FUNCTION "video_requests_quota".says(p_allowed boolean, p_recent timestamptz[], p_now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE AS $says$
    SELECT jsonb_build_object(
        'allowed', p_allowed,
        'remaining', 5 - cardinality(p_recent),
        'resetTime', "video_requests_quota".utc(p_recent[5] + interval '24 hours'),
        'waitSeconds', CASE WHEN p_allowed THEN 0
            ELSE greatest(0, ceil(extract(epoch FROM p_recent[5] + interval '24 hours' - p_now)))::bigint END)
$says$;
CREATE OR REPLACE FUNCTION "video_requests_quota".check_at(p_user text, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $check$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := "video_requests_quota".recent(p_user, v_now);
BEGIN
    RETURN "video_requests_quota".says(cardinality(v_recent) < 5, v_recent, v_now);
END $check$;
CREATE OR REPLACE FUNCTION "video_requests_quota"."check"(p_user text) RETURNS jsonb LANGUAGE sql VOLATILE AS $check$
    SELECT "video_requests_quota".check_at(p_user, NULL)
$check$;
CREATE OR REPLACE FUNCTION "video_requests_quota".remaining(p_user text) RETURNS int LANGUAGE sql VOLATILE AS $remaining$
    SELECT 5 - cardinality("video_requests_quota".recent(p_user, clock_timestamp()))
$remaining$;
CREATE OR REPLACE FUNCTION "video_requests_quota".info_at(p_user text, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $info$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent timestamptz[] := "video_requests_quota".recent(p_user, v_now);
    v_reset  timestamptz := v_recent[cardinality(v_recent)] + interval '24 hours';
BEGIN
    RETURN jsonb_build_object(
        'quotaUsed', cardinality(v_recent), 'quotaLimit', 5,
        'resetTime', "video_requests_quota".utc(v_reset), 'resetIn', "video_requests_quota".for_people(v_reset - v_now));
END $info$;
CREATE OR REPLACE FUNCTION "video_requests_quota".info(p_user text) RETURNS jsonb LANGUAGE sql VOLATILE AS $info$
    SELECT "video_requests_quota".info_at(p_user, NULL)
$info$;
CREATE OR REPLACE FUNCTION "video_requests_quota".need_read_committed() RETURNS void LANGUAGE plpgsql VOLATILE AS $need$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the quota needs READ COMMITTED, and this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $need$;
CREATE OR REPLACE FUNCTION "video_requests_quota".lock_user(p_user text) RETURNS void LANGUAGE plpgsql VOLATILE AS $lock$
DECLARE
    v_before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '2000ms', true);
    PERFORM pg_advisory_xact_lock(hashtextextended(p_user::text, hashtextextended(E'public.video_requests', 0)));
    PERFORM set_config('lock_timeout', v_before, true);
END $lock$;
CREATE OR REPLACE FUNCTION "video_requests_quota".consume_at(p_user text, p_key text, p_row jsonb, p_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $consume$
DECLARE
    v_now    timestamptz;
    v_recent timestamptz[];
    v_new    jsonb;
BEGIN
    PERFORM "video_requests_quota".need_read_committed();
    FOR v_pass IN 1 .. 2 LOOP
        IF v_pass = 2 THEN
            PERFORM "video_requests_quota".lock_user(p_user);
        END IF;
        v_now := coalesce(p_now, clock_timestamp());
        v_recent := "video_requests_quota".recent(p_user, v_now);
        IF p_key IS NOT NULL THEN
            SELECT NULL::jsonb INTO v_new FROM "video_requests_quota".ids i WHERE i.user_id = p_user AND i.id = p_key AND i.consumed_at > v_now - interval '24 hours';
            IF FOUND THEN
                RETURN "video_requests_quota".says(true, v_recent, v_now) || jsonb_build_object('duplicate', true, 'row', v_new);
            END IF;
        END IF;
        EXIT WHEN cardinality(v_recent) >= 5;
    END LOOP;
    IF cardinality(v_recent) >= 5 THEN
        INSERT INTO "video_requests_quota".rejections (rejected_at, user_id, request_count, oldest_request_time, reset_time, recent_requests) VALUES (v_now, p_user, cardinality(v_recent), v_recent[cardinality(v_recent)], v_recent[5] + interval '24 hours', v_recent[:100]);
        RAISE WARNING 'rate limit: user_id=% request_count=% oldest_request_time=% reset_time=% recent=%', p_user, cardinality(v_recent), v_recent[cardinality(v_recent)], v_recent[5] + interval '24 hours', v_recent[:100];
        RETURN "video_requests_quota".says(false, v_recent, v_now);
    END IF;
    v_new := "video_requests_quota".insert_row(p_user, p_key, coalesce(p_row, '{}'), v_now);
    v_recent := v_now || v_recent;
    RETURN "video_requests_quota".says(true, v_recent, v_now) || jsonb_build_object('row', v_new);
END $consume$;
CREATE OR REPLACE FUNCTION "video_requests_quota".consume(p_user text, p_key text DEFAULT NULL, p_row jsonb DEFAULT '{}')
RETURNS jsonb LANGUAGE sql VOLATILE AS $consume$
    SELECT "video_requests_quota".consume_at(p_user, p_key, p_row, NULL)
$consume$;
CREATE OR REPLACE FUNCTION "video_requests_quota".insert_row(p_user text, p_key text, p_row jsonb, v_now timestamptz)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $insert$
DECLARE
    v_columns text;
    v_values  text;
    v_new     jsonb;
BEGIN
    SELECT string_agg(format(', %I', k), '' ORDER BY k), string_agg(format(', n.%I', k), '' ORDER BY k)
      INTO v_columns, v_values FROM jsonb_object_keys(p_row) k;
    IF v_columns IS NULL THEN
        INSERT INTO public.video_requests AS r ("user_id", "created_at") VALUES (p_user, v_now)
        RETURNING to_jsonb(r) INTO v_new;
    ELSE
        EXECUTE format(
            'INSERT INTO %s AS r (%s%s) SELECT $1, $2%s%s FROM jsonb_populate_record(NULL::%s, $4) n RETURNING to_jsonb(r)',
            E'public.video_requests', E'"user_id", "created_at"', v_columns, E'', v_values, E'public.video_requests')
        INTO v_new USING p_user, v_now, p_key, p_row;
    END IF;
    IF p_key IS NOT NULL THEN INSERT INTO "video_requests_quota".ids VALUES (p_user, p_key, v_now) ON CONFLICT (user_id, id) DO UPDATE SET consumed_at = excluded.consumed_at; END IF;
    RETURN v_new;
END $insert$;
CREATE OR REPLACE FUNCTION "video_requests_quota".enforce() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $enforce$
DECLARE
    v_now    timestamptz;
    v_recent timestamptz[];
BEGIN
    PERFORM "video_requests_quota".need_read_committed();
    PERFORM "video_requests_quota".lock_user(NEW."user_id");
    v_now := clock_timestamp();
    v_recent := "video_requests_quota".recent(NEW."user_id", v_now);
    IF cardinality(v_recent) >= 5 THEN
        RAISE EXCEPTION 'rate limit: user % has made % requests in 24h', NEW."user_id", cardinality(v_recent)
            USING ERRCODE = 'RL429', DETAIL = "video_requests_quota".says(false, v_recent, v_now)::text,
                  HINT = 'Try again in ' || "video_requests_quota".for_people(v_recent[5] + interval '24 hours' - v_now) || '.';
    END IF;
    NEW."created_at" := v_now;
    RETURN NEW;
END $enforce$;
CREATE OR REPLACE FUNCTION "video_requests_quota".history(p_from timestamptz DEFAULT '-infinity', p_to timestamptz DEFAULT 'infinity')
RETURNS TABLE (user_id text, total_requests bigint, first_limited_at timestamptz)
LANGUAGE sql STABLE AS $history$
    WITH s AS (
        SELECT r."user_id" AS u, r."created_at" AS c,
               lag(r."created_at", 5 - 1) OVER (PARTITION BY r."user_id" ORDER BY r."created_at") AS n_back
          FROM public.video_requests r
         WHERE r."created_at" > p_from - interval '24 hours' AND r."created_at" <= p_to)
    SELECT s.u, count(*) FILTER (WHERE s.c >= p_from),
           min(s.c) FILTER (WHERE s.c >= p_from AND s.n_back > s.c - interval '24 hours')
      FROM s GROUP BY s.u
    HAVING bool_or(s.c >= p_from AND s.n_back > s.c - interval '24 hours')
     ORDER BY 3, 1
$history$;
CREATE OR REPLACE FUNCTION "video_requests_quota".clean_up(p_before timestamptz DEFAULT now() - interval '30 days') RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $clean$
DECLARE
    v_all bigint;
    v_now timestamptz := clock_timestamp();
    v_one bigint;
BEGIN
    DELETE FROM "video_requests_quota".rejections WHERE rejected_at < p_before;
    GET DIAGNOSTICS v_all = ROW_COUNT;
    DELETE FROM "video_requests_quota".ids WHERE consumed_at <= v_now - interval '24 hours';
    GET DIAGNOSTICS v_one = ROW_COUNT;
    RETURN v_all + v_one;
END $clean$;
CREATE TRIGGER tollgate_quota BEFORE INSERT ON video_requests FOR EACH ROW EXECUTE FUNCTION video_requests_quota.enforce();
