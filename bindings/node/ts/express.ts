/**
 * Middleware for Express, Connect and plain `node:http`.
 *
 * @module
 */

import type { IncomingMessage, ServerResponse } from "node:http";

import { checkFields, show } from "./ask.js";
import { Denied, InvalidInput, TollgateError, Unavailable } from "./errors.js";
import { Gate } from "./gate.js";
import { RunPermit } from "./permit.js";
import type { Ask, Charge, LimitStanding } from "./types.js";

/** Settings of {@link limit}. */
export interface LimitOptions<Req extends IncomingMessage = IncomingMessage> {
  /** What a request asks for; undefined lets it through without a permit. */
  ask: (request: Req) => Ask | undefined | Promise<Ask | undefined>;
  /** What happens while the gate cannot decide: `"closed"` (the default) answers 503, `"open"` lets requests through. */
  onUnavailable?: "closed" | "open";
  /** Answers a denied request instead of the default, a problem document of status 429. The header fields are set already. */
  onDenied?: (denied: Denied, request: Req, response: ServerResponse) => void;
  /** Is told of every failure that `"open"` hides. */
  onError?: (error: TollgateError) => void;
}

const permits = new WeakMap<object, RunPermit>();

/** The permit of a request that {@link limit} let through. What is recorded on it is sent when the response has ended. */
export function permitOf(request: IncomingMessage): RunPermit | undefined {
  return permits.get(request);
}

/** Returns middleware that takes a permit for every request, and answers 429 to those that get none. */
export function limit<Req extends IncomingMessage = IncomingMessage>(
  gate: Gate,
  options: LimitOptions<Req>,
): (request: Req, response: ServerResponse, next: (error?: unknown) => void) => Promise<void> {
  if (!(gate instanceof Gate)) throw new InvalidInput(`limit: expected a Gate, not ${show(gate)}`);
  checkFields("options", options, ["ask", "onUnavailable", "onDenied", "onError"]);
  for (const name of ["ask", "onDenied", "onError"] as const) {
    if (typeof options[name] !== "function" && (name === "ask" || options[name] !== undefined)) {
      throw new InvalidInput(`options.${name}: expected a function, not ${show(options[name])}`);
    }
  }
  if (options.onUnavailable !== undefined && !["open", "closed"].includes(options.onUnavailable)) {
    throw new InvalidInput(`options.onUnavailable: use "open" or "closed", not ${show(options.onUnavailable)}`);
  }
  return async (request, response, next) => {
    let ask: Ask | undefined;
    try {
      ask = await options.ask(request);
      if (ask === undefined) return next();
      const permit = await admit(gate, ask, response);
      // The client left while it waited, so there is nobody to answer.
      if (permit === undefined) return;
      permits.set(request, permit);
      response.once("close", () => void gate.finish(permit));
      const { rateLimit } = permit.permit;
      setFields(gate, firstCharge(ask), rateLimit, response);
    } catch (error) {
      if (error instanceof Denied && ask !== undefined) {
        refuse(gate, ask, error, request, response, options.onDenied);
        return;
      }
      if (!(error instanceof TollgateError) || error instanceof InvalidInput) return next(error);
      if (options.onUnavailable === "open") {
        options.onError?.(error);
        return next();
      }
      const detail = "the rate limiter could not decide; try again later";
      const kind = error instanceof Unavailable ? error.kind : "internal";
      response.setHeader("retry-after", 1);
      problem(response, 503, { type: "about:blank", title: "Service Unavailable", status: 503, kind, detail });
      return;
    }
    next();
  };
}

/** Takes a permit, and gives up when the client does. */
async function admit(gate: Gate, ask: Ask, response: ServerResponse): Promise<RunPermit | undefined> {
  if (ask.waitMs === undefined || ask.waitMs === 0) return new RunPermit(await gate.acquire(ask));
  const left = new AbortController();
  const leave = (): void => left.abort();
  response.once("close", leave);
  try {
    const signal = ask.signal === undefined ? left.signal : AbortSignal.any([ask.signal, left.signal]);
    return new RunPermit(await gate.acquire({ ...ask, signal }));
  } catch (error) {
    if (left.signal.aborted) return undefined;
    throw error;
  } finally {
    response.removeListener("close", leave);
  }
}

function firstCharge(ask: Ask, index = 0): Charge {
  const { policy = "", subject = "" } = ask;
  return ask.charges?.[index] ?? { policy, subject };
}

function setFields(gate: Gate, { policy, subject }: Charge, rateLimit: string, response: ServerResponse): void {
  if (response.headersSent) return;
  response.setHeader("ratelimit", rateLimit);
  const rules = gate.rateLimitPolicy(policy, subject);
  if (rules !== null) response.setHeader("ratelimit-policy", rules);
}

/** The header field `RateLimit` of a denial: what remains, and in how many seconds that grows. */
function rateLimitOf(denied: Denied): string {
  const member = ({ name, remaining, resetAtMs }: LimitStanding): string => {
    const text = name.replace(/["\\]/g, "\\$&").replace(/[^ -~]/g, "?");
    const at = denied.estimated && denied.limit === name ? denied.resetAtMs : resetAtMs;
    if (at === null || denied.decidedAtMs === null) return `"${text}";r=${remaining}`;
    // Whole microseconds first: a rounding error must not add a second.
    const micros = Math.max(0, Math.round((at - denied.decidedAtMs) * 1000));
    return `"${text}";r=${remaining};t=${Math.ceil(micros / 1e6)}`;
  };
  return denied.limits.map(member).join(", ");
}

function refuse<Req extends IncomingMessage>(
  gate: Gate,
  ask: Ask,
  denied: Denied,
  request: Req,
  response: ServerResponse,
  onDenied: LimitOptions<Req>["onDenied"],
): void {
  setFields(gate, firstCharge(ask, denied.charge ?? 0), rateLimitOf(denied), response);
  if (denied.retryAfterMs !== null) response.setHeader("retry-after", Math.ceil(denied.retryAfterMs / 1000));
  // What is left is true only now.
  response.setHeader("cache-control", "no-store");
  if (onDenied !== undefined) onDenied(denied, request, response);
  else problem(response, 429, denied.toJSON());
}

function problem(response: ServerResponse, status: number, body: object): void {
  response.statusCode = status;
  response.setHeader("content-type", "application/problem+json");
  response.end(JSON.stringify(body));
}
