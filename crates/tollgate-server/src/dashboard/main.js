// The loop: once a second it reads the counts, every other second the queues, every five the history, and shows when the broker
// does not respond.

import { readAccess } from "/dashboard/actions.js";
import { showGateway } from "/dashboard/gateway.js";
import { forgetHistory, readHistory } from "/dashboard/history.js";
import { byId, clock, counted, micros, number, rate, read, Refused, useKey, write } from "/dashboard/page.js";
import { drawPolicies, forget, listPolicies, showCounts, startPolicies, STORES_APART } from "/dashboard/policies.js";
import { showRefusals, startRefusals } from "/dashboard/refusals.js";
import { lookUp, showStanding, showSubjectPast, startSubject } from "/dashboard/subject.js";
import { showTranslations } from "/dashboard/translations.js";
import { drawWaiting, showWaiting } from "/dashboard/waiting.js";

const POLL_MS = 1000;
const POLICIES_EVERY = 15; // policies change seldom
const HISTORY_EVERY = 5; // twice in a bucket
const REFUSALS_EVERY = 10; // records of other brokers; those of this one are noticed by their number
const TRANSLATIONS_EVERY = 30; // the job store is asked for each job
const BROKER_SECS = 30; // after which a broker that does not answer any more is given up for another

let turn = 0;
let lostAt = null;
let recorded = null; // how many records of the audit there were

// ---- several brokers behind one address

let broker = null; // the one that this page shows
let brokerSeenAt = 0;
const brokers = new Set();

/** Whether `stats` are of the broker that this page shows. Behind a load balancer others answer, too, whose counts are others. */
function isOurs(stats) {
  const now = performance.now();
  brokers.add(stats.broker);
  if (broker !== stats.broker && (broker === null || now - brokerSeenAt > BROKER_SECS * 1000)) {
    // A broker that started anew, or the first.
    brokers.clear();
    brokers.add(stats.broker);
    if (broker !== null) {
      forget();
      forgetHistory();
    }
    broker = stats.broker;
  }
  if (broker === stats.broker) brokerSeenAt = now;
  byId("several").hidden = brokers.size < 2;
  if (brokers.size > 1) write("several", `${counted(brokers.size, "broker")} answer at this address. Counts and charts are those of one of them, ${broker}; open the others at their own addresses.`);
  return broker === stats.broker;
}

function showScope({ store }) {
  const kind = STORES_APART.get(store.kind);
  write("scope", kind ? `Counts and charts are those of this broker. Other brokers on the same ${kind} store have their own.` : "");
  byId("scope").hidden = !kind;
}

function showTiles(stats, rates) {
  const sum = (kind) => stats.policies.reduce((all, counts) => all + counts[kind], 0);
  for (const kind of ["admitted", "refused"]) {
    if (rates) write(`now-${kind}`, `${rate(rates[kind])}/s`);
    write(`all-${kind}`, `${number(sum(kind))} in all`);
  }
  const shadow = sum("shadow_denied");
  if (shadow) write("all-refused", `${number(sum("refused"))} in all · ${number(shadow)} in shadow`);
  byId("refused-mark").className = `mark ${rates?.refused ? "stop" : ""}`;
  const { latency, store } = stats;
  write("p50", latency.decisions ? micros(latency.p50_us) : "–");
  write("p99", latency.decisions ? `median; 99 of 100 within ${micros(latency.p99_us)}` : "no decisions of late");
  write("store", store.degraded ? "away" : "answers");
  byId("store").className = store.degraded ? "stop" : "";
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
  write("since", `broker ${stats.broker}, counting since ${new Date(stats.since).toLocaleString()}${dropped}`);
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

async function showHistory(signal) {
  await Promise.all([readHistory(signal), showSubjectPast(signal)]);
  drawPolicies();
  drawWaiting();
}

function showLinks() {
  for (const link of document.querySelectorAll("nav a[data-section]")) link.hidden = byId(link.dataset.section).hidden;
}

async function tick() {
  const signal = AbortSignal.timeout(5 * POLL_MS);
  try {
    if (turn % POLICIES_EVERY === 0 || lostAt) await listPolicies(signal);
    if (turn === 0) await readAccess();
    const stats = await read("/v1/stats", signal);
    if (isOurs(stats)) {
      showTiles(stats, showCounts(stats));
      showScope(stats);
      showGateway(stats);
    }
    if (turn % HISTORY_EVERY === 0) await showHistory(signal);
    if (turn % REFUSALS_EVERY === 0 || stats.audit.recorded !== recorded) await showRefusals(signal);
    recorded = stats.audit.recorded;
    if (turn % 2 === 0) await showWaiting(signal);
    // A slow job store does not hold up the rest.
    if (turn % TRANSLATIONS_EVERY === 0) showTranslations(AbortSignal.timeout(20 * POLL_MS)).catch(() => {});
    byId("standing").ariaLive = "off"; // a lookup is read out once, not every second
    await showStanding(signal);
    showLinks();
    found();
    state(stats.store.degraded ? "warn" : "live", stats.store.degraded ? "degraded" : "live");
    turn += 1;
  } catch (error) {
    lost(error);
    turn = 0;
  }
  setTimeout(tick, POLL_MS);
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
});

// Links to sections leave the address alone, which may carry a lookup.
for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const title = byId(link.getAttribute("href").slice(1));
    title.scrollIntoView({ block: "start" });
    title.focus({ preventScroll: true });
  });
}

// A link may carry a lookup, as in /#policy=api&subject=alice.
async function start() {
  startPolicies(() => showHistory().catch(() => {}));
  startRefusals();
  startSubject(() => listPolicies());
  await listPolicies().catch(() => {});
  const link = new URLSearchParams(location.hash.slice(1));
  if (link.get("policy") && link.get("subject")) lookUp(link.get("policy"), link.get("subject"));
  tick();
}

start();
