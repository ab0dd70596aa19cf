// Asks that wait: the longest queues, and which tenants take turns in them.

import { columns } from "/dashboard/chart.js";
import { chosenRange, points, policyNames, RANGES } from "/dashboard/history.js";
import { bar, byId, caller, counted, element, number, read, write } from "/dashboard/page.js";

const QUEUES = 4;
const TENANTS = 6;

function tenantRow({ tenant, weight, waiting }, most) {
  const who = element("span", { className: "who" }, element("strong", {}, caller(tenant)));
  if (weight !== 1) who.append(" ", element("span", { className: "tag", title: "How often it is served, compared with the others" }, `weight ${number(weight)}`));
  return element("li", { className: "tenant" }, who, element("span", { className: "count" }, number(waiting)), bar((100 * waiting) / most, ""));
}

function queueNodes({ policy, subject, waiting, tenant_count, tenants }) {
  const title = element("div", { className: "top" },
    element("span", { className: "who" }, element("strong", {}, caller(subject)), element("span", { className: "soft" }, policy)),
    element("span", { className: "count" }, `${number(waiting)} waiting`));
  // Asks with one charge wait for a limit of their own: no other tenant takes a turn.
  const isOwn = tenant_count === 1 && tenants[0].tenant === subject && tenants[0].weight === 1;
  if (isOwn) return [title];
  const shown = tenants.slice(0, TENANTS);
  const rows = shown.map((tenant) => tenantRow(tenant, shown[0].waiting));
  const more = tenant_count - shown.length;
  return [title, element("ul", { className: "list" }, ...rows), ...(more ? [element("p", { className: "soft" }, `and ${number(more)} more`)] : [])];
}

/** Draws how many asks waited in each bucket of the chosen range, if any did. */
export function drawWaiting() {
  const all = policyNames().map((name) => points(name));
  const sums = (all[0] ?? []).map((_, place) => all.reduce((sum, of) => sum + (of[place]?.counts.waiting ?? 0), 0));
  const most = Math.max(0, ...sums);
  byId("waiting-past").hidden = !most;
  if (!most) return;
  byId("waiting-section").hidden = false;
  const label = `at most ${counted(most, "ask")} waited at once in ${RANGES[chosenRange()].title}`;
  byId("waiting-past").replaceChildren(columns(sums, Infinity, label), element("p", { className: "soft" }, `${label[0].toUpperCase()}${label.slice(1)}.`));
}

let queuesShown = "";

export async function showWaiting(signal) {
  const { waiting, queue_count, queues } = await read("/v1/queues", signal);
  // Once asks waited, the section stays: what comes and goes every second is hard to read.
  if (waiting) byId("waiting-section").hidden = false;
  const shown = queues.slice(0, QUEUES);
  const more = queue_count - shown.length;
  write("waiting-note", !waiting ? "No ask waits." : more ? `${counted(waiting, "ask waits", "asks wait")} in ${counted(queue_count, "queue")}.` : "Tenants take turns, by their weight.");
  const now = JSON.stringify(shown);
  if (now === queuesShown) return;
  queuesShown = now;
  byId("waiting").replaceChildren(...shown.map((queue) => element("div", { className: "queue" }, ...queueNodes(queue))));
}
