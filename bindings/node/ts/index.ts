/**
 * Rate limits and quotas that many processes share.
 *
 * @module
 */

export { ManualClock } from "./clock.js";
export { Denied, type ErrorKind, InvalidInput, TollgateError, Unavailable } from "./errors.js";
export { type FetchOptions, wrapFetch } from "./fetch.js";
export { type BrokerOptions, Gate, type GateOptions } from "./gate.js";
export { Permit, RunPermit } from "./permit.js";
export type * from "./types.js";
