CREATE TABLE job (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	ms         int NOT NULL,               -- how long it takes
	tick       bigint,                     -- of the scheduler's jobs: which one
	attempt    int NOT NULL DEFAULT 0,     -- how often it was claimed, and the fence of its lease
	worker     text,                       -- the last that claimed it
	lease      timestamptz,                -- nobody else may claim it until then
	done       timestamptz
);
CREATE INDEX job_open ON job (id) WHERE done IS NULL;

-- What jobs do to the world: an email, a payment. It cannot be undone, nor be part of the queue's transaction, so a job
-- that is run twice has two rows.
CREATE TABLE effect (
	job     bigint NOT NULL REFERENCES job,
	attempt int NOT NULL,
	worker  text NOT NULL,
	at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (job, attempt)
);
