BEGIN;
SET LOCAL client_min_messages = warning;
-- Of many workers that start together one makes the tables, and the others find them.
SELECT pg_advisory_xact_lock(hashtextextended('@.translate', 20251115));
CREATE SCHEMA IF NOT EXISTS @;
CREATE TABLE IF NOT EXISTS @.translate_versions (version int PRIMARY KEY);
INSERT INTO @.translate_versions (version) VALUES (1) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS @.translate_jobs (
    id text PRIMARY KEY, name text NOT NULL, state text NOT NULL, resume_at bigint, why text,
    settings text NOT NULL, document bytea NOT NULL, created_at bigint NOT NULL, started_at bigint, ended_at bigint
);
CREATE TABLE IF NOT EXISTS @.translate_chunks (
    job text NOT NULL REFERENCES @.translate_jobs ON DELETE CASCADE, first bigint NOT NULL, last bigint NOT NULL,
    state text NOT NULL DEFAULT 'pending', due bigint NOT NULL DEFAULT 0, calls int NOT NULL DEFAULT 0,
    faults int NOT NULL DEFAULT 0, passing int NOT NULL DEFAULT 0, input bigint NOT NULL DEFAULT 0,
    output bigint NOT NULL DEFAULT 0, cost bigint NOT NULL DEFAULT 0, expected bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0, worker text, lease_until bigint NOT NULL DEFAULT 0, reason text, texts text,
    PRIMARY KEY (job, first, last)
);
CREATE TABLE IF NOT EXISTS @.translate_cache (hash bytea PRIMARY KEY, texts text NOT NULL, at bigint NOT NULL);
-- Grows with each call that is reserved money for.
CREATE TABLE IF NOT EXISTS @.translate_purses (job text PRIMARY KEY REFERENCES @.translate_jobs ON DELETE CASCADE, turn bigint NOT NULL);
COMMIT;
