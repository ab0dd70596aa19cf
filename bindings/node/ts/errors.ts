import type { ChargeStanding, LimitStanding, RefusedLimit } from "./types.js";
import { type DeniedJson, readCharges, readLimits, readRefused, readTime } from "./wire.js";

/** The kinds of {@link TollgateError}: stable words for programs. */
export type ErrorKind =
  | "denied"
  | "invalid"
  | "forbidden"
  | "unknown-policy"
  | "conflict"
  | "contended"
  | "expired"
  | "corrupt"
  | "full"
  | "unavailable"
  | "throttled"
  | "timed-out"
  | "misconfigured"
  | "closed"
  | "internal";

/** The base of every error of this package. */
export class TollgateError extends Error {
  readonly kind: ErrorKind;

  constructor(message: string, kind: ErrorKind = "internal", options?: ErrorOptions) {
    super(message, options);
    this.kind = kind;
  }
}

/** The gate could not decide: the store or the broker is away, slow or wrongly set up. Asking again may help. */
export class Unavailable extends TollgateError {
  constructor(message: string, kind: ErrorKind = "unavailable", options?: ErrorOptions) {
    super(message, kind, options);
  }
}

/** An argument was wrong. Nothing was charged, and asking again will not help. */
export class InvalidInput extends TollgateError {
  constructor(message: string, kind: ErrorKind = "invalid", options?: ErrorOptions) {
    super(message, kind, options);
  }
}

/** A limit has no room. Nothing was charged. */
export class Denied extends TollgateError {
  /** Distinguishes a denial from a permit. */
  readonly admitted = false as const;
  readonly policy: string;
  /** The limit that binds: the one with the longest wait. */
  readonly limit: string;
  readonly unit: string;
  /** What the ask cost in that unit, and the most that one ask can ever cost. */
  readonly asked: number;
  readonly most: number;
  /** How long to wait, in whole milliseconds, rounded up; null if waiting does not help. */
  readonly retryAfterMs: number | null;
  readonly resetAtMs: number | null;
  /** True if the cost is larger than the limit, so that waiting does not help. */
  readonly never: boolean;
  /** True if the wait is an estimate: others decide when they release slots. */
  readonly estimated: boolean;
  /** With `estimated`: when enough slots will have expired. */
  readonly expiresAtMs: number | null;
  /** How many asks are queued ahead. */
  readonly waitingAhead: number;
  readonly decidedAtMs: number | null;
  /** Whether this was decided without the store. */
  readonly degraded: boolean;
  /** The index of the charge that binds, for an ask with several. */
  readonly charge: number | null;
  /** Where the subject is on every limit of the policy. */
  readonly limits: LimitStanding[];
  /** Every limit that refuses, for an ask with several charges. */
  readonly refused: RefusedLimit[];
  /** Where the subject of every charge is, for an ask with several. */
  readonly charges: ChargeStanding[];
  readonly #problem: DeniedJson;

  /** @internal */
  constructor(denial: DeniedJson) {
    super(denial.detail, "denied");
    this.#problem = denial;
    this.policy = denial.policy;
    this.limit = denial.limit;
    this.unit = denial.unit;
    this.asked = denial.asked;
    this.most = denial.most;
    this.retryAfterMs = denial.retry_after_ms ?? null;
    this.resetAtMs = readTime(denial.reset_at);
    this.never = denial.never ?? false;
    this.estimated = denial.estimated ?? false;
    this.expiresAtMs = readTime(denial.expires_at);
    this.waitingAhead = denial.waiting_ahead ?? 0;
    this.decidedAtMs = readTime(denial.decided_at);
    this.degraded = denial.degraded;
    this.charge = denial.charge ?? null;
    this.limits = readLimits(denial.limits);
    this.refused = (denial.refused ?? []).map(readRefused);
    this.charges = readCharges(denial.charges);
  }

  /** The problem document (RFC 9457) that a broker answers with status 429. */
  toJSON(): object {
    return this.#problem;
  }
}

for (const type of [TollgateError, Unavailable, InvalidInput, Denied]) {
  // On the prototype, so that it is not an own property of every error and survives minifiers.
  Object.defineProperty(type.prototype, "name", { value: type.name, configurable: true });
}

const INVALID: readonly string[] = ["invalid", "unknown-policy", "conflict", "expired"];
const UNAVAILABLE: readonly string[] = [
  "contended",
  "full",
  "unavailable",
  "throttled",
  "timed-out",
  "misconfigured",
];

/** Returns the error of a kind, in the class that callers catch. */
export function errorOfKind(kind: string, message: string, options?: ErrorOptions): TollgateError {
  if (INVALID.includes(kind)) return new InvalidInput(message, kind as ErrorKind, options);
  if (UNAVAILABLE.includes(kind)) return new Unavailable(message, kind as ErrorKind, options);
  return new TollgateError(message, kind as ErrorKind, options);
}
