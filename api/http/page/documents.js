// The list of documents, what can be done with them, and the form for a new one.
import { call, documentPath, events, getJson, sendJson } from "/page/api.js";
import { $, askUser, bytes, counted, el, guarded, percent, ratioName, setText } from "/page/ui.js";

const documents = new Map(); // by id, as the server describes them
const rows = new Map(); // by id
let selected = null;
const listeners = [];

export const allDocuments = () =>
  [...documents.values()].sort((a, b) => b.created_at - a.created_at || (a.id < b.id ? 1 : -1));
export const documentOf = (id) => documents.get(id);
export const nameOf = (document) => document.name || document.id;
/// `work(selected document or undefined)`, after every change.
export const onDocuments = (work) => listeners.push(work);

// ---- what the server tells ----

function changed() {
  $("no-documents").hidden = documents.size > 0;
  const inMemory = [...documents.values()].flatMap((each) => each.versions)
    .filter((each) => each.tier === "memory");
  const kept = inMemory.reduce((sum, each) => sum + each.kv_bytes, 0);
  setText($("documents-sum"), documents.size ? `${documents.size}; ${bytes(kept)} in memory` : "");
  if (!documents.has(selected)) selected = allDocuments()[0]?.id ?? null;
  for (const [id, row] of rows) {
    row.element.classList.toggle("selected", id === selected);
    row.name.setAttribute("aria-pressed", id === selected);
  }
  for (const work of listeners) work(documents.get(selected));
}

function put(document) {
  documents.set(document.id, { versions: [], ...document });
  if (!rows.has(document.id)) rows.set(document.id, makeRow(document.id));
  fillRow(rows.get(document.id), documents.get(document.id));
  // Only what isn't at its place is moved: a moved button would lose the focus.
  allDocuments().forEach((each, i) => {
    const { element } = rows.get(each.id);
    const there = $("list").children[i] ?? null;
    if (there !== element) $("list").insertBefore(element, there);
  });
}

function drop(id) {
  documents.delete(id);
  rows.get(id)?.element.remove();
  rows.delete(id);
}

/// Follows the documents until the stream ends. Throws what `call` throws.
export async function follow(signal) {
  const list = await getJson("/v1/documents?limit=1000", { signal });
  const there = new Set(list.data.map((each) => each.id));
  for (const id of [...documents.keys()]) if (!there.has(id)) drop(id);
  list.data.forEach(put);
  changed();
  for await (const data of events(await call("GET", "/v1/documents/events", { signal }))) {
    const document = JSON.parse(data);
    if (document.object === "document") put(document);
    else drop(document.id); // it is gone: nothing but its id is left to tell
    changed();
  }
}

export function forgetDocuments() {
  for (const id of [...documents.keys()]) drop(id);
  changed();
}

// ---- one document ----

const kStages = { prefilling: "reading", compacting: "packing" };

function select(id) {
  selected = id;
  changed();
}

function makeRow(id) {
  const button = (textContent, work) =>
    el("button", { type: "button", textContent, onclick: guarded(() => work(documents.get(id))) });
  const row = {
    name: el("button", { type: "button", className: "name", onclick: () => select(id) }),
    state: el("span", { className: "state" }),
    facts: el("p", { className: "facts muted" }),
    progress: el("progress", { max: 1 }),
    versions: el("ul", { className: "versions" }),
    error: el("p", { className: "error" }),
    pin: button("Pin", pin),
    rename: button("Rename", rename),
    cancel: button("Cancel", (d) => sendJson("POST", `${documentPath(d.id)}/cancel`).then(put)),
    drop: button("Delete", remove),
  };
  row.element = el("li", {},
    el("div", { className: "head" }, row.name, row.state),
    row.progress, row.facts, row.versions, row.error,
    el("div", { className: "actions" }, row.pin, row.rename, row.cancel, row.drop));
  return row;
}

function versionItem(version, full) {
  const share = full > 0 ? version.kv_bytes / full : 0;
  const bar = el("span", { className: version.exact ? "bar exact" : "bar" }, el("span"));
  bar.firstChild.style.width = `${100 * Math.min(1, share)}%`;
  const where = version.tier === "memory" && version.durable ? "memory, disk" : version.tier;
  const words = `${bytes(version.kv_bytes)} · ${where} · ${counted(version.hits, "hit")}`;
  return el("li", {},
    el("b", { textContent: ratioName(version.ratio) }), bar, el("span", { textContent: words }));
}

function stateOf({ status, progress }) {
  const words = kStages[status] ?? status;
  if (!progress) return words;
  return `${words}${status === "ready" ? ", one more version" : ""} ${percent(progress.value, 0)}`;
}

function factsOf({ usage, pinned, group }) {
  if (!usage) return "";
  const facts = [counted(usage.tokens, "token"), `${bytes(usage.kv_bytes_full)} full`];
  if (usage.kv_bytes > 0 && usage.kv_bytes < usage.kv_bytes_full) {
    const factor = (usage.kv_bytes_full / usage.kv_bytes).toFixed(1);
    facts.push(`${bytes(usage.kv_bytes)} kept, ${factor}× smaller`);
  }
  if (pinned) facts.push("pinned");
  if (group) facts.push(`group ${group}`);
  return facts.join(" · ");
}

function fillRow(row, document) {
  const { usage, progress, status } = document;
  setText(row.name, nameOf(document));
  setText(row.state, stateOf(document));
  row.state.dataset.status = status;
  row.progress.hidden = !progress;
  row.progress.value = progress?.value ?? 0;
  row.progress.setAttribute("aria-label", `Progress of ${nameOf(document)}`);
  setText(row.facts, factsOf(document));
  const versions = [...document.versions].sort((a, b) => b.ratio - a.ratio);
  row.versions.replaceChildren(...versions.map((each) => versionItem(each, usage.kv_bytes_full)));
  setText(row.error, document.error?.message ?? "");
  row.error.hidden = !document.error;
  setText(row.pin, document.pinned ? "Unpin" : "Pin");
  row.pin.hidden = row.rename.hidden = status !== "ready";
  row.cancel.hidden = !progress;
  for (const button of [row.pin, row.rename, row.cancel, row.drop]) {
    button.setAttribute("aria-label", `${button.textContent} ${nameOf(document)}`);
  }
}

async function pin(document) {
  put(await sendJson("PATCH", documentPath(document.id), { pinned: !document.pinned }));
  changed();
}

async function rename(document) {
  const name = await askUser({
    title: "Rename the document", label: "Name", value: document.name, action: "Rename",
  });
  if (name === null) return;
  put(await sendJson("PATCH", documentPath(document.id), { name }));
  changed();
}

async function remove(document) {
  const answer = await askUser({
    title: "Delete the document?", action: "Delete",
    text: `${nameOf(document)} goes from memory and from disk, with all its versions.`,
  });
  if (answer === null) return;
  await sendJson("DELETE", documentPath(document.id));
  drop(document.id);
  changed();
}

/// Has a version made that isn't there.
export async function makeVersion(document, ratio) {
  put(await sendJson("PATCH", documentPath(document.id), { compression: { ratio } }));
  changed();
}

// ---- a new one ----

async function textOf(form) {
  const file = form.file.files[0];
  if (!file) return form.text.value;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not text in UTF-8.`);
  }
}

/// Not a text, but what a server made of one.
async function isDocumentFile(file) {
  return (await file.slice(0, 8).text()) === "PAGEZIPD";
}

async function importFile(form) {
  const random = crypto.getRandomValues(new Uint8Array(12));
  const id = `doc_${[...random].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  const document = await sendJson("PUT", `${documentPath(id)}/content`, form.file.files[0]);
  const name = form.elements.name.value || document.name;
  const pinned = form.pinned.checked;
  if (name === document.name && !pinned) return document;
  return sendJson("PATCH", documentPath(id), { name, pinned });
}

async function makeDocument(form) {
  const content = await textOf(form);
  if (!content.trim()) throw new Error("Paste a text, or choose a file.");
  const ratios = [...form.querySelectorAll("[name=ratio]:checked")].map((box) => Number(box.value));
  if (form.other.value) ratios.push(Number(form.other.value));
  if (ratios.length === 0) throw new Error("Choose at least one share to keep.");
  return sendJson("POST", "/v1/documents", {
    content, name: form.elements.name.value || form.file.files[0]?.name || "",
    compression: { ratios }, pinned: form.pinned.checked,
  });
}

async function create(form) {
  const file = form.file.files[0];
  const document =
    await (file && (await isDocumentFile(file)) ? importFile(form) : makeDocument(form));
  put(document);
  select(document.id);
  form.reset();
  $("new").open = false;
  rows.get(document.id).name.focus();
}

$("create").onsubmit = guarded(async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await create(form);
  } finally {
    button.disabled = false;
  }
});
