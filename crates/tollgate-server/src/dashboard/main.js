// The loop: once a second it reads the counts, every other second the audit and the queues, and shows when the broker does not respond.

import { lookUp, showAudit, showStanding } from "/dashboard/audit.js";
import { showGateway } from "/dashboard/gateway.js";
import { byId, clock, counted, micros, number, rate, read, Refused, useKey, write } from "/dashboard/page.js";
import { forget, listPolicies, showCounts } from "/dashboard/policies.js";
import { showWaiting } from "/dashboard/waiting.js";

const POLL_MS = 1000;
const POLICIES_EVERY = 15; // policies change seldom

let turn = 0;
let lostAt = null;

function showTiles(stats, rates) {
  const sum = (kind) => stats.policies.reduce((all, counts) => all + counts[kind], 0);
  for (const kind of ["admitted", "refused"]) {
    if (rates) write(`now-${kind}`, `${rate(rates[kind])}/s`);
    write(`all-${kind}`, `${number(sum(kind))} in all`);
  }
  const { latency, store } = stats;
  write("p50", latency.decisions ? micros(latency.p50_us) : "–");
  write("p99", latency.decisions ? `median; 99 of 100 within ${micros(latency.p99_us)}` : "no decisions of late");
  write("store", store.degraded ? "away" : "answers");
  byId("store").className = store.degraded ? "stop" : "go";
  const failed = sum("failed");
  const owing = store.owing ? counted(store.owing, "subject owes it", "subjects owe it") : "";
  write("store-more", [store.kind, failed ? `${counted(failed, "ask")} failed` : "", owing].filter(Boolean).join(" · "));
  const banner = byId("degraded");
  banner.hidden = !store.degraded;
  if (store.degraded) {
    const since = store.degraded_since ? ` since ${clock(store.degraded_since)}` : "";
    write("degraded", `Degraded${since}: the store does not answer, and decisions are made without it as each policy says.`);
  }
  const dropped = stats.audit.dropped ? `, ${counted(stats.audit.dropped, "record")} of the audit dropped` : "";
  write("since", `counting since ${new Date(stats.since).toLocaleString()}${dropped}`);
}

function state(name, text) {
  byId("state").className = name;
  write("state-text", text);
}

function found() {
  lostAt = null;
  byId("lost").hidden = true;
  byId("key-form").hidden = true;
}

function lost(error) {
  if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
    byId("key-form").hidden = false;
    state("lost", "needs a key");
    return;
  }
  lostAt ??= new Date();
  state("lost", "no answer");
  byId("lost").hidden = false;
  const what = error instanceof Refused ? `The broker cannot answer: ${error.message}.` : "The broker does not answer.";
  write("lost", `${what} What is shown is as of ${clock(lostAt)}. Trying again every second.`);
  forget();
}

async function tick() {
  const signal = AbortSignal.timeout(5 * POLL_MS);
  try {
    if (turn % POLICIES_EVERY === 0 || lostAt) await listPolicies(signal);
    const stats = await read("/v1/stats", signal);
    showTiles(stats, showCounts(stats));
    showGateway(stats);
    if (turn % 2 === 0) await Promise.all([showAudit(signal), showWaiting(signal)]);
    byId("standing").ariaLive = "off"; // a lookup is read out once, not every second
    await showStanding(signal);
    found();
    state(stats.store.degraded ? "warn" : "live", stats.store.degraded ? "degraded" : "live");
    turn += 1;
  } catch (error) {
    lost(error);
    turn = 0;
  }
  setTimeout(tick, POLL_MS);
}

byId("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp(byId("policy").value, byId("subject").value);
});

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
});

// A link may carry a lookup, as in /#policy=api&subject=alice.
async function start() {
  await listPolicies().catch(() => {});
  const link = new URLSearchParams(location.hash.slice(1));
  if (link.get("policy") && link.get("subject")) lookUp(link.get("policy"), link.get("subject"));
  tick();
}

start();
