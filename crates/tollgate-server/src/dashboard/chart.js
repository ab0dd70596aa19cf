// A chart of what was admitted and refused each second, for the last two minutes.

import { drawn, rate } from "/dashboard/page.js";

const SECS = 120;
const SECS_MIN = 30; // a page that was just opened shows little, but not a speck
const WIDTH = 600;
const HEIGHT = 96;
const TOP = 6;

/** The smallest of 1, 2, 5, 10, … that is not below `most`, so that the scale seldom moves. */
function scale(most) {
  let step = 1;
  for (;;) {
    for (const factor of [1, 2, 5]) if (most <= factor * step) return factor * step;
    step *= 10;
  }
}

function path(values, most, isFilled) {
  const secs = Math.max(SECS_MIN, values.length);
  const x = (place) => (WIDTH * (place + secs - values.length)) / (secs - 1);
  const y = (value) => HEIGHT - ((HEIGHT - TOP) * value) / most;
  const points = values.map((value, place) => `${x(place).toFixed(1)} ${y(value).toFixed(1)}`);
  // A line along the bottom would read as a value.
  if (values.every((value) => value === 0)) return "";
  const line = `M${points.join("L")}`;
  return isFilled ? `${line}L${WIDTH} ${HEIGHT}L${x(0).toFixed(1)} ${HEIGHT}Z` : line;
}

export function chart(name) {
  const parts = {
    grid: drawn("path", { class: "grid", d: `M0 ${TOP}H${WIDTH}M0 ${(HEIGHT + TOP) / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}` }),
    admittedArea: drawn("path", { class: "area go" }),
    admitted: drawn("path", { class: "line go" }),
    refusedArea: drawn("path", { class: "area stop" }),
    refused: drawn("path", { class: "line stop" }),
  };
  const svg = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...Object.values(parts));
  const values = { admitted: [], refused: [] };

  function draw() {
    const most = scale(Math.max(1, ...values.admitted, ...values.refused));
    for (const kind of ["admitted", "refused"]) {
      parts[kind].setAttribute("d", path(values[kind], most, false));
      parts[`${kind}Area`].setAttribute("d", path(values[kind], most, true));
    }
    const last = (kind) => rate(values[kind].at(-1) ?? 0);
    svg.setAttribute("aria-label", `${name}: ${last("admitted")} admitted and ${last("refused")} refused per second, on a scale to ${most}`);
    return most;
  }

  /** Adds one second; returns the top of the scale. */
  function add(admitted, refused) {
    for (const [kind, value] of [["admitted", admitted], ["refused", refused]]) {
      values[kind].push(value);
      if (values[kind].length > SECS) values[kind].shift();
    }
    return draw();
  }

  return { svg, add };
}
