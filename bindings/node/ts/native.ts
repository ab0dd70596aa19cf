// The native module: its types, where it is, and the results that it delivers later.

import { existsSync, readdirSync } from "node:fs";
import path from "node:path";

import { TollgateError, errorOfKind } from "./errors.js";

/** A result, or the number of its completion. */
type Answer = NativePermit | NativeGate | string | boolean | number;

export interface NativePermit {
  settle(completions: Completions, actual: string | null): Answer;
  check(actual: string): void;
  release(completions: Completions): Answer;
  renew(completions: Completions): Answer;
  violation(completions: Completions, limit: string | null, retryAfterMs: number): Answer;
  token(): string;
  charges(): string;
  costs(): string;
  rateLimit(): string;
  decidedAtMs(): number;
  useByMs(): number | null;
  expiresAtMs(): number | null;
  holdsSlots(): boolean;
  isDegraded(): boolean;
  isShadowDenied(): boolean;
}

export interface NativeGate {
  acquirePlain(completions: Completions, policy: string, subject: string, unit?: string, cost?: number): Answer;
  acquire(completions: Completions, ask: string): Answer;
  charge(completions: Completions, ask: string): Answer;
  standing(completions: Completions, policy: string, subject: string): Answer;
  reset(completions: Completions, policy: string, subject: string): Answer;
  violation(
    completions: Completions,
    policy: string,
    subject: string,
    limit: string | null,
    retryAfterMs: number,
  ): Answer;
  permit(completions: Completions, token: string): Answer;
  close(completions: Completions): Answer;
  policy(name: string, subject: string): string;
  policies(): string;
  rateLimitPolicy(name: string, subject: string): string;
  now(): number;
  storeKind(): string;
  isDegraded(): boolean;
  waiting(): number;
}

export interface NativeMeter {
  estimate(): string;
  model(): string;
  requestBody(body: Uint8Array): Uint8Array<ArrayBuffer>;
  begin(contentType: string): boolean;
  feed(bytes: Uint8Array): Uint8Array<ArrayBuffer> | null;
  finish(): Uint8Array<ArrayBuffer>;
  end(ending: "complete" | "broken" | "abandoned"): string;
}

interface NativeClock {
  now(): number;
  set(nowMs: number): void;
  advance(ms: number): void;
}

interface Failure {
  kind: string;
  message: string;
}

interface Completions {
  flush(): void;
  /** The number of each operation that finished, and then its result. */
  drain(): (number | Answer | Failure)[];
  cancel(id: number): void;
}

interface NativeModule {
  Completions: new (wake: () => void) => Completions;
  NativeClock: new (nowMs: number) => NativeClock;
  openGate(completions: Completions, source: string, isFile: boolean, clock: NativeClock | null): Answer;
  brokerPolicies(completions: Completions, url: string, key: string | null): Answer;
  checkUsage(usage: string): void;
  dialectOfHost(host: string): string | null;
  meter(call: {
    dialect: string;
    method: string;
    path: string;
    query?: string;
    body: Uint8Array;
    limits: string;
    usage?: string;
  }): NativeMeter | null;
  refusal(
    dialect: string,
    status: number,
    headers: string,
    body: Uint8Array,
    nowMs: number,
  ): { isQuota: boolean; units: string[]; retryAfterMs?: number };
  denialBody(dialect: string, message: string, retryAfterMs: number | null): Uint8Array<ArrayBuffer>;
}

function load(): NativeModule {
  const folder = path.join(__dirname, "..", "native");
  const platform = `${process.platform}-${process.arch}`;
  // A module for glibc does not load with musl, nor the other way round, so the loader need not detect which of them runs.
  const names = process.platform === "linux" ? [`${platform}-gnu`, `${platform}-musl`] : [platform];
  const causes: Error[] = [];
  for (const file of names.map((name) => path.join(folder, `tollgate.${name}.node`))) {
    if (!existsSync(file)) continue;
    try {
      return require(file) as NativeModule;
    } catch (error) {
      causes.push(error as Error);
    }
  }
  const built = existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith(".node")) : [];
  const has = built.length === 0 ? "no native module" : built.join(", ");
  const why = causes.map(({ message }) => ` (${message.split("\n")[0]})`).join("");
  throw new TollgateError(
    `tollgate cannot load its native module for ${platform}; this package has ${has}${why}. ` +
      "Install the package that was built for this platform, or use tollgate/edge with a broker, which needs none",
    "misconfigured",
    { cause: causes[0] },
  );
}

export const native = load();

interface Waiter {
  resolve(value: never): void;
  reject(error: unknown): void;
}

const waiters = new Map<number, Waiter>();

// Keeps the process alive while something is under way, and lets it end when nothing is.
const keepAlive = setInterval(() => {}, 2 ** 31 - 1).unref();

const completions = new native.Completions(() => {
  const done = completions.drain();
  for (let index = 0; index < done.length; index += 2) {
    const id = done[index] as number;
    const waiter = waiters.get(id);
    if (waiter === undefined) continue;
    forget(id);
    const result = done[index + 1];
    if (isFailure(result)) waiter.reject(errorOfKind(result.kind, result.message));
    else waiter.resolve(result as never);
  }
});

function isFailure(result: unknown): result is Failure {
  return typeof result === "object" && "kind" in (result as object);
}

function forget(id: number): void {
  waiters.delete(id);
  if (waiters.size === 0) keepAlive.unref();
}

let isFlushing = false;

/** Starts what is submitted in this turn of the event loop with one wake-up of another thread. */
function flushLater(): void {
  if (isFlushing) return;
  isFlushing = true;
  process.nextTick(flush);
}

function flush(): void {
  isFlushing = false;
  try {
    completions.flush();
  } catch (error) {
    const { code, message } = error as { code: string; message: string };
    for (const [id, waiter] of [...waiters]) {
      completions.cancel(id);
      forget(id);
      waiter.reject(errorOfKind(code, message));
    }
  }
}

/** Throws what the native module threw as an error of this package. */
function rethrow(error: unknown): never {
  const { code, message } = error as { code?: string; message: string };
  throw code === undefined ? error : errorOfKind(code, message);
}

/** Calls `operation` of the native module. */
export function call<T>(operation: () => T): T {
  try {
    return operation();
  } catch (error) {
    return rethrow(error);
  }
}

/** Starts an operation: its value if it is done at once, otherwise a promise. An abort of `signal` gives it up. */
export function start<T>(
  operation: (completions: Completions) => Answer,
  signal?: AbortSignal,
): T | Promise<T> {
  let answer: Answer;
  try {
    answer = operation(completions);
  } catch (error) {
    return rethrow(error);
  }
  if (typeof answer !== "number") return answer as T;
  flushLater();
  return wait(answer, signal);
}

function wait<T>(id: number, signal: AbortSignal | undefined): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    if (waiters.size === 0) keepAlive.ref();
    if (signal === undefined) {
      waiters.set(id, { resolve, reject });
      return;
    }
    const abort = (): void => {
      // Whatever was admitted and has not arrived here is released by the native module.
      completions.cancel(id);
      forget(id);
      reject(signal.reason);
    };
    signal.addEventListener("abort", abort, { once: true });
    const done = (): void => signal.removeEventListener("abort", abort);
    waiters.set(id, {
      resolve: (value: T) => {
        done();
        resolve(value);
      },
      reject: (error) => {
        done();
        reject(error);
      },
    });
  });
}
