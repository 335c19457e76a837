// The page: connects, and stays connected.
import { ApiError, apiKey, getJson, setApiKey, sleep } from "/page/api.js";
import { follow, forgetDocuments, onDocuments } from "/page/documents.js";
import { showKept } from "/page/kept.js";
import { poll } from "/page/live.js";
import { fillPlayground } from "/page/playground.js";
import { $, askUser, counted, number, report, setText } from "/page/ui.js";

const kRetry_ms = 2000;

onDocuments(showKept);
onDocuments(fillPlayground);

function tell(state, words) {
  $("status").dataset.state = state;
  setText($("status").querySelector(".words"), words);
}

let session = new AbortController();

async function askKey(text) {
  const key = await askUser({
    title: "API key", label: "Key", type: "password", action: "Use it", text, value: apiKey(),
  });
  if (key === null) return false;
  if (key !== apiKey()) forgetDocuments(); // they may be another tenant's
  setApiKey(key.trim());
  return true;
}
$("key").onclick = async () => {
  if (await askKey("It stays in this tab until it is closed.")) session.abort();
};

async function connect(signal) {
  const props = await getJson("/props", { signal });
  setText($("server"),
    `${props.model} · ${counted(props.threads, "thread")} · context ${number(props.n_ctx)}`);
  tell("live", "live");
  // Whichever ends, ends both.
  const both = new AbortController();
  const stop = () => both.abort();
  signal.addEventListener("abort", stop);
  try {
    await Promise.race([follow(both.signal), poll(both.signal)]);
  } finally {
    both.abort();
    signal.removeEventListener("abort", stop);
  }
}

const aborted = (signal) =>
  new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));

// What to wait for, in ms, before it is tried again.
async function pauseAfter(error) {
  if (error?.name === "AbortError" || error === undefined) return 0;
  if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
    tell("off", "no access");
    // Without a key, nothing happens until the button is used.
    if (!(await askKey(error.message))) await aborted(session.signal);
    return 0;
  }
  const { loaded_layers: loaded, layers } = error.fields ?? {};
  tell("off", layers ? `loading the model: ${loaded} of ${layers} layers` : error.message);
  if (!(error instanceof ApiError)) report(error);
  return Math.max(kRetry_ms, 1000 * (error.retryAfter_s ?? 0));
}

for (;;) {
  session = new AbortController();
  let failure;
  try {
    await connect(session.signal);
    tell("off", "connecting again");
    await sleep(500);
  } catch (error) {
    failure = error;
  }
  await sleep(await pauseAfter(failure));
}
