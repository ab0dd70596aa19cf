-- What was overridden at run time: one document for all brokers.
CREATE TABLE @schema@.overrides (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    version  bigint NOT NULL,
    document text   NOT NULL
);
