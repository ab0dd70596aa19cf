// Five videos per user in any 24 hours, counted in the table that has them anyway.
//
// The functions in the database decide (tollgate postgres install --table video_requests --limit 5 --window 24h). While the database is
// away, requests are let through up to the same limit for each user in this process, and written down later.
import { randomUUID } from "node:crypto";

import { Gate } from "tollgate";

/** The most requests that are kept while the database is away. */
const KEPT_MAX = 10_000;

/** What is let through without the database: five per user, as the database would. */
const OUTAGE = {
  name: "outage",
  limits: [{ name: "daily", unit: "requests", rule: "rolling-window", limit: 5, window: "24h" }],
};

/**
 * Whether the database cannot be used at all: no connection, no resources, or it is being stopped. A user whose row is locked by
 * another transaction for too long (55P03) is no outage.
 */
const isAway = (error) => (error.severity === undefined ? error instanceof Error : /^(08|53|57P)/.test(error.code ?? ""));

/** The quota over the rows of a table, which fails open. */
export class Quota {
  #pool;
  #outage;
  #log;
  #schema;
  #kept = [];
  #replaying = Promise.resolve();

  constructor(pool, outage, log, schema) {
    this.#pool = pool;
    this.#outage = outage;
    this.#log = log;
    this.#schema = schema;
    // An idle connection that the server ends is no reason to end the process.
    pool.on("error", (error) => log.error("the database closed a connection:", error.message));
  }

  /** Counts in the schema that `tollgate postgres install` wrote, by connections of `pool` (of the package pg). */
  static async open(pool, { log = console, schema = "video_requests_quota" } = {}) {
    return new Quota(pool, await Gate.memory([OUTAGE]), log, schema);
  }

  /** How many requests wait to be written. */
  get kept() {
    return this.#kept.length;
  }

  /**
   * Inserts a request if there is room: `{ allowed, remaining, resetTime, waitSeconds }`. A repeat with the same key is charged once.
   */
  async consume(user, { key = null, ...columns } = {}) {
    try {
      await this.#replay();
      return await this.#call("consume($1, $2, $3::jsonb)", [user, key, JSON.stringify(columns)]);
    } catch (error) {
      if (!isAway(error)) throw error;
      return this.#withoutDatabase({ user, key: key ?? randomUUID(), columns, at: new Date() }, error);
    }
  }

  /** Answers as `consume` would, and consumes nothing. */
  async check(user) {
    try {
      return await this.#call("check($1)", [user]);
    } catch (error) {
      if (!isAway(error)) throw error;
      this.#log.error("the quota cannot be read:", error.message);
      const [{ remaining }] = await this.#outage.standing("outage", user);
      return { allowed: remaining > 0, remaining: 0, degraded: true };
    }
  }

  /** Returns `{ quotaUsed, quotaLimit, resetTime, resetIn }`. */
  info(user) {
    return this.#call("info($1)", [user]);
  }

  async #call(call, values) {
    // One statement: the lock of the user ends with it.
    const { rows } = await this.#pool.query(`SELECT "${this.#schema}".${call} AS answer`, values);
    return rows[0].answer;
  }

  async #withoutDatabase(request, error) {
    this.#log.error("the database is unavailable:", error.message);
    this.#log.warn("Rate limiting degraded - database unavailable");
    const isFull = this.#kept.length >= KEPT_MAX;
    const { admitted } = isFull ? { admitted: false } : await this.#outage.tryAcquire({ policy: "outage", subject: request.user });
    if (admitted) this.#kept.push(request);
    return { allowed: admitted, remaining: 0, degraded: true };
  }

  /** Writes down what was let through, at the time it was made, also beyond the limit: it was made. */
  #replay() {
    const replayed = this.#replaying.then(async () => {
      while (this.#kept.length > 0) {
        const { user, key, at, columns } = this.#kept[0];
        await this.#call("replay($1, $2, $3, $4::jsonb)", [user, key, at, JSON.stringify(columns)]);
        this.#kept.shift();
      }
    });
    this.#replaying = replayed.catch(() => {});
    return replayed;
  }
}
