// The dashboard in a real browser: node dashboard.mjs FOLDER-OF-PLAYWRIGHT URL SCENARIO [KEY [OTHER-KEY]]. Ends with 0, or says what is wrong.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, url, scenario, key, otherKey] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

function acquire(request, signal) {
  const headers = { "content-type": "application/json" };
  return fetch(`${url}/v1/acquire`, { method: "POST", headers, body: JSON.stringify(request), signal });
}

async function ask(policy, subject, times) {
  for (let turn = 0; turn < times; turn += 1) await acquire({ policy, subject });
}

/** An ask that is charged to its tenant and to an account that all share. */
const shared = (policy, subject) => ({ charges: [{ policy, subject }, { policy: "account", subject: "all" }] });

async function opened(browser, options, hash = "") {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const problems = [];
  const origin = new URL(url).origin;
  page.on("request", (request) => {
    if (!request.url().startsWith("data:") && new URL(request.url()).origin !== origin) problems.push(`asked ${request.url()}`);
  });
  page.on("pageerror", (error) => problems.push(error.message));
  await page.goto(`${url}/${hash}`);
  await page.locator("#state-text", { hasText: /live|degraded/ }).waitFor();
  return { context, page, problems };
}

/** Everything on the page fits its width. */
async function fits(page) {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= room, `${wide} on ${room}`);
}

async function lookUp(page, subject) {
  await page.locator("#subject").fill(subject);
  await page.locator("#subject").press("Enter");
  await page.locator("#standing h3").waitFor();
}

/** Answers the dialog that `button` opens. */
async function answer(page, button, verb) {
  await page.getByRole("button", { name: button }).click();
  await page.getByRole("dialog").getByRole("button", { name: verb, exact: true }).click();
}

/** The values of the bucket that the keyboard selected, as they are read out. */
const valueText = (plot) => plot.getAttribute("aria-valuetext");

const scenarios = {
  /** Loads, updates live, finds a subject, shows who is limited, leaves the origin alone. */
  async live(browser) {
    const { page, problems } = await opened(browser, {});
    assert.equal(await page.locator("#recent-note").textContent(), "Nothing was refused yet.");
    assert.ok(await page.locator("#gateway-section").isHidden());
    await ask("api", "alice", 3);
    await page.locator("#all-admitted", { hasText: "2 in all" }).waitFor();
    await page.locator("#all-refused", { hasText: "1 in all" }).waitFor();
    await page.locator("#recent", { hasText: "alice" }).waitFor();
    await page.locator("#top", { hasText: "alice" }).waitFor();
    assert.equal(await page.locator("details.policy h3").first().textContent(), "api");
    assert.doesNotMatch(await page.locator("details.policy .tags").textContent(), /without/);
    await page.locator("details.policy .chart path.line.go[d^=M]").first().waitFor({ state: "attached" });
    await page.locator("#subject").fill("alice");
    await page.getByRole("button", { name: "Look up", exact: true }).click();
    await page.locator("#standing", { hasText: "2 of 2 requests" }).waitFor();
    assert.match(page.url(), /#policy=api&subject=alice$/);
    await page.locator("#subject-records", { hasText: /refused by burst/ }).waitFor();
    await page.locator("#subject").fill("<b>nobody</b>");
    await page.locator("#subject").press("Enter");
    await page.locator("#standing h3", { hasText: "<b>nobody</b>" }).waitFor();
    assert.deepEqual(problems, []);
  },

  /** A refusal of several charges names the one that binds and the others, and a queue names its tenants; also on a phone. */
  async several(browser) {
    const { page, problems } = await opened(browser, {});
    assert.equal(await page.locator("#waiting-section").isVisible(), false);
    for (let turn = 0; turn < 2; turn += 1) assert.equal((await acquire(shared("user", "u1"))).status, 200);
    assert.equal((await acquire(shared("user", "<i>u2</i>"))).status, 429);
    const row = page.locator("#recent tbody tr");
    await row.waitFor();
    const cells = await row.locator("th, td").allInnerTexts();
    assert.deepEqual(cells.slice(0, 4).map((text) => text.trim()), ["all\nwith user:<i>u2</i>", "account", "slots", "1"]);
    const leave = new AbortController();
    const waits = [["user", "u1"], ["user", "u1"], ["vip", "v1"], ["user", "u1"]];
    const asked = waits.map(([policy, subject]) => acquire({ ...shared(policy, subject), wait_ms: 60_000 }, leave.signal).catch(() => {}));
    await page.locator("#waiting .count", { hasText: "4 waiting" }).waitFor();
    const tenants = await page.locator("#waiting li").allInnerTexts();
    assert.deepEqual(tenants.map((text) => text.replace(/\s+/g, " ").trim()), ["u1 3", "v1 weight 5 1"]);
    const phone = await opened(browser, { viewport: { width: 360, height: 740 } });
    await phone.page.locator("#waiting li").first().waitFor();
    await fits(phone.page);
    leave.abort();
    await Promise.all(asked);
    await page.locator("#waiting-note", { hasText: "No ask waits." }).waitFor();
    assert.equal(await page.locator("#waiting-section").isVisible(), true);
    assert.deepEqual([...problems, ...phone.problems], []);
  },

  /** The keyboard reaches everything that can be used, in an order that makes sense, and a row of the list does what it says. */
  async keyboard(browser) {
    await ask("api", "bob", 3);
    const { page } = await opened(browser, {});
    await page.locator("#top button", { hasText: "bob" }).waitFor();
    await page.locator("#recent button", { hasText: "bob" }).waitFor();
    const usable = await page.locator("a[href], button, input, select, summary, [tabindex='0']").evaluateAll(
      (nodes) => nodes.filter((node) => node.checkVisibility()).length);
    const reached = new Set();
    for (let press = 0; press < usable + 2; press += 1) {
      await page.keyboard.press("Tab");
      const name = await page.evaluate(() => {
        const node = document.activeElement;
        if (node === document.body) return null;
        node.dataset.reached ??= String(Math.random());
        return node.dataset.reached;
      });
      if (name) reached.add(name);
    }
    assert.equal(reached.size, usable);
    await page.locator("#top button", { hasText: "bob" }).focus();
    await page.keyboard.press("Enter");
    await page.locator("#standing h3", { hasText: "bob" }).waitFor();
    for (const name of ["Recent refusals", "Subject", "Most limited", "Policies"]) await page.getByRole("region", { name, exact: true }).waitFor();
    await page.getByRole("navigation", { name: "Sections" }).getByRole("link", { name: "Policies" }).press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "policies-title");
    assert.match(page.url(), /#policy=api&subject=bob$/);
    const unnamed = await page.locator("input, select").evaluateAll((nodes) => nodes.filter((node) => !node.labels.length).map((node) => node.id));
    assert.deepEqual(unnamed, []);
  },

  /** A key of CL.THROTTLE is shown, but as nothing that could be looked up. */
  async throttle(browser) {
    const { page, problems } = await opened(browser, {});
    const row = page.locator("#top li", { hasText: "cell" });
    await row.waitFor();
    assert.equal(await row.locator("button").count(), 0);
    assert.match(await row.locator("[title]").getAttribute("title"), /CL\.THROTTLE with a quantity of 0/);
    assert.deepEqual(problems, []);
  },

  /** At the width of a phone nothing sticks out, in either scheme. */
  async phone(browser) {
    await ask("api", "a-subject-with-a-very-long-name-that-goes-on-and-on-and-has-no-place-to-break-it", 3);
    for (const [width, colorScheme] of [[360, "light"], [390, "dark"]]) {
      const { page, problems } = await opened(browser, { viewport: { width, height: 740 }, colorScheme, reducedMotion: "reduce" });
      await page.locator("#recent", { hasText: "very-long-name" }).waitFor();
      await fits(page);
      const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(background, colorScheme === "dark" ? "rgb(15, 19, 25)" : "rgb(246, 247, 249)");
      assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      await page.locator("details.policy summary").first().click();
      await page.locator(".plot").waitFor();
      await fits(page);
      assert.deepEqual(problems, []);
    }
  },

  /** Who was given other numbers at run time is listed when the page is opened, and no longer once that is over. */
  async overrides(browser) {
    const alice = `${url}/v1/policies/api/overrides/alice`;
    const body = JSON.stringify({ limits: [{ name: "burst", limit: 7 }] });
    const put = await fetch(alice, { method: "PUT", headers: { "content-type": "application/json" }, body });
    assert.equal(put.status, 200);
    const { page, problems } = await opened(browser, {});
    const row = page.locator("details.overrides tbody tr");
    await row.waitFor();
    assert.equal((await row.allInnerTexts()).join("").replace(/\s+/g, " ").trim(), "alice burst: 7 in any 1h api");
    assert.equal((await fetch(alice, { method: "DELETE" })).status, 200);
    await page.reload();
    await page.locator("details.policy").waitFor();
    assert.equal(await row.count(), 0);
    assert.deepEqual(problems, []);
  },

  /** A broker with keys: nothing without one, and everything with one that may look. */
  async guarded(browser) {
    const context = await browser.newContext();
    const response = await (await context.newPage()).goto(url).catch((error) => error);
    assert.ok(response instanceof Error || response.status() === 401, String(response));
    const { page, problems } = await opened(browser, { httpCredentials: { username: "me", password: key } });
    await page.locator("details.policy h3", { hasText: "api" }).waitFor();
    await lookUp(page, "alice");
    await page.locator("#standing", { hasText: "0 of 2 requests" }).waitFor();
    assert.deepEqual(problems, []);
    // The browser's dialog sends the key as a password, which may only look. Another key that may only look changes nothing.
    await page.locator("#actions-locked").waitFor();
    assert.equal(await page.getByRole("button", { name: "Reset …" }).count(), 0);
    const enter = async (text) => {
      await page.getByRole("dialog").getByLabel("Key").fill(text);
      await page.getByRole("dialog").getByRole("button", { name: "Use it" }).click();
    };
    await page.getByRole("button", { name: "Use another key …" }).click();
    await enter(key);
    await page.getByRole("dialog").getByText("The key reader lacks the scope administer.").waitFor();
    await enter("wrong");
    await page.getByRole("dialog").getByText(/key/i).first().waitFor();
    await enter(otherKey);
    await page.locator("#action-done", { hasText: "Using the key operator." }).waitFor();
    await answer(page, "Reset …", "Reset");
    await page.locator("#action-done", { hasText: "There was nothing to reset." }).waitFor();
    await page.locator("#subject-records", { hasText: "reset, key operator" }).waitFor();
  },

  /** Other limits, a closed limit and a reset, each only after it was confirmed, as the audit says. */
  async actions(browser) {
    await ask("api", "alice", 3);
    const { page, problems } = await opened(browser, {});
    await lookUp(page, "alice");
    await page.locator("#standing", { hasText: "2 of 2 requests" }).waitFor();
    await page.getByRole("button", { name: "Reset …" }).click();
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.innerText(), /Forgets everything that alice under api used/);
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Reset …" }).click();
    await page.keyboard.press("Escape");
    assert.equal((await acquire({ policy: "api", subject: "alice" })).status, 429);

    await page.getByRole("button", { name: "Change limits …" }).click();
    await dialog.getByRole("button", { name: "Change limits", exact: true }).click();
    await dialog.getByText("These are the numbers of the policy.").waitFor();
    await dialog.getByLabel("burst").fill("7");
    await dialog.getByRole("button", { name: "Change limits", exact: true }).click();
    await page.locator("#standing", { hasText: "2 of 7 requests" }).waitFor();
    await page.locator("#subject-records", { hasText: "limits changed" }).waitFor();
    await answer(page, "Remove override …", "Remove");
    await page.locator("#standing", { hasText: "2 of 2 requests" }).waitFor();

    await answer(page, "Reset …", "Reset");
    await page.locator("#standing", { hasText: "0 of 2 requests" }).waitFor();
    await page.getByRole("button", { name: "Close a limit …" }).click();
    await dialog.getByLabel("For").selectOption("1 hour");
    await dialog.getByRole("button", { name: "Close", exact: true }).click();
    await page.locator("#action-done", { hasText: /^burst is closed until/ }).waitFor();
    const refused = await acquire({ policy: "api", subject: "alice" });
    assert.equal(refused.status, 429);
    assert.ok((await refused.json()).retry_after_ms > 3_500_000);
    const { records } = await (await fetch(`${url}/v1/audit?subject=alice`)).json();
    const done = records.map((record) => record.outcome).filter((outcome) => outcome !== "denied");
    assert.deepEqual(done, ["closed", "reset", "restored", "overridden"]);
    assert.deepEqual(problems, []);
  },

  /** Subjects are text of callers: markup stays text, and a mark of direction is visible and ends with the subject. */
  async hostile(browser) {
    const subjects = ["<img src=x onerror=document.title='owned'>", "user\u202egpj.exe", "\u2066\u05e9\u05dc\u05d5\u05dd"];
    for (const subject of subjects) await ask("api", subject, 3);
    const { page, problems } = await opened(browser, {});
    const recent = page.locator("#recent tbody tr");
    await recent.nth(2).waitFor();
    const names = (await recent.locator("bdi").allInnerTexts()).sort();
    assert.deepEqual(names, ["<img src=x onerror=document.title='owned'>", "\\u{2066}\u05e9\u05dc\u05d5\u05dd", "user\\u{202e}gpj.exe"].sort());
    await page.locator("#top bdi").nth(2).waitFor();
    for (const subject of subjects) {
      await lookUp(page, subject);
      await page.locator("#standing", { hasText: "2 of 2 requests" }).waitFor();
      await page.getByRole("button", { name: "Reset …" }).click();
      await page.getByRole("dialog").locator("bdi").waitFor();
      await page.keyboard.press("Escape");
    }
    assert.equal(await page.locator("img").count(), 0);
    assert.equal(await page.title(), "tollgate");
    assert.deepEqual(problems, []);
  },

  /** An hour of decisions under 40 policies: there at once and after a reload, with a time axis, values, ranges, filter and order. */
  async history(browser) {
    const { page, problems } = await opened(browser, { viewport: { width: 1280, height: 900 } });
    const rows = page.locator("details.policy:visible");
    assert.equal(await rows.count(), 40);
    assert.equal(await page.locator("details.policy[open]").count(), 0);
    const height = () => page.evaluate(() => document.documentElement.scrollHeight);
    assert.ok((await height()) < 3_500, `${await height()} pixels`);
    const policy = (name) => page.locator(`details.policy[data-name="${name}"]`);
    const line = (name, kind) => policy(name).locator(`.spark path.line.${kind}[d^=M]`);
    await line("p01", "go").waitFor({ state: "attached" });
    // Nothing is drawn where nothing was counted, and what shadow mode let through is not red.
    assert.deepEqual(await Promise.all([line("p01", "stop"), line("idle", "go"), line("idle", "stop"), line("trial", "stop")].map((each) => each.count())), [0, 0, 0, 0]);
    assert.deepEqual(await Promise.all([line("p07", "stop"), line("trial", "shade")].map((each) => each.count())), [1, 1]);

    await policy("p07").locator("summary").first().click();
    const plot = policy("p07").locator(".plot");
    await plot.waitFor();
    assert.ok((await policy("p07").locator(".axis span").count()) >= 4);
    await plot.focus();
    await plot.press("Home");
    const first = await valueText(plot);
    await plot.press("ArrowRight");
    const second = await valueText(plot);
    assert.notEqual(first, second);
    assert.match(first, /^\S+.*: 0\.2\/s admitted$/);
    assert.ok(Number(await plot.getAttribute("aria-valuemax")) >= 359);
    await plot.press("End");
    assert.match(await valueText(plot), /: 0\.2\/s admitted, 0\.3\/s refused, by burst$/);
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width - 20, box.y + 30);
    assert.match(await policy("p07").locator(".tip").innerText(), /0\.[34]\/s refused/);
    await page.mouse.move(0, 0);
    assert.ok(await policy("p07").locator(".tip").isHidden());

    const drawing = () => policy("p07").locator(".chart path.line.go").getAttribute("d");
    const drawn = await drawing();
    await page.reload();
    await policy("p07").locator("summary").first().click();
    await policy("p07").locator(".chart path.line.go[d^=M]").waitFor({ state: "attached" });
    assert.equal(await drawing(), drawn);

    for (const [name, least, most] of [["15 min", 89, 91], ["1 h", 359, 361], ["All", 12, 16]]) {
      await page.getByRole("button", { name, exact: true }).click();
      await page.waitForFunction(([low, high]) => {
        const value = Number(document.querySelector("details.policy[open] .plot").getAttribute("aria-valuemax"));
        return low <= value && value <= high;
      }, [least - 1, most]);
      assert.equal(await page.getByRole("button", { name, exact: true }).getAttribute("aria-pressed"), "true");
    }

    await page.getByLabel("Order").selectOption("Most refused");
    assert.equal(await rows.first().getAttribute("data-name"), "trial");
    assert.equal(await rows.nth(1).getAttribute("data-name"), "p07");
    await page.getByLabel("Filter").fill("shadow");
    assert.equal(await page.locator("#policies-count").textContent(), "1 of 40 policies");
    await page.getByLabel("Filter").fill("nothing such");
    await page.locator("#policies-empty", { hasText: "No policy matches." }).waitFor();
    await page.getByLabel("Filter").fill("");
    await page.getByRole("button", { name: "Open all" }).click();
    assert.equal(await page.locator("details.policy[open]").count(), 40);
    await page.getByRole("button", { name: "Close all" }).click();
    assert.equal(await page.locator("details.policy[open]").count(), 0);

    const phone = await opened(browser, { viewport: { width: 390, height: 844 }, colorScheme: "dark" });
    await phone.page.locator('details.policy[data-name="p07"] summary').first().click();
    await phone.page.locator(".plot").waitFor();
    await fits(phone.page);
    assert.deepEqual([...problems, ...phone.problems], []);
  },

  /** Behind a load balancer several brokers answer: the page shows one, and says so. */
  async brokers(browser) {
    await ask("api", "alice", 2);
    const { page, problems } = await opened(browser, {});
    await page.locator("#scope", { hasText: "Other brokers on the same Redis store have their own." }).waitFor();
    assert.match(await page.locator("details.policy .tags").textContent(), /without its store: open/);
    assert.ok(await page.locator("#several").isHidden());
    let calls = 0;
    await page.route("**/v1/stats", async (route) => {
      const response = await route.fetch();
      const stats = await response.json();
      calls += 1;
      if (calls % 2) return route.fulfill({ json: stats });
      const policies = stats.policies.map((counts) => ({ ...counts, admitted: 1_000_000 * calls }));
      return route.fulfill({ json: { ...stats, broker: "another0", policies } });
    });
    await page.locator("#several", { hasText: /^2 brokers answer at this address\./ }).waitFor();
    const seen = calls;
    while (calls < seen + 4) await page.waitForTimeout(100);
    assert.equal(await page.locator("#all-admitted").textContent(), "2 in all");
    assert.deepEqual(problems, []);
  },

  /** The queue of the gateway and each model at each upstream, on a phone and on a desk. */
  async gateway(browser) {
    for (const width of [360, 1280]) {
      const { page, problems } = await opened(browser, { viewport: { width, height: 740 } });
      await page.locator("#gateway-queue", { hasText: /^1 call waits for quota, the oldest for .+; 0 calls at a provider/ }).waitFor();
      const row = page.locator("#gateway tbody tr", { hasText: "gpt*" });
      assert.match(await row.innerText(), /openai[^]*1[^]*0[^]*0/);
      await page.getByRole("navigation").getByRole("link", { name: "Gateway" }).waitFor();
      await fits(page);
      assert.deepEqual(problems, []);
    }
  },

  /** A finished translation job, on a phone and on a desk. */
  async translations(browser) {
    for (const width of [360, 1280]) {
      const { page, problems } = await opened(browser, { viewport: { width, height: 740 } });
      const row = page.locator("#translations tbody tr");
      await row.waitFor();
      assert.match(await row.innerText(), /document[^]*completed[^]*(\d+) of \1[^]*en to fr[^]*wide:project/);
      await page.getByRole("navigation").getByRole("link", { name: "Translations" }).waitFor();
      await fits(page);
      assert.deepEqual(problems, []);
    }
  },

  /** The store is away, and the page says so. */
  async degraded(browser) {
    const { page } = await opened(browser, {});
    await page.locator("#state-text", { hasText: "degraded" }).waitFor();
    assert.match(await page.locator("#degraded").textContent(), /^Degraded since .+: the store does not answer/);
    assert.equal(await page.locator("#store").textContent(), "away");
  },

  /** The broker is away, the page says so, and goes on by itself when it is back. */
  async lost(browser) {
    const { context, page } = await opened(browser, {});
    await context.setOffline(true);
    await page.locator("#lost", { hasText: "The broker does not answer." }).waitFor();
    assert.equal(await page.locator("#state-text").textContent(), "no answer");
    await context.setOffline(false);
    await page.locator("#state-text", { hasText: "live" }).waitFor();
    await page.locator("#lost").waitFor({ state: "hidden" });
  },
};

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS });
try {
  await scenarios[scenario](browser);
} finally {
  await browser.close();
}
