// The status page of a kroute agent. It asks `status.json` and `service.json`, and changes nothing.
import { byId, bytes, clock, count, counted, facts, fill, problems, rate, say } from "./elements.js";
import { showNoService, showService } from "./service.js";
import { listen, question, showServices } from "./services.js";

const POINTS = 60;
const loop = { timer: 0, asked: 0, isPaused: false, trend: [] };

/** The name of the Service in the page's address, or "". */
function chosen() {
  const found = /^#service=(.+)$/.exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : "";
  } catch {
    return "";
  }
}

function verdictOf(status, health) {
  if (!health.healthy) return ["not healthy", "bad"];
  if (status.state !== "ready") return ["starting", "warn"];
  const problems = status.problemsTotal;
  if (problems) return [counted(problems, "problem"), status.problems[0].severity === "FAIL" ? "bad" : "warn"];
  return ["all right", "good"];
}

function showNode(content) {
  const { status, health } = content;
  say("node", `${status.version} on ${status.node}`);
  say("verdict", ...verdictOf(status, health));
  byId("problems-section").hidden = status.problemsTotal === 0;
  const left = status.problemsTotal - status.problems.length;
  say("problems-count", left ? `${count(status.problemsTotal)}, the first ${status.problems.length}` : count(status.problemsTotal));
  problems(byId("problems"), status.problems, status.reasons);
  showOverview(content);
  showServices(content.services);
  showControllers(content);
  fill(byId("changes"), content.changes.map((it) => [clock(it.time), [it.event, it.level], [it.details, "details"]]));
}

function showOverview({ status, rates }) {
  const { served, source } = status;
  const known = (number) => (number === null ? "?" : count(number));
  facts(byId("overview"), [
    ["Services", count(served.services)],
    ["Virtual servers", count(served.virtualServers)],
    ["Real servers", count(served.realServers)],
    ["Open connections", known(served.connections)],
    ["New connections/s", rate(rates?.connections)],
    ["Packets/s in, out", `${rate(rates?.packetsIn)}, ${rate(rates?.packetsOut)}`],
    ["Bytes/s in, out", `${bytes(rates?.bytesIn)}, ${bytes(rates?.bytesOut)}`],
    ["Changes pending", [count(status.pending), status.pending ? "warn" : ""]],
    ["Source", source ? `${source.kind === "api" ? "API server" : "manifests"}${source.connected ? "" : ", away"}` : "–"],
    ["Firewall", status.firewall],
    ...(status.policies ? [["Isolated pods", count(status.policies.isolatedPods)]] : []),
    ["Last resync", status.lastResync ? clock(Date.parse(status.lastResync) / 1000) : "–"],
  ]);
  if (rates) loop.trend = [...loop.trend, rates.connections].slice(-POINTS);
  const most = Math.max(1, ...loop.trend);
  const step = 300 / Math.max(1, loop.trend.length - 1);
  const points = loop.trend.map((it, index) => `${(step * index).toFixed(1)},${(39 - (37 * it) / most).toFixed(1)}`);
  byId("trend").firstElementChild.setAttribute("points", points.join(" "));
  say("trend-span", loop.trend.length > 1 ? `at most ${rate(Math.max(...loop.trend))}` : "since this page was opened");
}

function showControllers({ controllers, queues }) {
  fill(byId("controllers"), queues.map(({ subscriber, depth, lag }) => {
    const it = controllers[subscriber];
    return [
      subscriber, [count(depth), "number"], [`${lag.toFixed(1)} s`, "number"], [count(it.writes), "number"],
      [count(it.repairs), "number"], [count(it.failures), it.failures ? "number bad" : "number"],
      [count(it.waiting), it.waiting ? "number bad" : "number"], [clock(it.last_resync), "number"],
    ];
  }));
}

async function answer(url) {
  const found = await fetch(url, { cache: "no-store" });
  if (found.status === 404) return null;
  if (!found.ok) throw new Error(`the agent answers ${found.status}`);
  return found.json();
}

async function refresh() {
  window.clearTimeout(loop.timer);
  const asked = ++loop.asked;
  const name = chosen();
  let after = 5;
  try {
    const service = name ? await answer(`service.json?${new URLSearchParams({ name })}`) : null;
    const content = await answer(`status.json?${question()}`);
    if (asked !== loop.asked) return;  // a newer question is under way
    showNode(content);
    if (name && service) showService(service);
    else if (name) showNoService(name);
    document.title = `${name || "kroute"} on ${content.status.node}`;
    after = content.refreshAfter;
    byId("asked").textContent = `as of ${clock(Date.now() / 1000)}`;
  } catch (error) {
    if (asked !== loop.asked) return;
    say("verdict", `no answer from the agent (${error.message}): what stands below is old`, "bad");
  }
  if (!document.hidden && !loop.isPaused) loop.timer = window.setTimeout(refresh, after * 1000);
}

/** Show the node or one Service, and put the focus where reading goes on. */
async function turn() {
  const name = chosen();
  const last = byId("service-view").dataset.of ?? "";
  byId("node-view").hidden = name !== "";
  byId("service-view").hidden = name === "";
  if (name && name !== last) {
    say("service-name", name);
    for (const id of ["service-problems", "service-facts", "service-servers"]) byId(id).replaceChildren();
    byId("left-out").hidden = true;
  }
  if (name) byId("service-name").focus();
  else document.querySelector(`[data-key="${CSS.escape(`service ${last}`)}"]`)?.focus();
  await refresh();
}

byId("pause").addEventListener("click", () => {
  loop.isPaused = !loop.isPaused;
  byId("pause").setAttribute("aria-pressed", String(loop.isPaused));
  if (loop.isPaused) window.clearTimeout(loop.timer);
  else refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && !loop.isPaused) refresh(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen()) location.hash = "";
});
window.addEventListener("hashchange", turn);
listen(refresh);
if (chosen()) turn();
else refresh();
