// The JSON of a broker, which is also how the native module describes decisions.

import type { ChargeStanding, LimitStanding, RefusedLimit } from "./types.js";

export interface LimitJson {
  name: string;
  unit: string;
  limit: number;
  used: number;
  remaining: number;
  reset_at: string | null;
  full_at: string | null;
  refilled_at?: string | null;
}

export interface ChargeJson {
  policy: string;
  subject: string;
  limits: LimitJson[];
}

export interface RefusedJson {
  charge: number;
  policy: string;
  subject: string;
  limit: string;
  unit: string;
  retry_after_ms?: number;
  reset_at?: string | null;
  never?: boolean;
}

export interface DeniedJson {
  type?: string;
  title?: string;
  status?: number;
  detail: string;
  policy: string;
  limit: string;
  unit: string;
  asked: number;
  most: number;
  retry_after_ms?: number | null;
  reset_at?: string | null;
  never?: boolean;
  estimated?: boolean;
  expires_at?: string | null;
  waiting_ahead?: number;
  decided_at?: string | null;
  degraded: boolean;
  charge?: number | null;
  limits: LimitJson[];
  refused?: RefusedJson[];
  charges?: ChargeJson[];
}

export interface AdmittedJson {
  admitted: true;
  permit: string;
  limits: LimitJson[];
  degraded: boolean;
  use_by?: string | null;
  expires_at?: string | null;
  shadow_denied?: DeniedJson;
  charges?: ChargeJson[];
}

/** Returns milliseconds since 1970 with the microseconds as a fraction, which `Date.parse` drops. */
export function readTime(text: string | null | undefined): number | null {
  if (text === null || text === undefined) return null;
  const [, seconds, fraction = ""] = /^([^.]*?)(?:\.(\d+))?Z$/.exec(text) ?? [];
  const at = Date.parse(`${seconds}Z`);
  if (Number.isNaN(at)) return null;
  return at + Number(`0.${fraction}`) * 1000;
}

export function readLimits(limits: readonly LimitJson[]): LimitStanding[] {
  return limits.map((limit) => ({
    name: limit.name,
    unit: limit.unit,
    limit: limit.limit,
    used: limit.used,
    remaining: limit.remaining,
    resetAtMs: readTime(limit.reset_at),
    fullAtMs: readTime(limit.full_at),
    refilledAtMs: readTime(limit.refilled_at),
  }));
}

export function readCharges(charges: readonly ChargeJson[] | undefined): ChargeStanding[] {
  return (charges ?? []).map(({ policy, subject, limits }) => ({
    policy,
    subject,
    limits: readLimits(limits),
  }));
}

export function readRefused(refused: RefusedJson): RefusedLimit {
  return {
    charge: refused.charge,
    policy: refused.policy,
    subject: refused.subject,
    limit: refused.limit,
    unit: refused.unit,
    retryAfterMs: refused.retry_after_ms ?? null,
    resetAtMs: readTime(refused.reset_at),
    never: refused.never ?? false,
  };
}
