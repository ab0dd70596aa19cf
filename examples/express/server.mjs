// A service that gives every user a rate and every team a daily budget of tokens.
import { pathToFileURL } from "node:url";

import express from "express";
import { Gate } from "tollgate";
import { limit, permitOf } from "tollgate/express";

/** What an answer costs at most, in tokens: charged before, and replaced by the real number afterwards. */
const ANSWER_TOKENS = 2_000;

/** Returns the application. `answer` calls the model: `{ text, tokens }`. */
export function createApp(gate, answer) {
  const app = express();
  app.use(express.json());
  // Whoever authenticates requests sets these; never trust them from outside.
  const user = (request) => request.get("x-user") ?? request.ip;
  const team = (request) => request.get("x-team") ?? "none";

  app.get("/hello", limit(gate, { ask: (request) => ({ policy: "api", subject: user(request) }) }), (request, response) => {
    response.send(`hello, ${user(request)}`);
  });

  // The user's rate and the team's budget: both, or neither is charged.
  const both = limit(gate, {
    ask: (request) => ({
      charges: [
        { policy: "api", subject: user(request) },
        { policy: "team", subject: team(request) },
      ],
      costs: { tokens: ANSWER_TOKENS },
      waitMs: 2_000,
    }),
  });
  app.post("/answer", both, async (request, response) => {
    const { text, tokens } = await answer(request.body.question);
    permitOf(request).settle({ tokens });
    response.json({ text });
  });
  return app;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const gate = await Gate.open("tollgate.toml");
  const echo = async (question) => ({ text: `You asked: ${question}`, tokens: 12 });
  const server = createApp(gate, echo).listen(process.env.PORT ?? 3000);
  process.once("SIGTERM", () => server.close(() => gate.close()));
}
