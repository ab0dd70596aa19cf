-- Who was limited, when and why, written in batches by brokers. Nothing is decided by it.
CREATE TABLE @schema@.audit (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us          bigint  NOT NULL,
    policy         text COLLATE "C" NOT NULL,
    subject        text COLLATE "C" NOT NULL,
    outcome        text COLLATE "C" NOT NULL,
    degraded       boolean NOT NULL,
    -- The limit in the way; all of these are null where there was none.
    limit_name     text COLLATE "C",
    unit           text COLLATE "C",
    asked          bigint,
    -- Null also where waiting does not help.
    retry_after_us bigint
);
CREATE INDEX ON @schema@.audit (subject, number);
CREATE INDEX ON @schema@.audit (outcome, number);
CREATE INDEX ON @schema@.audit (at_us);
