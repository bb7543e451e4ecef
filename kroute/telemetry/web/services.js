// The list of Services: search, filter, order and pages are asked from the agent, which has all of them.
import { badge, byId, bytes, count, counted, element, fill, rate, say, serviceLink } from "./elements.js";

export const view = { search: "", only: "", sort: "service", order: "ascending", page: 1, pages: 1 };

/** What is asked of the agent. */
export function question() {
  const { search, only, sort, order, page } = view;
  return new URLSearchParams({ search, only, sort, order, page });
}

export function showServices(services) {
  view.page = services.page;
  view.pages = services.pages;
  const isChosen = view.search !== "" || view.only !== "";
  say("services-count", isChosen ? `${count(services.matching)} of ${count(services.total)}` : count(services.total));
  say("page", `page ${services.page} of ${services.pages}`);
  byId("pager").hidden = services.pages === 1;
  byId("previous").disabled = services.page <= 1;
  byId("next").disabled = services.page >= services.pages;
  byId("services-empty").hidden = services.rows.length > 0;
  fill(byId("services"), services.rows.map(cells));
}

function cells(it) {
  const { serving, draining, ejected, missing_real_servers: missing, virtual_servers: servers, active } = it.figures;
  const counts = [[serving, ""], [draining + ejected, " draining"], [missing, " missing"]];
  const real = counts.filter(([number]) => number).map(([number, word]) => count(number) + word).join(", ");
  const more = servers > 1 ? ` +${servers - 1}` : "";
  const rates = it.rates ?? {};
  const state = badge(it.state);
  return [
    serviceLink(it.service),
    it.problems ? element("span", [state, ", ", element("span", counted(it.problems, "problem"), "warn")]) : state,
    [it.address ? `${it.address}${more}` : "–", "address"],
    [real || "none", "number"],
    [count(active), "number"],
    [rate(rates.connections), "number"],
    [rate(it.rates ? rates.packetsIn + rates.packetsOut : null), "number"],
    [bytes(it.rates ? rates.bytesIn + rates.bytesOut : null), "number"],
  ];
}

/** Make the controls work. `ask` asks the agent again. */
export function listen(ask) {
  const again = (changes) => {
    Object.assign(view, { page: 1 }, changes);
    showOrder();
    ask();
  };
  byId("previous").addEventListener("click", () => again({ page: Math.max(1, view.page - 1) }));
  byId("next").addEventListener("click", () => again({ page: Math.min(view.pages, view.page + 1) }));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("search").addEventListener("input", () => again({ search: byId("search").value.trim() }));
  byId("only").addEventListener("change", () => again({ only: byId("only").value }));
  byId("sort").addEventListener("change", () => again({ sort: byId("sort").value, order: first(byId("sort").value) }));
  for (const head of byId("services-head").querySelectorAll("[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(head.textContent);
    head.dataset.label = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => again(next(head.dataset.sort)));
  }
  showOrder();
}

/** Names begin with a, everything else with the most. */
const first = (sort) => (sort === "service" ? "ascending" : "descending");

function next(sort) {
  if (sort !== view.sort) return { sort, order: first(sort) };
  return { sort, order: view.order === "ascending" ? "descending" : "ascending" };
}

function showOrder() {
  byId("sort").value = view.sort;
  for (const head of byId("services-head").querySelectorAll("[data-sort]")) {
    head.setAttribute("aria-sort", head.dataset.sort === view.sort ? view.order : "none");
  }
}
