// One question, asked of a document's versions side by side.
import { call, errorOf, events } from "/page/api.js";
import { allDocuments, documentOf, makeVersion, nameOf } from "/page/documents.js";
import { $, el, guarded, ms, number, ratioName, report, setText } from "/page/ui.js";

const kRatios = [1, 0.5, 0.3, 0.1];
const form = $("ask");
let running = null; // abort controller
let taken = null; // the document that was last taken over from the list

// ---- the columns ----

const columns = kRatios.map((ratio) => {
  const column = {
    ratio,
    verdict: el("span", { className: "verdict" }),
    text: el("p", { className: "answer" }),
    note: el("p", { className: "muted" }),
    make: el("button", { type: "button", textContent: "Make this version" }),
  };
  column.make.onclick = guarded(async () => {
    column.make.disabled = true;
    try {
      await makeVersion(documentOf(form.document.value), ratio);
    } finally {
      column.make.disabled = false;
    }
  });
  column.text.setAttribute("aria-live", "polite");
  const title = el("h3", { textContent: ratio === 1 ? "exact" : `${100 * ratio} % kept` });
  const head = el("div", { className: "title" }, title, column.verdict);
  $("answers").append(el("article", {}, head, column.text, column.note, column.make));
  return column;
});

function versionOf(document, ratio) {
  return document?.versions.find((each) => each.ratio === ratio);
}

function clearColumn(column) {
  column.answer = null;
  setText(column.text, "");
  setText(column.note, "");
  column.note.className = "muted";
  setText(column.verdict, "");
  column.verdict.className = "verdict";
}

function fillColumns() {
  const document = documentOf(form.document.value);
  for (const column of columns) {
    const missing = document && !versionOf(document, column.ratio);
    column.make.hidden = !missing;
    if (missing) {
      clearColumn(column);
      setText(column.note, document.progress ? "Not there yet." : "Not there.");
      column.make.hidden = Boolean(document.progress);
    } else if (column.missing) {
      setText(column.note, "");
    }
    column.missing = missing;
  }
}

/// After every change of a document.
export function fillPlayground(selected) {
  const select = form.document;
  const usable = allDocuments().filter((each) => each.versions.length > 0);
  const options = usable.map((each) => [each.id, nameOf(each)]);
  const now = [...select.options].map((each) => [each.value, each.textContent]);
  if (JSON.stringify(now) !== JSON.stringify(options)) {
    const before = select.value;
    select.replaceChildren(
      ...options.map(([value, textContent]) => el("option", { value, textContent })));
    if (options.some(([id]) => id === before)) select.value = before;
  }
  // A document that is chosen in the list is chosen here too, once.
  if (selected?.versions.length > 0 && selected.id !== taken && !running) {
    taken = selected.id;
    if (select.value !== taken) {
      select.value = taken;
      columns.forEach(clearColumn);
    }
  }
  form.querySelector(".main").disabled = options.length === 0 || running !== null;
  fillColumns();
}

form.document.onchange = () => {
  columns.forEach(clearColumn);
  fillColumns();
};

// ---- asking ----

async function askOne(column, id, question, tokens, signal) {
  clearColumn(column);
  setText(column.note, "waiting");
  column.text.ariaBusy = "true"; // read out once it is whole
  // The server answers from the version that is nearest to keep_ratio.
  const response = await call("POST", "/v1/chat/completions", {
    signal,
    body: {
      stream: true, temperature: 0, max_tokens: tokens, keep_ratio: column.ratio,
      messages: [{ role: "user", content: [
        { type: "file", file: { file_id: id } }, { type: "text", text: question }] }],
    },
  });
  let last = null;
  let finish = null;
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    last = JSON.parse(data);
    if (last.error) throw errorOf(last.error);
    finish = last.choices[0]?.finish_reason ?? finish;
    const text = last.choices[0]?.delta?.content;
    if (text) {
      column.text.append(text);
      setText(column.note, "answering");
    }
  }
  const { timings, document } = last ?? {};
  if (!timings) throw new Error("The answer broke off.");
  column.answer = column.text.textContent;
  column.text.ariaBusy = "false";
  setText(column.note, [
    `${number(timings.predicted_n)} tokens${finish === "length" ? ", cut off" : ""}`,
    `first after ${ms(timings.prompt_ms)}`,
    `then ${ms(timings.predicted_per_token_ms)} each`,
    ...(document.keep_ratio === column.ratio ? [] : [`by ${ratioName(document.keep_ratio)}`]),
  ].join(" · "));
}

// Marks where an answer leaves the exact one.
function compare() {
  const exact = columns[0].answer;
  if (exact === null) return;
  for (const { answer, text, verdict } of columns.slice(1)) {
    if (answer === null) continue;
    const same = answer === exact;
    setText(verdict, same ? "same as exact" : "differs");
    verdict.className = `verdict ${same ? "same" : "differs"}`;
    let at = 0;
    while (at < answer.length && answer[at] === exact[at]) ++at;
    at = answer.lastIndexOf(" ", at) + 1; // whole words
    if (!same) text.replaceChildren(answer.slice(0, at), el("mark", {}, answer.slice(at)));
  }
}

async function ask() {
  const document = documentOf(form.document.value);
  const question = form.question.value.trim();
  if (!document || !question) return;
  const asked = columns.filter((column) => versionOf(document, column.ratio));
  if (asked.length === 0) throw new Error("Make one of these versions first.");
  running = new AbortController();
  $("stop").hidden = false;
  fillPlayground();
  await Promise.all(asked.map(async (column) => {
    try {
      await askOne(column, document.id, question, Number(form.tokens.value), running.signal);
    } catch (error) {
      column.text.ariaBusy = "false";
      setText(column.note, error.name === "AbortError" ? "stopped" : error.message);
      column.note.classList.toggle("error", error.name !== "AbortError");
    }
  }));
  running = null;
  $("stop").hidden = true;
  compare();
  fillPlayground();
}

form.onsubmit = (event) => {
  event.preventDefault();
  if (!running) ask().catch(report);
};
form.question.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    form.requestSubmit();
  }
};
$("stop").onclick = () => running?.abort();
