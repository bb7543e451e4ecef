// The status page of a kroute agent. It only asks `status.json`; every text from there is put in as text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const view = { search: "", page: 1, pages: 1, timer: 0, asked: 0 };

function cell(content, className = "") {
  const made = document.createElement("td");
  made.textContent = content;
  made.className = className;
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

const endpoint = (address, port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`);
const counted = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;
const clock = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString() : "-");

function showVerdict(health) {
  const verdict = byId("verdict");
  verdict.textContent = health.healthy ? "healthy" : "not healthy";
  verdict.className = health.healthy ? "healthy" : "unhealthy";
  byId("causes").replaceChildren(
    ...(health.causes ?? []).map((cause) => {
      const item = document.createElement("li");
      item.textContent = cause;
      return item;
    }),
  );
}

function showOverview(overview) {
  byId("overview").replaceChildren(
    ...Object.entries(overview).map(([name, value]) => {
      const pair = document.createElement("div");
      const term = document.createElement("dt");
      const definition = document.createElement("dd");
      term.textContent = name;
      definition.textContent = typeof value === "number" ? value.toLocaleString() : value;
      pair.append(term, definition);
      return pair;
    }),
  );
}

function showProblems(problems, total) {
  byId("problems-section").hidden = total === 0;
  byId("problems-count").textContent = total > problems.length ? `(first ${problems.length} of ${total})` : `(${total})`;
  byId("problems").replaceChildren(
    ...problems.map((it) => row(cell(it.service || "this node"), cell(it.reason), cell(it.message))),
  );
}

function virtualServerRows(server, isFirst) {
  const persistence = server.persistence_timeout === null
    ? "-" : `${server.persistence_timeout} s /${server.persistence_prefix}`;
  const heading = [
    cell(isFirst ? server.service : ""),
    cell(`${server.protocol} ${endpoint(server.address, server.port)}`, "address"),
    cell([server.scheduler, ...server.flags].join(" ")),
    cell(persistence),
  ];
  if (server.real_servers.length === 0) {
    return [row(...heading, cell("-"), cell(""), cell(""), cell(""), cell(server.state, server.state))];
  }
  return server.real_servers.map((it, index) => row(
    ...(index === 0 ? heading : [cell(""), cell(""), cell(""), cell("")]),
    cell(endpoint(it.address, it.port), "address"),
    cell(it.weight, "number"), cell(it.active, "number"), cell(it.inactive, "number"),
    cell(it.state, it.state),
  ));
}

function showServices(services) {
  view.page = services.page;
  view.pages = services.pages;
  byId("services-count").textContent = view.search
    ? `(${services.matching} of ${counted(services.total, "Service")})` : `(${services.total})`;
  byId("page").textContent = `page ${services.page} of ${services.pages}`;
  byId("previous").disabled = services.page <= 1;
  byId("next").disabled = services.page >= services.pages;
  const rows = [];
  let previous = null;
  for (const server of services.virtual_servers) {
    rows.push(...virtualServerRows(server, server.service !== previous));
    previous = server.service;
  }
  byId("services").replaceChildren(...rows);
}

function showControllers(controllers) {
  byId("controllers").replaceChildren(...controllers.map((it) => row(
    cell(it.name), cell(it.depth, "number"), cell(`${it.lag.toFixed(1)} s`, "number"),
    cell(it.writes, "number"), cell(it.repairs, "number"), cell(it.failures, "number"), cell(it.waiting, "number"),
    cell(clock(it.last_resync)),
  )));
}

function showChanges(changes) {
  byId("changes").replaceChildren(
    ...changes.map((it) => row(cell(clock(it.time)), cell(it.event, it.level), cell(it.details))),
  );
}

function show(status) {
  byId("node").textContent = `${status.version} on ${status.node}`;
  document.title = `kroute on ${status.node}`;
  showVerdict(status.health);
  showOverview(status.overview);
  showProblems(status.problems, status.problems_total);
  showServices(status.services);
  showControllers(status.controllers);
  showChanges(status.changes);
}

async function refresh() {
  window.clearTimeout(view.timer);
  const asked = ++view.asked;
  let after = 5;
  try {
    const question = new URLSearchParams({ search: view.search, page: view.page });
    const answer = await fetch(`status.json?${question}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the agent answers ${answer.status}`);
    const status = await answer.json();
    if (asked !== view.asked) return;  // a newer question is under way
    show(status);
    after = status.refresh_after;
  } catch (error) {
    if (asked !== view.asked) return;
    byId("verdict").textContent = `no answer from the agent (${error.message}): what stands below is old`;
    byId("verdict").className = "unhealthy";
  }
  if (!document.hidden) view.timer = window.setTimeout(refresh, after * 1000);
}

function turn(page) {
  view.page = page;
  refresh();
}

byId("previous").addEventListener("click", () => turn(Math.max(1, view.page - 1)));
byId("next").addEventListener("click", () => turn(Math.min(view.pages, view.page + 1)));
byId("search-form").addEventListener("submit", (event) => event.preventDefault());
byId("search").addEventListener("input", () => {
  view.search = byId("search").value.trim();
  turn(1);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
