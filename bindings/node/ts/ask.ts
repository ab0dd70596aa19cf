// Checks of arguments that the type system cannot make for callers in JavaScript, and the JSON of an ask.

import { InvalidInput } from "./errors.js";
import type { Ask, Charge, Costs } from "./types.js";

/** The JSON of an ask, as a broker takes it. */
export interface AskJson {
  policy?: string;
  subject?: string;
  charges?: { policy: string; subject: string; costs?: Costs }[];
  costs?: Costs;
  id?: string;
  id_ttl_ms?: number;
  wait_ms?: number;
  tenant?: string;
}

const ASK_FIELDS = ["policy", "subject", "charges", "costs", "id", "waitMs", "tenant", "signal"];
const CHARGE_FIELDS = ["policy", "subject", "costs"];

/** Returns the JSON of `ask` without its wait and its signal. */
export function askJson(ask: Ask): AskJson {
  checkFields("ask", ask, ASK_FIELDS);
  checkSignal(ask.signal);
  const json: AskJson = {};
  if (ask.charges !== undefined) {
    if (ask.policy !== undefined || ask.subject !== undefined) {
      throw new InvalidInput("ask: name a policy and a subject, or charges, not both");
    }
    if (!Array.isArray(ask.charges) || ask.charges.length === 0) {
      throw new InvalidInput(
        `ask.charges: expected a list of { policy, subject, costs? }, not ${show(ask.charges)}`,
      );
    }
    json.charges = (ask.charges as readonly Charge[]).map((charge, index) => {
      const name = `ask.charges[${index}]`;
      checkFields(name, charge, CHARGE_FIELDS);
      checkText(`${name}.policy`, charge.policy);
      checkText(`${name}.subject`, charge.subject);
      if (charge.costs !== undefined) checkCosts(`${name}.costs`, charge.costs);
      return { policy: charge.policy, subject: charge.subject, ...(charge.costs && { costs: charge.costs }) };
    });
  } else {
    checkText("ask.policy", ask.policy);
    checkText("ask.subject", ask.subject);
    json.policy = ask.policy;
    json.subject = ask.subject;
  }
  if (ask.costs !== undefined) {
    checkCosts("ask.costs", ask.costs);
    json.costs = ask.costs;
  }
  if (ask.id !== undefined) {
    checkText("ask.id", ask.id);
    json.id = ask.id;
  }
  if (ask.tenant !== undefined) {
    checkText("ask.tenant", ask.tenant);
    json.tenant = ask.tenant;
  }
  if (ask.waitMs !== undefined) checkWhole("ask.waitMs", ask.waitMs);
  return json;
}

export function checkFields(name: string, value: unknown, known: readonly string[]): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InvalidInput(`${name}: expected an object with ${known.join(", ")}, not ${show(value)}`);
  }
  for (const field of Object.keys(value)) {
    if (!known.includes(field)) {
      throw new InvalidInput(`${name}: unknown field ${JSON.stringify(field)}; use ${known.join(", ")}`);
    }
  }
}

export function checkText(name: string, value: unknown): asserts value is string {
  if (typeof value !== "string" || value === "") {
    throw new InvalidInput(`${name}: expected a non-empty string, not ${show(value)}`);
  }
}

export function checkWhole(name: string, value: unknown): asserts value is number {
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
    throw new InvalidInput(`${name}: expected a non-negative integer, not ${show(value)}`);
  }
}

export function checkCosts(name: string, costs: unknown): asserts costs is Costs {
  if (typeof costs !== "object" || costs === null || Array.isArray(costs)) {
    throw new InvalidInput(`${name}: expected an object such as { tokens: 3750 }, not ${show(costs)}`);
  }
  for (const unit of Object.keys(costs)) {
    checkWhole(`${name}.${unit}`, (costs as Record<string, unknown>)[unit]);
  }
}

export function checkSignal(signal: unknown): asserts signal is AbortSignal | undefined {
  if (signal === undefined) return;
  const { aborted, addEventListener } = (signal ?? {}) as Partial<AbortSignal>;
  if (typeof aborted !== "boolean" || typeof addEventListener !== "function") {
    throw new InvalidInput(`ask.signal: expected an AbortSignal, not ${show(signal)}`);
  }
}

/** Returns a value as it may appear in a message: short, and never a secret's worth of text. */
export function show(value: unknown): string {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value.length <= 40 ? value : `${value.slice(0, 40)}…`);
    case "function":
      return "a function";
    case "object":
      if (value === null) return "null";
      return Array.isArray(value) ? `a list of ${value.length}` : "an object";
    default:
      return String(value);
  }
}
