// The server's work: how the KV pool is used, and numbers that are asked for each second.
import { getJson, sleep } from "/page/api.js";
import {
  $, bytes, canvasOf, color, counted, el, ms, number, onColors, percent, setText,
} from "/page/ui.js";

const kHistory = 180; // points, one a second
const kShortest = 60; // seconds that the plots show at least
const kCells = 1200; // squares of the map, at most

let state = null;

// ---- the pool ----

// Parts of the pool that don't overlap. What is left is of requests and jobs.
function poolParts({ total, free, reserved, idle_prefix, documents, ...of }) {
  const pinned = Math.min(of.documents_pinned, documents);
  const held = Math.min(of.documents_held, documents) - pinned;
  return [
    ["pinned", "documents, pinned", pinned],
    ["held", "documents, being read", held],
    ["idle", "documents, idle", documents - pinned - held],
    ["prefix", "prefix cache, idle", idle_prefix],
    ["work", "running requests and jobs", Math.max(0, total - free - documents - idle_prefix)],
    ["reserved", "free, but promised", Math.min(reserved, free)],
    ["free", "free", Math.max(0, free - reserved)],
  ];
}

const blocksPerCell = (total) => Math.max(1, Math.ceil(total / kCells));

const redrawPool = canvasOf($("pool-map"),
  (width) => {
    if (!state) return 0;
    const cells = Math.ceil(state.blocks.total / blocksPerCell(state.blocks.total));
    const columns = Math.floor(width / cellSize(width, cells));
    return Math.ceil(cells / columns) * cellSize(width, cells);
  },
  (context, width) => {
    if (!state) return;
    const { total } = state.blocks;
    const per = blocksPerCell(total);
    const cells = Math.ceil(total / per);
    const size = cellSize(width, cells);
    const columns = Math.floor(width / size);
    let at = 0;
    for (const [name, , blocks] of poolParts(state.blocks)) {
      // What is small is seen all the same; the free part, the last, takes what is left.
      const end = name === "free" ? cells : Math.min(cells, at + Math.ceil(blocks / per));
      context.fillStyle = color(`--pool-${name}`);
      for (; at < end; ++at) {
        const [column, row] = [at % columns, Math.floor(at / columns)];
        context.fillRect(column * size, row * size, size - 1, size - 1);
      }
    }
  });

// About three times as wide as high.
function cellSize(width, cells) {
  return Math.max(4, Math.min(14, Math.floor(width / Math.sqrt(cells * 3))));
}

function fillPool() {
  const { total, free } = state.blocks;
  const size = state.block_bytes;
  setText($("pool-sum"), `${bytes((total - free) * size)} of ${bytes(total * size)} used; ` +
    `a square is ${counted(blocksPerCell(total), "block")} of ${bytes(size)}`);
  const list = $("pool-legend");
  const parts = poolParts(state.blocks);
  if (list.children.length === 0) {
    list.append(...parts.map(([name]) =>
      el("li", {}, el("span", { className: `swatch ${name}` }), el("span"), el("b"))));
  }
  parts.forEach(([, words, blocks], i) => {
    setText(list.children[i].children[1], words);
    setText(list.children[i].children[2], `${number(blocks)} · ${percent(blocks / total)}`);
  });
  redrawPool();
}

// ---- plots ----

const kPlots = [
  { title: "Tokens per second", series: ["decoded", "prompts", "documents"] },
  { title: "Requests and jobs", series: ["running", "waiting", "jobs"] },
  { title: "Decode step, ms", series: ["now", "p50", "p99"] },
  { title: "First token, ms", series: ["now", "p50", "p99"] },
];
const times = [];
let plots = [];

const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

function makePlot(plot) {
  const axis = () => ({
    stroke: color("--muted"), font: "11px system-ui, sans-serif",
    grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
  });
  const box = el("figure", {}, el("figcaption", { textContent: plot.title }));
  $("plots").append(box);
  plot.data ??= plot.series.map(() => []);
  plot.chart = new uPlot({
    width: Math.max(200, box.clientWidth), height: 130,
    cursor: { y: false, points: { size: 6 } },
    scales: {
      x: { range: (_, min, max) => [Math.min(min, max - kShortest), max] },
      y: { range: (_, min, max) => [0, Math.max(1, max * 1.1)] },
    },
    axes: [
      { ...axis(), space: 70, size: 24, values: (_, at) => (times.length ? at.map(clock) : []) },
      { ...axis(), space: 28, size: 46 },
    ],
    series: [
      {},
      ...plot.series.map((label, i) => ({
        label, stroke: color(`--plot-${i + 1}`), width: 1.5,
        points: { show: label === "now", size: 5 },
        value: (_, v) => (v === null || v === undefined ? "–" : number(Number(v.toPrecision(3)))),
      })),
    ],
  }, [times, ...plot.data], box);
  new ResizeObserver(() => {
    if (box.clientWidth > 0) plot.chart.setSize({ width: box.clientWidth, height: 130 });
  }).observe(box);
}

function makePlots() {
  $("plots").replaceChildren();
  plots = kPlots;
  plots.forEach(makePlot);
}
// uPlot takes its colours once.
onColors(() => plots.length > 0 && makePlots());

function addPoint(time, rows) {
  times.push(time);
  if (times.length > kHistory) times.shift();
  plots.forEach((plot, i) => {
    plot.data.forEach((values, s) => {
      values.push(rows[i][s]);
      if (values.length > kHistory) values.shift();
    });
    plot.chart.setData([times, ...plot.data]);
    // What the pointer is on, or the newest.
    if (plot.chart.cursor.left < 0) plot.chart.setLegend({ idx: times.length - 1 });
  });
}

// ---- numbers ----

// The mean of what was added to a histogram since the last look; null: nothing was.
function meanSince(before, now) {
  const count = now.count - before.count;
  return count > 0 ? (now.sum_ms - before.sum_ms) / count : null;
}

const quantiles = ({ count, p50_ms, p99_ms }) => (count > 0 ? [p50_ms, p99_ms] : [null, null]);

// In one unit, that of the larger.
function middleAndWorst({ count, p50_ms, p99_ms }) {
  if (count === 0) return "–";
  const middle = p99_ms < 1000 ? p50_ms.toFixed(0) : (p50_ms / 1000).toFixed(1);
  return `${middle} / ${ms(p99_ms)}`;
}

function fillNumbers(decodedPerSecond) {
  const { times: all } = state;
  const read = state.tokens_prompt;
  const rows = [
    ["Running", number(state.running)],
    ["Waiting", number(state.waiting)],
    ["Documents in work", number(state.jobs_running + state.jobs_waiting)],
    ["Decoding", `${number(Math.round(decodedPerSecond))} tokens/s`],
    ["Decode step", middleAndWorst(all.decode_step)],
    ["First token", middleAndWorst(all.first_token)],
    ["Answers", number(state.requests_finished)],
    ["Prompts from cache", read ? percent(state.tokens_cached / read, 0) : "–"],
    ["Preemptions", number(state.preemptions)],
  ];
  const list = $("numbers");
  if (list.children.length === 0) {
    list.append(...rows.map(([name]) => el("div", {}, el("dt", { textContent: name }), el("dd"))));
  }
  rows.forEach(([, value], i) => setText(list.children[i].lastChild, value));
  setText($("uptime"), `up ${uptime(state.uptime_s)}; p50 / p99 since then`);
}

function uptime(s) {
  const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return h > 0 ? `${h} h ${m} min` : m > 0 ? `${m} min ${s % 60} s` : `${s} s`;
}

function take(now, before, seconds) {
  state = now;
  // After a restart the counters begin at 0 again.
  const same = before && now.uptime_s >= before.uptime_s;
  const rate = (name) => (same ? Math.max(0, now[name] - before[name]) / seconds : 0);
  const mean = (name) => (same ? meanSince(before.times[name], now.times[name]) : null);
  fillPool();
  fillNumbers(rate("tokens_decoded"));
  addPoint(Date.now() / 1000, [
    ["tokens_decoded", "tokens_prefilled", "tokens_documents"].map(rate),
    [now.running, now.waiting, now.jobs_running + now.jobs_waiting],
    [mean("decode_step"), ...quantiles(now.times.decode_step)],
    [mean("first_token"), ...quantiles(now.times.first_token)],
  ]);
}

/// Asks each second, or less often if that is too much, as long as the page is seen. Throws what
/// `getJson` throws.
export async function poll(signal) {
  if (plots.length === 0) makePlots();
  let pause_ms = 1000;
  let before = null;
  for (let asked = 0; !signal.aborted; ) {
    if (!document.hidden) {
      try {
        const now = await getJson("/state", { signal });
        const time = performance.now();
        take(now, before, (time - asked) / 1000);
        before = now;
        asked = time;
      } catch (error) {
        // Of a tenant's few requests, most are for questions.
        if (error.status !== 429) throw error;
        pause_ms = Math.max(2 * pause_ms, 1000 * error.retryAfter_s);
      }
    }
    await sleep(pause_ms);
  }
}
