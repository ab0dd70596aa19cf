// Who was refused: recently, grouped by subject, and most often; and what providers refused.

import { bar, byId, caller, clock, counted, element, millis, number, read, table, write } from "/dashboard/page.js";
import { policyNamed } from "/dashboard/policies.js";
import { lookUp } from "/dashboard/subject.js";

const RECORDS = 200; // how many records are grouped
const GROUPS = 8; // how many groups are shown at first
const INCIDENTS = 12;
const TOP = 8;

// What a call of CL.THROTTLE carries is no policy that could be looked up.
const CARRIED = "cl.throttle";
const CARRIED_TITLE = "CL.THROTTLE with a quantity of 0 shows its standing";

const REFUSALS = new Set(["denied", "shadow_denied"]);

const isOnlyShadow = (policy) => policyNamed(policy)?.shadow === true;

/** A subject that can be looked up, unless it is a key of CL.THROTTLE. */
function subjectButton(policy, subject) {
  if (policy === CARRIED) return element("span", { className: "who", title: CARRIED_TITLE }, caller(subject));
  const button = element("button", { type: "button", className: "link who", title: "Look up its standing" }, caller(subject));
  button.dataset.who = JSON.stringify([policy, subject]);
  button.addEventListener("click", () => lookUp(policy, subject, true));
  return button;
}

/** Replaces the children of a node; the button with the keyboard focus keeps it. */
function replaceKeepingFocus(id, ...children) {
  const focused = byId(id).contains(document.activeElement) ? document.activeElement.dataset.who : null;
  byId(id).replaceChildren(...children);
  if (focused) [...byId(id).querySelectorAll("[data-who]")].find((button) => button.dataset.who === focused)?.focus();
}

/** The other charges of an ask with several: those that refused it as well say by which limit. */
function otherCharges(record) {
  const isBinding = ({ policy, subject }) => policy === record.policy && subject === record.subject;
  const name = ({ policy, subject, refused }) => [`${policy}:`, caller(subject), refused?.length ? ` (${refused.join(", ")} refused, too)` : ""];
  return (record.charges ?? []).filter((charge) => !isBinding(charge)).flatMap((charge, place) => [place ? ", " : "with ", ...name(charge)]);
}

// ---- recent refusals by subject

/** The refusals of one subject under one policy, newest first. */
function groupsOf(records) {
  const groups = new Map();
  for (const record of records) {
    const name = `${record.policy}\n${record.subject}`;
    const group = groups.get(name) ?? { newest: record, count: 0, limits: new Set(), shadow: 0 };
    group.count += 1;
    if (record.limit) group.limits.add(record.limit);
    if (record.outcome === "shadow_denied") group.shadow += 1;
    groups.set(name, group);
  }
  return [...groups.values()];
}

const waitOf = (record) => (record.never ? "never" : record.retry_after_ms === undefined ? "–" : millis(record.retry_after_ms));

const COLUMNS = [
  ["subject", "who", ({ newest }) => subjectButton(newest.policy, newest.subject)],
  ["policy", "", ({ newest }) => newest.policy],
  ["limit", "", ({ limits }) => [...limits].join(", ") || "–"],
  ["times", "number", ({ count }) => number(count)],
  ["retry after", "number", ({ newest }) => waitOf(newest)],
  ["last", "number", ({ newest }) => clock(newest.at)],
];

/** Adds to the subject of a group what is special about its newest refusal. */
function annotate(cell, name, { newest, shadow, count }) {
  if (name !== "subject") return;
  const notes = [shadow === count && "only in shadow", newest.degraded && "without the store"];
  for (const note of notes.filter(Boolean)) cell.append(" ", element("span", { className: "tag" }, note));
  const others = otherCharges(newest);
  if (others.length) cell.append(element("div", { className: "soft charges" }, ...others));
}

let isLong = false; // whether all groups are shown
let recentRecords = [];
let recentShown = "";

function drawRecent() {
  const groups = groupsOf(recentRecords);
  const now = JSON.stringify([isLong, recentRecords.map((record) => record.number)]);
  byId("recent").hidden = !groups.length;
  byId("recent-more").hidden = groups.length <= GROUPS;
  write("recent-more", isLong ? "Show fewer" : `Show all ${number(groups.length)} subjects`);
  byId("recent-more").ariaExpanded = String(isLong);
  if (now === recentShown) return;
  recentShown = now;
  const shown = isLong ? groups : groups.slice(0, GROUPS);
  replaceKeepingFocus("recent", ...table(COLUMNS, shown, annotate));
}

async function showRecent(signal) {
  const { records, next, partial } = await read(`/v1/audit?limit=${RECORDS}`, signal);
  recentRecords = records.filter((record) => REFUSALS.has(record.outcome));
  const few = next === undefined ? "" : `Of the last ${number(records.length)} records of the audit.`;
  write("recent-note", partial ? "The audit log does not answer; these are only this broker's own."
    : recentRecords.length ? few : next === undefined ? "Nothing was refused yet." : `Nothing was refused in the last ${number(records.length)} records of the audit.`);
  byId("recent-note").hidden = !byId("recent-note").textContent;
  drawRecent();
}

// ---- most limited

function topRow(limited, most) {
  const sure = limited.error ? ` (at least ${number(limited.count - limited.error)})` : "";
  const row = [
    element("span", { className: "who" }, element("strong", {}, caller(limited.subject)), element("span", { className: "soft" }, limited.policy)),
    element("span", { className: "count" }, number(limited.count), element("span", { className: "soft" }, sure)),
    bar((100 * limited.count) / most, isOnlyShadow(limited.policy) ? "shade" : "stop")];
  if (limited.policy === CARRIED) return element("li", {}, element("div", { className: "row-button plain", title: CARRIED_TITLE }, ...row));
  const button = element("button", { type: "button", className: "row-button", title: "Look up its standing" }, ...row);
  button.dataset.who = JSON.stringify([limited.policy, limited.subject]);
  button.addEventListener("click", () => lookUp(limited.policy, limited.subject, true));
  return element("li", {}, button);
}

let topShown = "";

async function showTop(signal) {
  const top = await read(`/v1/audit/top?limit=${TOP}`, signal);
  write("top-since", top.subjects.length ? `Times limited at this broker since ${clock(top.since)}.` : `No subject was limited since ${clock(top.since)}.`);
  const now = JSON.stringify(top.subjects);
  if (now === topShown) return;
  topShown = now;
  replaceKeepingFocus("top", ...top.subjects.map((limited) => topRow(limited, top.subjects[0].count)));
}

// ---- incidents

const INCIDENT_COLUMNS = [
  ["when", "", (record) => clock(record.at)],
  ["subject", "who", (record) => subjectButton(record.policy, record.subject)],
  ["policy", "", (record) => record.policy],
  ["limit", "", (record) => record.limit ?? "–"],
  ["retry after", "number", waitOf],
];

let incidentsShown = "";

async function showIncidents(signal) {
  const { records } = await read(`/v1/audit?outcome=violated&limit=${INCIDENTS}`, signal);
  byId("incidents-section").hidden = !records.length;
  const now = JSON.stringify(records.map((record) => record.number));
  if (now === incidentsShown) return;
  incidentsShown = now;
  replaceKeepingFocus("incidents", ...table(INCIDENT_COLUMNS, records));
  write("incidents-lead", `${counted(records.length, "time")}${records.length === INCIDENTS ? " or more" : ""}, a provider refused what was admitted here.`);
}

export async function showRefusals(signal) {
  await Promise.all([showTop(signal), showRecent(signal), showIncidents(signal)]);
}

export function startRefusals() {
  byId("recent-more").addEventListener("click", () => {
    isLong = !isLong;
    drawRecent();
  });
}
