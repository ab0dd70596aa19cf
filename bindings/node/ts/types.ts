/** How much an ask costs, by unit. `requests` costs 1 unless it is named; other units cost 0. */
export type Costs = Readonly<Record<string, number>>;

/** One part of an ask: what is charged to one subject under one policy. */
export interface Charge {
  policy: string;
  subject: string;
  /** Costs of this charge alone. Without them, those of the ask apply. */
  costs?: Costs;
}

/** What every form of an ask may have. */
export interface AskOptions {
  /** Costs of every charge that names none of its own. */
  costs?: Costs;
  /** Makes a repeat recognisable: an ask with the same id within 120 s is charged once. */
  id?: string;
  /** Waits at most so long for room, first come, first served. Without it, a full limit denies at once. */
  waitMs?: number;
  /** Whose turn it is while several tenants wait for one limit. Without it, the subject of the first charge. */
  tenant?: string;
  /** Ends the wait. An ask that is aborted takes nothing. */
  signal?: AbortSignal;
}

/** An ask for one subject under one policy. */
export interface SingleAsk extends AskOptions {
  policy: string;
  subject: string;
  charges?: undefined;
}

/** An ask with up to eight charges: all of them are admitted, or none is charged. */
export interface JointAsk extends AskOptions {
  charges: readonly Charge[];
  policy?: undefined;
  subject?: undefined;
}

export type Ask = SingleAsk | JointAsk;

/** Where a subject is on one limit. Times are milliseconds since 1970, with fractions. */
export interface LimitStanding {
  name: string;
  unit: string;
  /** The limit, as configured. */
  limit: number;
  used: number;
  /** What could be acquired now. */
  remaining: number;
  /** When `remaining` next grows; null if it is at its maximum. */
  resetAtMs: number | null;
  /** When nothing will be used; null if nothing is used now. */
  fullAtMs: number | null;
  /** When a bucket was last refilled; null for other rules. */
  refilledAtMs: number | null;
}

/** Where the subject of one charge is. */
export interface ChargeStanding {
  policy: string;
  subject: string;
  limits: LimitStanding[];
}

/** A limit that refuses one charge of an ask. */
export interface RefusedLimit {
  /** The index of the charge in the ask. */
  charge: number;
  policy: string;
  subject: string;
  limit: string;
  unit: string;
  /** The wait, rounded up; null if waiting does not help. */
  retryAfterMs: number | null;
  resetAtMs: number | null;
  never: boolean;
}

/** What a call really cost: by unit for all charges, or by the index of a charge that has costs of its own. */
export interface ActualCosts {
  actual?: Costs;
  charges?: readonly { charge: number; actual: Costs }[];
}

/** That the provider refused a call although it was admitted. */
export interface Violation {
  /** How long the provider asked to wait. */
  retryAfterMs: number;
  /** The limit that the provider named. Without it, the one that waits longest closes. */
  limit?: string;
}

/** A limit of a policy, written as in `tollgate.toml`. */
export interface LimitSpec {
  name: string;
  /** What is counted: `requests`, `tokens`, or any word. */
  unit?: string;
  rule?: "token-bucket" | "rolling-window" | "calendar-window" | "concurrency";
  limit?: number;
  /** A span such as `"1m"`. */
  window?: string;
  resolution?: number;
  capacity?: number;
  /** A rate such as `"10/s"`. */
  refill?: string;
  mode?: "continuous" | "interval";
  period?: "minute" | "hour" | "day" | "week" | "month";
  time_zone?: string;
  ttl?: string;
  /** Part of the limit that is never issued: an amount, or a share such as `"5%"`. */
  headroom?: number | string;
  margin?: string;
}

/** A policy, written as in `tollgate.toml`. */
export interface PolicySpec {
  name: string;
  limits: LimitSpec[];
  /** Decides and counts, but never refuses. */
  shadow?: boolean;
  on_store_failure?: "closed" | "open" | "fallback";
  block_ttl?: string;
  weight?: number;
  subjects_max?: number;
  overrides?: { subject: string; limits?: LimitSpec[]; weight?: number }[];
}

/** A limit in force. */
export interface LimitDescription {
  name: string;
  unit: string;
  rule: string;
  limit: number;
  /** The most that can be issued at once, after headroom and margins. */
  effective: number;
  /** The length of the window in seconds, if it has one. */
  windowSecs: number | null;
}
