import { checkCosts, checkFields, checkText, checkWhole, show } from "./ask.js";
import { InvalidInput } from "./errors.js";
import { type NativePermit, call, start } from "./native.js";
import type { ActualCosts, ChargeStanding, Costs, LimitStanding, Violation } from "./types.js";
import { type ChargeJson, readCharges } from "./wire.js";

/** Proof of admission: later settled with the actual cost, or released. */
export class Permit {
  /** Distinguishes a permit from a denial. */
  readonly admitted = true as const;
  #native: NativePermit;
  #charges: ChargeStanding[] | undefined;

  /** @internal */
  constructor(native: NativePermit) {
    this.#native = native;
  }

  /**
   * Replaces the estimate by what the call really cost, and frees slots. A unit that is not named keeps its estimate. `own`
   * settles charges that have costs of their own. Idempotent; returns whether anything changed.
   */
  async settle(actual: Costs = {}, own?: ActualCosts["charges"]): Promise<boolean> {
    const json = actualJson(actual, own);
    return start((completions) => this.#native.settle(completions, json));
  }

  /** Gives everything back: the call was not made. Idempotent; returns whether anything changed. */
  async release(): Promise<boolean> {
    return start((completions) => this.#native.release(completions));
  }

  /** Extends the slots that it holds by another time to live. */
  async renew(): Promise<void> {
    this.#native = await start<NativePermit>((completions) => this.#native.renew(completions));
  }

  /** Reports that the provider refused the call, and closes the limit for as long as it asked to wait. */
  async violation(violation: Violation): Promise<void> {
    const { limit, retryAfterMs } = checkViolation(violation);
    await start((completions) => this.#native.violation(completions, limit, retryAfterMs));
  }

  /** The permit as text, with which another process on the same store settles it: see `Gate.permit`. */
  get token(): string {
    return call(() => this.#native.token());
  }

  /** Where the subject of the first charge is. */
  get limits(): LimitStanding[] {
    return this.charges[0]?.limits ?? [];
  }

  /** Where the subject of every charge is. */
  get charges(): ChargeStanding[] {
    this.#charges ??= readCharges(JSON.parse(this.#native.charges()) as ChargeJson[]);
    return this.#charges;
  }

  /** What was charged, by charge. */
  get costs(): Costs[] {
    return JSON.parse(this.#native.costs()) as Costs[];
  }

  get decidedAtMs(): number {
    return this.#native.decidedAtMs();
  }

  /** Until when the call should reach the provider, if a limit has a margin. */
  get useByMs(): number | null {
    return this.#native.useByMs() ?? null;
  }

  /** When the slots that it holds expire, unless they are renewed. */
  get expiresAtMs(): number | null {
    return this.#native.expiresAtMs() ?? null;
  }

  /** Whether this was decided without the store. */
  get degraded(): boolean {
    return this.#native.isDegraded();
  }

  /** Whether a policy in shadow mode would have denied it; such a charge counts nothing. */
  get shadowDenied(): boolean {
    return this.#native.isShadowDenied();
  }

  /** The value of the header field `RateLimit`. */
  get rateLimit(): string {
    return call(() => this.#native.rateLimit());
  }

  /** @internal */
  get holdsSlots(): boolean {
    return this.#native.holdsSlots();
  }

  /** @internal Throws for costs that `settle` would refuse. */
  check(actual: Costs): void {
    const json = actualJson(actual, undefined);
    if (json !== null) call(() => this.#native.check(json));
  }
}

/** The permit of a function that `Gate.run` calls: what it records is sent when the function ends. */
export class RunPermit {
  readonly permit: Permit;
  #actual: Costs | undefined;
  #isReleased = false;

  /** @internal */
  constructor(permit: Permit) {
    this.permit = permit;
  }

  /** Records what the call really cost. Later calls add to and replace units of earlier ones. */
  settle(actual: Costs): void {
    this.permit.check(actual);
    this.#actual = { ...this.#actual, ...actual };
  }

  /** Records that the call was not made: everything is given back. */
  release(): void {
    this.#isReleased = true;
  }

  /** Extends the slots now. */
  renew(): Promise<void> {
    return this.permit.renew();
  }

  /** Reports now that the provider refused the call. */
  violation(violation: Violation): Promise<void> {
    return this.permit.violation(violation);
  }

  get limits(): LimitStanding[] {
    return this.permit.limits;
  }

  get useByMs(): number | null {
    return this.permit.useByMs;
  }

  get degraded(): boolean {
    return this.permit.degraded;
  }

  /** @internal Sends what was recorded. Without a record the estimate stays, and slots are freed. */
  async finish(): Promise<void> {
    if (this.#isReleased) await this.permit.release();
    else if (this.#actual !== undefined || this.permit.holdsSlots) await this.permit.settle(this.#actual);
  }
}

function actualJson(actual: Costs, own: ActualCosts["charges"]): string | null {
  checkCosts("actual", actual);
  if (own === undefined) return Object.keys(actual).length === 0 ? null : JSON.stringify({ actual });
  if (!Array.isArray(own)) {
    throw new InvalidInput(`own: expected a list of { charge, actual }, not ${show(own)}`);
  }
  (own as NonNullable<ActualCosts["charges"]>).forEach((charge, index) => {
    checkFields(`own[${index}]`, charge, ["charge", "actual"]);
    checkWhole(`own[${index}].charge`, charge.charge);
    checkCosts(`own[${index}].actual`, charge.actual);
  });
  return JSON.stringify({ actual, charges: own });
}

export function checkViolation(violation: Violation): { limit: string | null; retryAfterMs: number } {
  checkFields("violation", violation, ["retryAfterMs", "limit"]);
  checkWhole("violation.retryAfterMs", violation.retryAfterMs);
  if (violation.limit !== undefined) checkText("violation.limit", violation.limit);
  return { limit: violation.limit ?? null, retryAfterMs: violation.retryAfterMs };
}
