// A host on the official TypeScript client: `node typescript_host.mjs CLIENT URL WORKSPACES`.
//
// CLIENT is `sdk` (@modelcontextprotocol/sdk, the 2025 era), `legacy` or a revision
// (@modelcontextprotocol/client). What it saw goes to stdout as JSON.

const LIFECYCLE = "ai.nimblebrain/lifecycle";
const [kind, url, workspaces] = process.argv.slice(2);

async function classes() {
  if (kind !== "sdk") return import("@modelcontextprotocol/client");
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  return { Client, StreamableHTTPClientTransport: http.StreamableHTTPClientTransport };
}

const { Client, StreamableHTTPClientTransport } = await classes();
const mode = kind === "legacy" ? "legacy" : { pin: kind };
const options = kind === "sdk" ? {} : { versionNegotiation: { mode } };

async function connect(workspace) {
  const client = new Client({ name: "typescript-host", version: "1.0.0" }, options);
  const requestInit = { headers: { "x-workspace-id": workspace, "x-tenant-id": kind } };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
  return client;
}

async function handlers(client) {
  const { tools } = await client.listTools();
  const named = (event) => tools.find((tool) => tool._meta?.[LIFECYCLE]?.event === event)?.name;
  return { ready: named("ready"), removing: named("removing") };
}

async function say(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  return { failed: Boolean(result.isError), text: result.content[0].text };
}

const failures = (answers) => answers.filter((answer) => answer.failed).map((answer) => answer.text);
const times = (count, make) => Promise.all(Array.from({ length: count }, (_, index) => make(index)));

// One workspace: installed, told fifty times at once, sent what no schema declares, removed.
const client = await connect("ws_one");
const { ready, removing } = await handlers(client);
const extra = { reason: null, _gateway: { trace: 1 }, workspace_id: "ws_other" };
const [install, resume] = await times(2, (index) =>
  say(client, ready, { reason: ["install", "resume"][index] }),
);
const one = {
  extensions: client.getServerCapabilities()?.extensions ?? null,
  ready,
  removing,
  install,
  resume,
  burst: failures(await times(50, () => say(client, ready, {}))),
  extra: await say(client, ready, extra),
  removed: await say(client, removing, { _gateway: 1 }),
};
await client.close();

// Many workspaces at once, each with a connection of its own.
const crowd = await times(Number(workspaces), async (index) => {
  const own = await connect(`ws_${index}`);
  const answer = await say(own, (await handlers(own)).ready, { reason: "install" });
  await own.close();
  return answer;
});

console.log(JSON.stringify({ ...one, crowd: failures(crowd) }));
