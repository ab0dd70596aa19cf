// Asks DynamoDB at the endpoint that is named, without keys, and prints the error.
import { Gate } from "tollgate";

const policies = [
  { name: "api", limits: [{ name: "burst", unit: "requests", rule: "token-bucket", capacity: 1, refill: "10/s" }] },
];
try {
  const gate = await Gate.dynamodb("table", policies, { store: { endpoint: process.argv[2], region: "us-east-1" } });
  await gate.acquire({ policy: "api", subject: "alice" });
} catch (error) {
  console.log(error.message);
}
