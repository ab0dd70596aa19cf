// Charts over time: a large one with axes and the values under the pointer, and a small one without. Neither draws a value that is zero
// as a line along the bottom.

import { clock, drawn, element, number, rate } from "/dashboard/page.js";

const WIDTH = 1000;
const HEIGHT = 100;
const TOP = 6;
const TICK_SECS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600];
const TICK_PIXELS = 84; // a label and the room around it
const POINT_PIXELS = 2.5;
const SPARK_PIXELS = 144;
const PLOT_PIXELS = 600; // of a chart that is not on the page yet

/** The kinds that are drawn: their class, their name, and whether zero is drawn as part of the line. */
const KINDS = [
  { kind: "admitted", mark: "go", label: "admitted", isFilled: true },
  { kind: "refused", mark: "stop", label: "refused" },
  { kind: "shadow_denied", mark: "shade", label: "refused in shadow" },
  { kind: "failed", mark: "warn", label: "failed" },
];

/** The smallest of 0.1, 0.2, 0.5, 1, … that is not below `most`, so that the scale seldom moves. */
function roundUp(most) {
  let step = 0.1;
  for (;;) {
    for (const factor of [1, 2, 5]) if (most <= factor * step) return factor * step;
    step *= 10;
  }
}

const perSecond = (point, kind) => point.counts[kind] / point.secs;

/** The line of a kind through the middle of each bucket, in pieces where it is not zero. */
function line(points, window, most, { kind, isFilled }) {
  const x = (at) => (WIDTH * (at - window.from)) / (window.to - window.from);
  const y = (value) => HEIGHT - ((HEIGHT - TOP) * value) / most;
  const at = points.map((point) => [x((point.from + point.to) / 2), perSecond(point, kind)]);
  if (!at.some(([, value]) => value > 0)) return { line: "", area: "" };
  // The first and the last bucket reach to the ends of what is known.
  at.unshift([x(points[0].from), at[0][1]]);
  at.push([x(points.at(-1).to), at.at(-1)[1]]);
  const text = ([left, value]) => `${left.toFixed(1)} ${y(value).toFixed(1)}`;
  const pieces = [];
  let piece = [];
  at.forEach((spot, place) => {
    const isNear = spot[1] > 0 || at[place - 1]?.[1] > 0 || at[place + 1]?.[1] > 0;
    if (isNear) piece.push(spot);
    if (!isNear || place === at.length - 1) {
      if (piece.length > 1) pieces.push(piece);
      piece = [];
    }
  });
  const path = pieces.map((spots) => `M${spots.map(text).join("L")}`).join("");
  const area = isFilled ? pieces.map((spots) => `M${spots[0][0].toFixed(1)} ${HEIGHT}L${spots.map(text).join("L")}L${spots.at(-1)[0].toFixed(1)} ${HEIGHT}Z`).join("") : "";
  return { line: path, area };
}

const drawnKinds = (points) => KINDS.filter(({ kind }) => points.some((point) => point.counts[kind] > 0));

const mostOf = (points) => Math.max(0.1, ...points.flatMap((point) => KINDS.map(({ kind }) => perSecond(point, kind))));

/** At most one point for each few of `pixels`: neighbours are joined, because lines between more of them would be a block. */
function thinned(points, pixels) {
  const size = Math.ceil((points.length * POINT_PIXELS) / pixels);
  if (size < 2) return points;
  const all = [];
  // Counted from the newest, so that only the oldest point is made of fewer.
  for (let end = points.length; end > 0; end -= size) {
    const group = points.slice(Math.max(0, end - size), end);
    const counts = Object.fromEntries(KINDS.map(({ kind }) => [kind, group.reduce((sum, point) => sum + point.counts[kind], 0)]));
    all.unshift({ from: group[0].from, to: group.at(-1).to, secs: group.reduce((sum, point) => sum + point.secs, 0), counts });
  }
  return all;
}

/** Draws `points` into `paths` on a scale up to `most`. */
function drawInto(paths, points, window, most) {
  for (const each of KINDS) {
    const { line: path, area } = line(points, window, most, each);
    paths[each.kind].line.setAttribute("d", path);
    if (each.isFilled) paths[each.kind].area.setAttribute("d", area);
  }
}

function pathsOf() {
  return Object.fromEntries(KINDS.map(({ kind, mark, isFilled }) => [kind, {
    area: isFilled && drawn("path", { class: `area ${mark}` }),
    line: drawn("path", { class: `line ${mark}` }),
  }]));
}

const nodesOf = (paths) => Object.values(paths).flatMap(({ area, line: path }) => [area, path].filter(Boolean));

/** A small chart, for a row of a list. */
export function sparkline() {
  const paths = pathsOf();
  const svg = drawn("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("path", { class: "grid", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }), ...nodesOf(paths));
  return { svg, draw: (points, window) => {
    const few = thinned(points, SPARK_PIXELS);
    drawInto(paths, few, window, mostOf(few));
  } };
}

function ticks(window, pixels) {
  const secs = window.to - window.from;
  const most = Math.max(2, Math.floor(pixels / TICK_PIXELS));
  const step = TICK_SECS.find((tick) => secs / tick <= most) ?? TICK_SECS.at(-1);
  // Ticks are at round local times, also where the zone is off by half an hour.
  const shift = new Date(window.to * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((window.from - shift) / step) * step + shift;
  const all = [];
  for (let at = first; at <= window.to; at += step) all.push(at);
  return all;
}

const hour = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** The values of a bucket, as shown under the pointer and read out. */
function describe(point) {
  const parts = KINDS.filter(({ kind }) => kind === "admitted" || point.counts[kind] > 0)
    .map(({ kind, label, mark }) => ({ mark, text: `${rate(perSecond(point, kind))}/s ${label}` }));
  if (point.refusedBy.length > 1) for (const [name, count] of point.refusedBy) parts.push({ mark: "", text: `${rate(count / point.secs)}/s by ${name}` });
  else if (point.refusedBy.length) parts.push({ mark: "", text: `by ${point.refusedBy[0][0]}` });
  if (point.counts.degraded) parts.push({ mark: "", text: `${rate(perSecond(point, "degraded"))}/s without the store` });
  if (point.counts.waiting) parts.push({ mark: "", text: `${number(point.counts.waiting)} waiting` });
  return parts;
}

/**
 * A large chart called `name`. The arrow keys move from bucket to bucket, home and end to the first and the last, and escape leaves.
 */
export function chart(name) {
  const paths = pathsOf();
  const cursor = drawn("path", { class: "cursor", d: "" });
  const started = drawn("path", { class: "started", d: "" });
  const grid = drawn("path", { class: "grid", d: `M0 ${TOP}H${WIDTH}M0 ${(HEIGHT + TOP) / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` });
  const svg = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    grid, started, ...nodesOf(paths), cursor);
  const scale = element("span", { className: "scale", ariaHidden: "true" });
  const tip = element("div", { className: "tip", hidden: true, ariaHidden: "true" });
  const axis = element("div", { className: "axis", ariaHidden: "true" });
  const plot = element("div", { className: "plot", tabIndex: 0 }, svg, scale, tip);
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-label", `${name}: decisions per second over time`);
  const node = element("div", { className: "timeline" }, plot, axis);
  let shown = { points: [], window: null };
  let selected = null; // when the bucket under the pointer or the keyboard began

  const place = () => shown.points.findIndex((point) => point.from === selected);

  function mark() {
    const index = place();
    const { points, window } = shown;
    const point = points[index];
    tip.hidden = !point;
    if (!point) {
      cursor.setAttribute("d", "");
      return;
    }
    const share = ((point.from + point.to) / 2 - window.from) / (window.to - window.from);
    cursor.setAttribute("d", `M${(WIDTH * share).toFixed(1)} 0V${HEIGHT}`);
    const parts = describe(point);
    tip.replaceChildren(element("strong", {}, clock(point.from * 1000)),
      ...parts.map(({ mark: kind, text }) => element("span", {}, kind ? element("span", { className: `mark ${kind}` }) : "", text)));
    tip.style.left = `${100 * share}%`;
    tip.classList.toggle("before", share > 0.5);
  }

  function announce() {
    const { points } = shown;
    const index = place();
    const point = points[index] ?? points.at(-1);
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", String(Math.max(0, points.length - 1)));
    plot.setAttribute("aria-valuenow", String(index < 0 ? Math.max(0, points.length - 1) : index));
    plot.setAttribute("aria-valuetext", point ? `${clock(point.from * 1000)}: ${describe(point).map(({ text }) => text).join(", ")}` : "no history yet");
  }

  function select(index) {
    selected = shown.points[Math.min(Math.max(index, 0), shown.points.length - 1)]?.from ?? null;
    mark();
    announce();
  }

  plot.addEventListener("pointermove", (event) => {
    const { points, window } = shown;
    if (!points.length) return;
    const box = plot.getBoundingClientRect();
    const at = window.from + ((event.clientX - box.left) / box.width) * (window.to - window.from);
    const index = points.findIndex((point) => at < point.to);
    selected = points[at < points[0].from ? 0 : index < 0 ? points.length - 1 : index].from;
    mark();
  });
  const leave = () => {
    selected = null;
    mark();
  };
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const last = shown.points.length - 1;
    const now = place() < 0 ? last + 1 : place();
    const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last }[event.key];
    if (event.key === "Escape") leave();
    if (to === undefined || last < 0) return;
    event.preventDefault();
    select(to);
  });

  function drawAxis() {
    const { window } = shown;
    const pixels = plot.clientWidth || PLOT_PIXELS;
    const edge = TICK_PIXELS / 2 / pixels;
    const labels = ticks(window, pixels).map((at) => {
      const label = element("span", {}, hour(at));
      const share = (at - window.from) / (window.to - window.from);
      label.style.left = `${100 * share}%`;
      // A label at an end would be cut off there.
      if (share < edge) label.className = "first";
      if (share > 1 - edge) label.className = "last";
      return label;
    });
    axis.replaceChildren(...labels);
  }

  function draw(points, window) {
    shown = { points, window };
    if (!window) return;
    const few = thinned(points, plot.clientWidth || PLOT_PIXELS);
    const most = roundUp(mostOf(few));
    drawInto(paths, few, window, most);
    scale.textContent = points.some(({ counts }) => counts.admitted || counts.refused || counts.failed) ? `${number(most)}/s` : "";
    const begun = (window.since - window.from) / (window.to - window.from);
    started.setAttribute("d", begun > 0.01 ? `M${(WIDTH * begun).toFixed(1)} 0V${HEIGHT}` : "");
    drawAxis();
    mark();
    announce();
  }

  return { node, draw, kinds: () => drawnKinds(shown.points) };
}

/** A column for each bucket, of how much of a limit was used, or of a number without one; empty where nothing is known. */
export function columns(values, limit, label) {
  const most = Math.max(1, ...values.map((value) => value ?? 0), ...(Number.isFinite(limit) ? [limit] : []));
  const bars = values.map((value, place) => (value ? `M${place + 0.5} ${HEIGHT}V${(HEIGHT - (HEIGHT * value) / most).toFixed(1)}` : "")).join("");
  const full = values.map((value, place) => (value && value >= limit ? `M${place + 0.5} ${HEIGHT}V${(HEIGHT - (HEIGHT * value) / most).toFixed(1)}` : "")).join("");
  const svg = drawn("svg", { class: "columns-chart", viewBox: `0 0 ${values.length} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    drawn("path", { class: "used", d: bars }), drawn("path", { class: "used full", d: full }));
  svg.setAttribute("aria-label", label);
  return svg;
}
