// The gateway for LLM APIs: its queue, and each model at each upstream. Hidden on a broker without one.

import { byId, clock, counted, element, micros, millis, number, table, write } from "/dashboard/page.js";

const KIB = 1024;

function bytes(value) {
  if (value < KIB) return counted(value, "byte");
  if (value < KIB * KIB) return `${number(Math.ceil(value / KIB))} KiB`;
  return `${(value / KIB / KIB).toFixed(1)} MiB`;
}

const calls = (count) => counted(count, "call");

function queueText(gateway) {
  const at = `${calls(gateway.in_flight)} at a provider, ${bytes(gateway.held_bytes)} held`;
  if (!gateway.waiting) return `No call waits for its quota; ${at}.`;
  const oldest = gateway.oldest_wait_ms === undefined ? "" : `, the oldest for ${millis(gateway.oldest_wait_ms)}`;
  return `${calls(gateway.waiting)} ${gateway.waiting === 1 ? "waits" : "wait"} for quota${oldest}; ${at}.`;
}

const mean = (row) => (row.waited_calls ? millis(Math.round(row.waited_ms / row.waited_calls)) : "–");

const COLUMNS = [
  ["model", "", (row) => row.model],
  ["upstream", "", (row) => row.upstream],
  ["calls", "number", (row) => number(row.calls)],
  ["now", "number", (row) => number(row.in_flight)],
  ["waited", "number", (row) => number(row.waited_calls)],
  ["mean wait", "number", mean],
  ["first byte", "number", (row) => (row.first_byte_ms === undefined ? "–" : micros(1000 * row.first_byte_ms))],
  ["input tokens", "number", (row) => number(row.input_tokens)],
  ["output tokens", "number", (row) => number(row.output_tokens)],
  ["refused", "number", (row) => number(row.refused)],
];

/** Adds the dialect to a model, and until when it is closed. */
function annotate(cell, name, row) {
  if (name !== "model") return;
  cell.append(" ", element("span", { className: "soft" }, row.dialect));
  if (row.closed_until) cell.append(" ", element("span", { className: "tag stop" }, `closed until ${clock(row.closed_until)}`));
}

let drawn = "";

export function showGateway({ gateway }) {
  byId("gateway-section").hidden = !gateway;
  if (!gateway) return;
  write("gateway-queue", queueText(gateway));
  const now = JSON.stringify(gateway.deployments);
  if (now === drawn) return;
  drawn = now;
  byId("gateway").replaceChildren(...table(COLUMNS, gateway.deployments, annotate));
}
