// The dashboard in a real browser: node dashboard.mjs FOLDER-OF-PLAYWRIGHT URL SCENARIO [KEY]. Ends with 0, or says what is wrong.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, url, scenario, key] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

async function ask(policy, subject, times) {
  for (let turn = 0; turn < times; turn += 1) {
    const body = JSON.stringify({ policy, subject });
    await fetch(`${url}/v1/acquire`, { method: "POST", headers: { "content-type": "application/json" }, body });
  }
}

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
    assert.equal(await page.locator("article.policy h3").first().textContent(), "api");
    await page.locator("article.policy path.line.go[d^=M]").first().waitFor({ state: "attached" });
    await page.getByLabel("Subject").fill("alice");
    await page.getByRole("button", { name: "Look up", exact: true }).click();
    await page.locator("#standing", { hasText: "2 of 2 requests" }).waitFor();
    assert.match(page.url(), /#policy=api&subject=alice$/);
    await page.getByLabel("Subject").fill("<b>nobody</b>");
    await page.getByLabel("Subject").press("Enter");
    await page.locator("#standing h3", { hasText: "<b>nobody</b>" }).waitFor();
    assert.deepEqual(problems, []);
  },

  /** The keyboard reaches everything that can be used, in an order that makes sense, and a row of the list does what it says. */
  async keyboard(browser) {
    await ask("api", "bob", 3);
    const { page } = await opened(browser, {});
    await page.locator("#top button", { hasText: "bob" }).waitFor();
    const usable = await page.locator("a[href], button, input, select, summary").evaluateAll(
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
    for (const colorScheme of ["light", "dark"]) {
      const { page, problems } = await opened(browser, { viewport: { width: 360, height: 740 }, colorScheme });
      await page.locator("#recent", { hasText: "very-long-name" }).waitFor();
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide <= room, `${wide} on ${room}`);
      const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(background, colorScheme === "dark" ? "rgb(15, 19, 25)" : "rgb(246, 247, 249)");
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
    await page.locator("article.policy").waitFor();
    assert.equal(await row.count(), 0);
    assert.deepEqual(problems, []);
  },

  /** A broker with keys: nothing without one, and everything with one that may look. */
  async guarded(browser) {
    const context = await browser.newContext();
    const response = await (await context.newPage()).goto(url).catch((error) => error);
    assert.ok(response instanceof Error || response.status() === 401, String(response));
    const { page, problems } = await opened(browser, { httpCredentials: { username: "me", password: key } });
    await page.locator("article.policy h3", { hasText: "api" }).waitFor();
    await page.getByLabel("Subject").fill("alice");
    await page.getByLabel("Subject").press("Enter");
    await page.locator("#standing", { hasText: "0 of 2 requests" }).waitFor();
    assert.deepEqual(problems, []);
  },

  /** The queue of the gateway and each model at each upstream, on a phone and on a desk. */
  async gateway(browser) {
    for (const width of [360, 1280]) {
      const { page, problems } = await opened(browser, { viewport: { width, height: 740 } });
      await page.locator("#gateway-queue", { hasText: /^1 call waits for quota, the oldest for .+; 0 calls at a provider/ }).waitFor();
      const row = page.locator("#gateway tbody tr", { hasText: "gpt*" });
      assert.match(await row.innerText(), /openai[^]*1[^]*0[^]*0/);
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide <= room, `${wide} on ${room}`);
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
