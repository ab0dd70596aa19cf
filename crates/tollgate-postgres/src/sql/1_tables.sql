-- One row per policy and subject: all limits of a policy are decided and written together.
-- Room on the page keeps an update of a row beside it, so no index has to be touched.
CREATE TABLE @schema@.entries (
    policy        text COLLATE "C" NOT NULL,
    subject       text COLLATE "C" NOT NULL,
    -- The numbers of the policy that the states were written under.
    shape         bytea    NOT NULL,
    -- Counts every change of the row; a fresh row starts at its time, so a number never comes twice.
    revision      bigint   NOT NULL,
    at_us         bigint   NOT NULL,
    next_stamp    bigint   NOT NULL,
    -- For each limit: its kind, how many numbers follow, and those numbers.
    --   0 bucket    used
    --   1 window    sum, then (time, amount) for each logged amount, oldest first
    --   2 calendar  end of the open page, used, how much of it counts in the next page too
    --   3 slots     (stamp, expiry, places) for each holder, in order of expiry
    states        bigint[] NOT NULL,
    -- Ids of asks, and for each: admitted at, stamp, expires at, then the amount of each unit.
    ids           text[]   NOT NULL DEFAULT '{}',
    id_numbers    bigint[] NOT NULL DEFAULT '{}',
    -- Settled permits as runs of stamps: (first, last, admitted at).
    settled       bigint[] NOT NULL DEFAULT '{}',
    settled_floor bigint   NOT NULL DEFAULT 0,
    -- Closed limits: (place from 0, until).
    closed        bigint[] NOT NULL DEFAULT '{}',
    -- The last change of numbers after which permits with a smaller stamp give nothing back, and when the row was last
    -- written before: (stamp, at). Over once the last of those permits is too old.
    changed       bigint[] NOT NULL DEFAULT '{}',
    -- From this time on the row is equivalent to an absent one.
    absent_at_us  bigint   NOT NULL,
    PRIMARY KEY (policy, subject)
) WITH (fillfactor = 70);

CREATE TYPE @schema@.taken AS (states bigint[], idle_at_us bigint);

-- The result of a function: what it did, when, and the row as it is now (null columns without a row).
CREATE TYPE @schema@.answer AS (
    did           text,
    now_us        bigint,
    stamp         bigint,
    shape         bytea,
    revision      bigint,
    at_us         bigint,
    next_stamp    bigint,
    states        bigint[],
    ids           text[],
    id_numbers    bigint[],
    settled       bigint[],
    settled_floor bigint,
    closed        bigint[],
    changed       bigint[]
);

-- The key that brokers on this database seal permits with; 244 random bits, made once.
CREATE TABLE @schema@.secrets (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), permit_key bytea NOT NULL);
INSERT INTO @schema@.secrets (permit_key) VALUES
    (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
