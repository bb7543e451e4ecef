// Elements of the status page, and numbers as people read them. Every text is put in as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export function element(name, content = "", className = "") {
  const made = document.createElement(name);
  made.append(...[content].flat());
  if (className) made.className = className;
  return made;
}

/** Give a parent these children. Those that are as before stay: a click or the focus on them is not lost. */
export function update(parent, children) {
  children.forEach((child, index) => {
    const old = parent.children[index];
    if (!old) parent.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

/** A link to one Service in full. */
export function serviceLink(name) {
  const link = element("a", name);
  link.href = `#service=${encodeURIComponent(name)}`;
  link.dataset.key = `service ${name}`;
  return link;
}

/** A word for a state, with a sign that does not depend on colours. */
export function badge(state) {
  const signs = { serving: "●", draining: "◐", refusing: "○", missing: "✕" };
  const sign = element("span", `${signs[state] ?? "–"} `);
  sign.setAttribute("aria-hidden", "true");
  return element("span", [sign, state ?? "not served"], `badge ${state ?? "none"}`);
}

/** Fill the body of a table. A row is a list of cells: texts, elements, or [content, class]. */
export function fill(body, rows) {
  const labels = [...body.parentElement.tHead.rows[0].cells].map((it) => it.dataset.label ?? it.textContent.trim());
  const sees = document.activeElement?.dataset?.key;
  rows.map((cells) => row(cells, labels)).forEach((made, index) => {
    if (body.rows[index]) update(body.rows[index], [...made.cells]);
    else body.append(made);
  });
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  for (const [element, role] of [[body.parentElement, "table"], [body.parentElement.tHead, "rowgroup"], [body, "rowgroup"]]) {
    element.setAttribute("role", role);  // a table that is shown as cards stays a table to a screen reader
  }
  if (sees && document.activeElement?.dataset?.key !== sees) body.querySelector(`[data-key="${CSS.escape(sees)}"]`)?.focus({ preventScroll: true });
}

function row(cells, labels) {
  const made = document.createElement("tr");
  made.setAttribute("role", "row");
  made.append(...cells.map((it, index) => {
    const [content, className] = Array.isArray(it) ? it : [it, ""];
    const cell = element("td", content instanceof Node ? content : String(content), className);
    cell.setAttribute("role", "cell");
    cell.dataset.label = labels[index];
    return cell;
  }));
  return made;
}

/** Fill a list of terms and their values. A value is a text, an element, or [content, class]. */
export function facts(list, pairs) {
  update(list, pairs.map(([term, value]) => {
    const [content, className] = Array.isArray(value) ? value : [value, ""];
    return element("div", [element("dt", term), element("dd", content, className)]);
  }));
}

/** Fill a list of problems, those of the node and the worst first, as the agent has sorted them. Those of one reason are
 * folded into one; `totals` counts all of each reason, also those that the agent does not name. */
export function problems(list, found, totals = {}) {
  const groups = new Map();
  for (const it of found) groups.set(it.reason, [...(groups.get(it.reason) ?? []), it]);
  update(list, [...groups].map(([reason, group]) => {
    const total = totals[reason] ?? group.length;
    return total > 1 ? folded(list, reason, group, total) : problem(group[0]);
  }));
}

function problem(it) {
  const where = it.service ? serviceLink(it.service) : element("span", "this node");
  const head = element("p", [where, " ", element("strong", it.reason)]);
  return element("li", [head, element("p", it.message), element("p", withCode(it.nextStep), "quiet")], it.severity.toLowerCase());
}

/** The problems of one reason, folded away until somebody opens them; open ones stay open. */
function folded(list, reason, group, total) {
  const items = element("ul", group.map(problem), "problems");
  if (total > group.length) items.append(element("li", `and ${count(total - group.length)} more: kroute show services`, "quiet"));
  const details = element("details", [element("summary", [element("strong", reason), ` ${counted(total, "problem")}`]), items]);
  details.dataset.key = `problems ${reason}`;
  details.open = list.querySelector(`[data-key="${CSS.escape(details.dataset.key)}"]`)?.open ?? false;
  return element("li", details, group[0].severity.toLowerCase());
}

/** A sentence in which `commands` are set apart. */
function withCode(sentence) {
  const parts = sentence.split("`");
  if (parts.length % 2 === 0) return sentence;  // a lone mark is a text of somebody's own
  return parts.map((it, index) => (index % 2 ? element("code", it) : it));
}

/** Change a text only if it is another, so that a screen reader does not say it again. */
export function say(id, text, className = null) {
  const place = byId(id);
  if (place.textContent !== text) place.textContent = text;
  if (className !== null) place.className = className;
}

export const count = (number) => number.toLocaleString("en");
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const clock = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString("en-GB") : "–");
export const endpoint = (address, port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`);

/** A rate: one decimal below ten, thousands as k. "…" until it is known. */
export function rate(number) {
  if (number === null || number === undefined) return "…";
  if (number === 0) return "0";
  return shortened(number, 1000, ["", "k", "M", "G"]);
}

/** Bytes in a second, with their unit. */
export function bytes(number) {
  if (number === null || number === undefined) return "…";
  if (number === 0) return "0";
  return shortened(number, 1024, [" B", " KiB", " MiB", " GiB"]);
}

function shortened(number, base, units) {
  let power = 0;
  while (number >= base && power < units.length - 1) {
    number /= base;
    power += 1;
  }
  return `${number < 10 ? number.toFixed(1) : Math.round(number).toLocaleString("en")}${units[power]}`;
}
