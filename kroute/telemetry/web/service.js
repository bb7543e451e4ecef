// One Service in full: its addresses, virtual servers with their real servers and rates, and what does not serve.
import { badge, byId, bytes, count, element, endpoint, facts, fill, problems, rate, say, update } from "./elements.js";

const seen = { name: "", time: 0, traffic: new Map() };

export function showService(service) {
  const seconds = seen.name === service.service ? service.time - seen.time : 0;
  const before = seen.name === service.service ? seen.traffic : new Map();
  const nodes = nodesOf(service.frontends);
  byId("service-view").dataset.of = service.service;
  say("service-name", service.service);
  say("service-note", service.unreadable);
  problems(byId("service-problems"), service.problems);
  facts(byId("service-facts"), [
    ["Addresses on this node", service.vips.map(([address]) => address).join(", ") || "none"],
    ["Virtual servers", count(service.virtualServers.length)],
    ["Open connections", count(sum(service.virtualServers, (it) => sum(it.realServers, (real) => real.active)))],
  ]);
  const frontends = new Map(service.frontends.map((it) => [nameOf(it), it]));
  update(byId("service-servers"), service.virtualServers.map((it) => {
    const name = nameOf(it);
    const passed = seconds > 0 && before.has(name) && it.traffic ? difference(it.traffic, before.get(name), seconds) : null;
    return virtualServer(it, name, frontends.get(name), passed, nodes);
  }));
  showLeftOut(service);
  Object.assign(seen, { name: service.service, time: service.time, traffic: new Map(service.virtualServers.map(
    (it) => [nameOf(it), it.traffic ?? {}])) });
}

/** No Service of this name is planned any more. */
export function showNoService(name) {
  byId("service-view").dataset.of = name;
  say("service-name", name);
  say("service-note", "There is no such Service on this node.");
  for (const id of ["service-problems", "service-facts", "service-servers"]) byId(id).replaceChildren();
  byId("left-out").hidden = true;
}

const nameOf = ({ protocol, address, port }) => `${protocol} ${endpoint(address, port)}`;
const COUNTERS = ["connections", "packetsIn", "packetsOut", "bytesIn", "bytesOut"];
const sum = (items, value) => items.reduce((total, it) => total + value(it), 0);
const difference = (now, then, seconds) => COUNTERS.map((it) => Math.max(0, now[it] - (then[it] ?? 0)) / seconds);

/** The node of each endpoint, by its address and port. */
function nodesOf(frontends) {
  return new Map(frontends.flatMap((it) => it.endpoints).map((it) => [endpoint(it.address, it.port), it.node ?? "–"]));
}

function virtualServer(it, name, frontend, passed, nodes) {
  const section = element("section", [], "server");
  const heading = element("h3", [name, " ", badge(it.state)]);
  const [connections, packetsIn, packetsOut, bytesIn, bytesOut] = passed ?? [];
  const about = document.createElement("dl");
  facts(about, [
    ["Scheduler", [it.scheduler, ...it.flags].join(" ")],
    ["Persistence", it.persistenceTimeout === null ? "none" : `${it.persistenceTimeout} s, /${it.persistencePrefix}`],
    ...(frontend ? [["Kind, policy", `${frontend.kind}, ${frontend.policy}`]] : []),
    ["New connections/s", rate(connections)],
    ["Packets/s in, out", `${rate(packetsIn)}, ${rate(packetsOut)}`],
    ["Bytes/s in, out", `${bytes(bytesIn)}, ${bytes(bytesOut)}`],
  ]);
  section.append(heading, about, realServers(it, name, nodes));
  return section;
}

function realServers(it, name, nodes) {
  if (it.realServers.length === 0) return element("p", "No real server: clients are refused.", "quiet");
  const table = element("table", element("caption", `Real servers of ${name}`, "unseen"), "stack");
  const heads = ["Real server", "Node", "Weight", "Active", "Inactive", "State"];
  const head = document.createElement("tr");
  head.append(...heads.map((text, index) => {
    const made = element("th", text, index > 1 && index < 5 ? "number" : "");
    made.scope = "col";
    return made;
  }));
  table.createTHead().append(head);
  fill(table.createTBody(), it.realServers.map((real) => [
    [endpoint(real.address, real.port), "address"],
    nodes.get(endpoint(real.address, real.port)) ?? "–",
    [real.weight, "number"], [count(real.active), "number"], [count(real.inactive), "number"],
    badge(real.state),
  ]));
  return table;
}

function showLeftOut(service) {
  const rows = service.frontends.flatMap((it) => it.endpoints.filter((each) => !each.serves).map((each) => [
    [nameOf(it), "address"],
    [endpoint(each.address, each.port), "address"],
    each.node ?? "–",
    each.reason,
  ]));
  if (service.omitted) rows.push(["", `${count(service.omitted)} more endpoints`, "", "see kroute explain"]);
  byId("left-out").hidden = rows.length === 0;
  fill(byId("left-out-rows"), rows);
}
