import { show } from "./ask.js";
import { InvalidInput } from "./errors.js";
import { call, native } from "./native.js";

/** A clock for tests: time passes only when it is told to. */
export class ManualClock {
  /** @internal */
  readonly native;

  /** Starts at `nowMs`, milliseconds since 1970. */
  constructor(nowMs: number) {
    checkTime("nowMs", nowMs);
    this.native = call(() => new native.NativeClock(nowMs));
  }

  /** The time in milliseconds since 1970. */
  get now(): number {
    return this.native.now();
  }

  /** Sets the time. */
  set(nowMs: number): void {
    checkTime("nowMs", nowMs);
    call(() => this.native.set(nowMs));
  }

  /** Lets `ms` milliseconds pass, and wakes the asks whose wait is over. */
  advance(ms: number): void {
    checkTime("ms", ms);
    call(() => this.native.advance(ms));
  }
}

function checkTime(name: string, value: unknown): void {
  if (typeof value !== "number" || !Number.isFinite(value) || value < 0) {
    throw new InvalidInput(`${name}: expected milliseconds, not ${show(value)}`);
  }
}
