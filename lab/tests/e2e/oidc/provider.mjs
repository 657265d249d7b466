// An OpenID Connect provider for tests: any name logs in, with any password. Its keys are new at each start.
//   node provider.mjs MODULES PORT KEY CERT
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import https from "node:https";

const [modules, port, key, cert] = process.argv.slice(2);
const { default: Provider } = await import(`${modules}/oidc-provider/lib/index.js`);

const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const jwk = { ...privateKey.export({ format: "jwk" }), kid: randomUUID(), use: "sig", alg: "RS256" };

// The clients, and how long the ID token of each lives, in seconds.
const lives = { lattice: 20, long: 3600, other: 3600, brief: 1 };

// The groups of people; all others are in none.
const groups = { daemon: ["staff", "hpc-physics"] };

const client = (client_id) => ({
  client_id,
  application_type: "native",
  token_endpoint_auth_method: "none",
  grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
  response_types: ["code"],
  redirect_uris: ["http://127.0.0.1/"],
});

const provider = new Provider(`https://127.0.0.1:${port}`, {
  jwks: { keys: [jwk] },
  cookies: { keys: [randomUUID()] },
  clients: Object.keys(lives).map(client),
  ttl: { IdToken: (ctx, token, client) => lives[client.clientId] },
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
  conformIdTokenClaims: false,
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, groups: groups[id] ?? [] }) }),
  issueRefreshToken: (ctx, client) => client.grantTypeAllowed("refresh_token"),
  features: { deviceFlow: { enabled: true }, revocation: { enabled: true } },
});

https.createServer({ key: readFileSync(key), cert: readFileSync(cert) }, provider.callback()).listen(Number(port), "127.0.0.1");
