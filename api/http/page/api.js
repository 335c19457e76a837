// Calls of the server: the API key goes along, and errors come back in words.

const kKey = "pagezip.key";
export const apiKey = () => sessionStorage.getItem(kKey) ?? "";
export const setApiKey = (key) => sessionStorage.setItem(kKey, key);

export class ApiError extends Error {
  constructor(message, status = 0, headers = new Headers(), fields = {}) {
    super(message);
    this.status = status; // 0: there was no answer
    this.fields = fields;
    this.retryAfter_s = Number(headers.get("Retry-After")) || 0;
  }
}

// "the key is wrong" -> "The key is wrong."
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

export function errorOf(object) {
  return new ApiError(sentence(object.message ?? "the server failed"), 500, undefined, object);
}

/// The response, if it is a good one. `body` is sent as JSON, a Blob as it is. Throws ApiError, or what an aborted `signal` throws.
export async function call(method, path, { body, headers = {}, signal } = {}) {
  const all = { ...headers };
  if (apiKey()) all.Authorization = `Bearer ${apiKey()}`;
  const isFile = body instanceof Blob;
  if (body !== undefined) {
    all["Content-Type"] = isFile ? "application/octet-stream" : "application/json";
  }
  let response;
  try {
    response = await fetch(path, {
      method, headers: all, signal, body: isFile ? body : body && JSON.stringify(body),
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The server can't be reached.");
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error ?? {};
  throw new ApiError(sentence(error.message ?? `the server answered ${response.status}`),
    response.status, response.headers, error);
}

export const getJson = async (path, options) => (await call("GET", path, options)).json();
export const sendJson = async (method, path, body) => (await call(method, path, { body })).json();

export const documentPath = (id) => `/v1/documents/${encodeURIComponent(id)}`;

/// Server-sent events. EventSource can't send a key, so they are read from a response.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
        const data = rest.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
        if (data.length > 0) yield data.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
