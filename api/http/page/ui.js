// Small things that the parts of the page share.

export const $ = (id) => document.getElementById(id);

/// An element; texts among `children` are texts, never HTML.
export function el(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/// Without a change nothing is touched: a screen reader would read it once more.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const number = (n) => n.toLocaleString("en");
export const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit + 1 < units.length; ++unit) n /= 1024;
  return `${n.toFixed(unit > 0 && n < 100 ? 1 : 0)} ${units[unit]}`;
}

export function ms(n) {
  if (n >= 1000) return `${(n / 1000).toFixed(1)} s`;
  return `${n.toFixed(n < 10 ? 1 : 0)} ms`;
}

export const ratioName = (ratio) => (ratio >= 1 ? "exact" : String(ratio));

/// Says what went wrong, until it is closed.
export function report(error) {
  if (error?.name === "AbortError") return;
  const text = error instanceof Error ? error.message : String(error);
  for (const old of $("notes").children) {
    if (old.firstChild.textContent === text) old.remove();
  }
  const note = el("div", { className: "note" }, el("span", { textContent: text }));
  note.append(el("button", { type: "button", textContent: "Close", onclick: () => note.remove() }));
  $("notes").append(note);
}

/// For handlers of events: what they throw is told.
export const guarded = (work) => async (event) => {
  try {
    await work(event);
  } catch (error) {
    report(error);
  }
};

/// Asks in a dialog. Returns the text ("" without `label`), or null for Cancel and Escape.
export function askUser({ title, text = "", label, value = "", type = "text", action = "OK" }) {
  const dialog = $("dialog");
  if (dialog.open) return Promise.resolve(null);
  const input = $("dialog-input");
  setText($("dialog-title"), title);
  setText($("dialog-text"), text);
  setText($("dialog-ok"), action);
  $("dialog-label").hidden = label === undefined;
  setText($("dialog-label").firstElementChild, label ?? "");
  Object.assign(input, { value, type, maxLength: 512, autocomplete: "off" });
  dialog.returnValue = "";
  dialog.showModal();
  (label === undefined ? $("dialog-ok") : input).focus();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "ok" ? input.value : null);
  });
}

/// A custom property of the style sheet, as it is in this mode.
export const color = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// A canvas as sharp as the screen, drawn again when its width or the colours change.
/// `draw(context, width)` may ask for the height first, by `height(width)`.
export function canvasOf(canvas, height, draw) {
  const redraw = () => {
    const width = canvas.parentElement.clientWidth ? canvas.clientWidth : 0;
    if (width === 0) return;
    const scale = window.devicePixelRatio || 1;
    const h = height(width);
    canvas.style.height = `${h}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(h * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    draw(context, width, h);
  };
  let last = 0;
  new ResizeObserver(() => {
    if (canvas.clientWidth !== last) redraw();
    last = canvas.clientWidth;
  }).observe(canvas);
  onColors(redraw);
  return redraw;
}

export const onColors = (work) =>
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", work);
