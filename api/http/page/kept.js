// What a version keeps: a heatmap of layers and heads, and the text as one head keeps it.
import { documentPath, getJson } from "/page/api.js";
import { documentOf, nameOf } from "/page/documents.js";
import {
  $, canvasOf, color, counted, el, guarded, number, onColors, percent, ratioName, report, setText,
} from "/page/ui.js";

let shown = null; // {id, ratio, map}: the retention on show
let cell = { layer: 0, head: 0 };
let wanted = ""; // the document and its versions that are on show, or being fetched
let texts = null; // abort controller of the text that is being fetched

const kAxis = 34; // px, for the names of heads
const heatmap = $("heatmap");

// ---- colours ----

function rgb(name) {
  const hex = color(name);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// From --heat-0 over --heat-1 to --heat-2.
function colorScale() {
  const stops = ["--heat-0", "--heat-1", "--heat-2"].map(rgb);
  return (share) => {
    const at = Math.min(1, Math.max(0, share)) * 2;
    const [from, to] = at < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
    const part = at < 1 ? at : at - 1;
    return `rgb(${from.map((v, i) => Math.round(v + (to[i] - v) * part)).join(" ")})`;
  };
}

function drawScale() {
  const canvas = $("scale");
  const context = canvas.getContext("2d");
  const colorOf = colorScale();
  for (let x = 0; x < canvas.width; ++x) {
    context.fillStyle = colorOf(x / (canvas.width - 1));
    context.fillRect(x, 0, 1, canvas.height);
  }
}
onColors(drawScale);
drawScale();

// ---- the heatmap ----

// Layers with a sliding window aren't compressed, and aren't counted here.
const layerName = (layer) => shown.map.layer_numbers[layer];
const share = (layer, head) => shown.map.kept[layer][head] / shown.map.tokens;
const cellWidth = (width) => (width - kAxis) / shown.map.layers;
const cellHeight = (width) =>
  Math.max(16, Math.min(30, cellWidth(width) * 1.4, 260 / shown.map.kv_heads));

const redrawHeatmap = canvasOf(heatmap,
  (width) => (shown ? Math.ceil(cellHeight(width) * shown.map.kv_heads) + 18 : 0),
  (context, width) => {
    if (!shown) return;
    const { layers, kv_heads: heads } = shown.map;
    const colorOf = colorScale();
    const [w, h] = [cellWidth(width), cellHeight(width)];
    const gap = w > 5 ? 1 : 0;
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    context.fillStyle = color("--muted");
    for (let head = 0; head < heads; ++head) {
      if (h >= 11) context.fillText(`KV ${head}`, 0, (head + 0.5) * h);
    }
    const step = [1, 2, 5, 10, 20, 50].find((n) => n * w >= 24) ?? 100;
    context.textAlign = "center";
    for (let layer = 0; layer < layers; layer += step) {
      context.fillText(layerName(layer), kAxis + (layer + 0.5) * w, heads * h + 10);
    }
    for (let layer = 0; layer < layers; ++layer) {
      for (let head = 0; head < heads; ++head) {
        context.fillStyle = colorOf(share(layer, head));
        context.fillRect(kAxis + layer * w, head * h, w - gap, h - gap);
      }
    }
    context.strokeStyle = color("--ink");
    context.lineWidth = 2;
    context.strokeRect(kAxis + cell.layer * w + 0.5, cell.head * h + 0.5, w - gap - 1, h - gap - 1);
  });

const redrawPositions = canvasOf($("positions"), () => 36, (context, width, height) => {
  const shares = shown?.map.by_position;
  if (!shares) return;
  const w = width / shares.length;
  shares.forEach((each, i) => {
    context.fillStyle = color("--line");
    context.fillRect(i * w, 0, w - 1, height);
    context.fillStyle = color("--accent");
    context.fillRect(i * w, height * (1 - each), w - 1, height * each);
  });
});

function tellCell() {
  const kept = shown.map.kept[cell.layer][cell.head];
  setText($("cell"), `Layer ${layerName(cell.layer)}, KV head ${cell.head} keeps ` +
    `${number(kept)} of ${number(shown.map.tokens)} pairs, ${percent(kept / shown.map.tokens)}`);
}

function moveTo(layer, head) {
  cell = {
    layer: Math.max(0, Math.min(shown.map.layers - 1, layer)),
    head: Math.max(0, Math.min(shown.map.kv_heads - 1, head)),
  };
  redrawHeatmap();
  tellCell();
}

function cellAt(event) {
  const box = heatmap.getBoundingClientRect();
  const x = event.clientX - box.left - kAxis;
  const layer = Math.floor(x / cellWidth(box.width));
  const head = Math.floor((event.clientY - box.top) / cellHeight(box.width));
  return x >= 0 && layer < shown.map.layers && head < shown.map.kv_heads ? [layer, head] : null;
}

heatmap.onpointermove = (event) => {
  const at = shown && cellAt(event);
  heatmap.style.cursor = at ? "pointer" : "default";
  // With the text open, the frame stays where the text is from.
  if (at && $("reader").hidden && event.pointerType === "mouse") moveTo(...at);
};
heatmap.onclick = guarded(async (event) => {
  const at = shown && cellAt(event);
  if (!at) return;
  moveTo(...at);
  await openText();
});

const kMoves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
heatmap.onkeydown = guarded(async (event) => {
  if (!shown || event.ctrlKey || event.altKey || event.metaKey) return;
  const move = kMoves[event.key];
  if (move) moveTo(cell.layer + move[0], cell.head + move[1]);
  else if (event.key === "Home") moveTo(0, cell.head);
  else if (event.key === "End") moveTo(shown.map.layers - 1, cell.head);
  else if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  // With the text open it follows.
  if (!move || !$("reader").hidden) await openText();
});

// ---- the text ----

// Runs of tokens with the same fate are one element: a long document would have too many.
function runs(pieces, positions) {
  const kept = positions && new Set(positions);
  const parts = [];
  pieces.forEach((piece, i) => {
    const is = !kept || kept.has(i);
    if (parts.at(-1)?.is === is) parts.at(-1).text += piece;
    else parts.push({ is, text: piece });
  });
  return parts.map(({ is, text }) => el(is ? "mark" : "span", { textContent: text }));
}

async function openText() {
  texts?.abort();
  texts = new AbortController();
  const { id, ratio } = shown;
  const { layer, head } = cell;
  const query = `ratio=${ratio}&layer=${layer}&head=${head}`;
  const map = await getJson(`${documentPath(id)}/retention?${query}`, { signal: texts.signal });
  if (shown?.id !== id || shown.ratio !== ratio) return; // it isn't wanted any more
  const kept = map.kept[layer][head];
  setText($("reader-title"),
    `Layer ${layerName(layer)}, KV head ${head}: ${number(kept)} of ${number(map.tokens)} tokens`);
  const unknown = map.positions === null && kept < map.tokens;
  setText($("reader-note"), unknown
    ? "Which tokens these are isn't known: the document's scores aren't there."
    : "Marked: the tokens whose KV pair is kept. Arrow keys on the map move on, Esc closes.");
  $("reader-text").replaceChildren(
    ...(unknown ? [map.texts.join("")] : runs(map.texts, map.positions)));
  $("reader").hidden = false;
}

function closeText() {
  texts?.abort();
  if ($("reader").hidden) return;
  $("reader").hidden = true;
  heatmap.focus({ preventScroll: true });
}
$("reader-close").onclick = closeText;
$("kept").addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeText();
});

// ---- which document and version ----

async function show(id, ratio) {
  const map = await getJson(`${documentPath(id)}/retention?ratio=${ratio}`);
  const { value } = $("kept-version");
  if (!wanted.startsWith(`${id} `) || value !== String(ratio)) return; // it isn't wanted any more
  const wasOpen = !$("reader").hidden && shown?.id === id;
  shown = { id, ratio, map };
  const all = map.kept.flat();
  const least = percent(Math.min(...all) / map.tokens);
  const most = percent(Math.max(...all) / map.tokens);
  const size = `${counted(map.layers, "layer")} × ${counted(map.kv_heads, "KV head")}`;
  const range = least === most ? `every head keeps ${most}` : `heads keep ${least} to ${most}`;
  setText($("kept-document"), `${nameOf(documentOf(id))}: ${size}; ${range}`);
  heatmap.setAttribute("aria-label",
    `Share kept, ${size}. Arrow keys move, Enter shows the text.`);
  $("positions-box").hidden = !map.by_position;
  $("kept").hidden = false;
  moveTo(cell.layer, cell.head);
  redrawPositions();
  if (wasOpen) await openText();
  else $("reader").hidden = true;
}

const showChosen = () => show(wanted.split(" ")[0], Number($("kept-version").value));
$("kept-version").onchange = guarded(showChosen);

/// The document that is chosen; undefined: none.
export function showKept(document) {
  const ratios = document?.versions.map((each) => each.ratio).sort((a, b) => b - a) ?? [];
  const now = document ? `${document.id} ${ratios.join(" ")}` : "";
  if (now === wanted) return;
  const select = $("kept-version");
  const same = document && wanted.startsWith(`${document.id} `);
  const before = same ? Number(select.value) : NaN;
  wanted = now;
  if (ratios.length === 0) {
    $("kept").hidden = true;
    shown = null;
    return;
  }
  select.replaceChildren(
    ...ratios.map((each) => el("option", { value: each, textContent: ratioName(each) })));
  // The exact version keeps all: there is more to see in a compressed one.
  const compressed = ratios.filter((each) => each < 1);
  select.value = ratios.includes(before) && before < 1 ? before : compressed[0] ?? ratios[0];
  showChosen().catch(report);
}
