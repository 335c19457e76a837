"""The page at / in Chromium, on a real model.

PAGEZIP_SCREENSHOTS names a folder for what it looks like: light, dark and narrow.
"""
import json
import os
import re

import pytest
from playwright.sync_api import expect, sync_playwright

from conftest import SMOLLM2, durable

KEY = "sk-of-the-page"
SLOW_KEY = "sk-of-few-requests"
AUTH = {"Authorization": f"Bearer {KEY}"}
HANDBOOK = os.path.join(os.path.dirname(__file__), "../../demo/handbook.md")
QUESTION = "Who is the director?"
SLOW_MS = 120_000  # what a busy machine may take for a document or an answer
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    model = os.path.join(os.environ["PAGEZIP_MODELS"], SMOLLM2)
    folder = tmp_path_factory.mktemp("server")
    (folder / "documents").mkdir()
    (folder / "keys").write_text(f"usual {KEY}\nslow {SLOW_KEY} per-minute=6\n")
    return start_server(model, "--model-name", "smollm2", "--pool-mib", "256", "--api-key-file",
                        str(folder / "keys"), "--documents", str(folder / "documents"))


@pytest.fixture(scope="module")
def text():
    with open(HANDBOOK, encoding="utf-8") as file:
        return file.read()[:1600]


@pytest.fixture(scope="module")
def document(server, text):
    """Made through the API; it has the exact version, and 0.3."""
    reply = server.request("POST", "/v1/documents", {
        "content": text, "name": "handbook", "compression": {"ratios": [1, 0.3]},
    }, {**AUTH, "Prefer": "wait=120"}, timeout=180)
    assert reply.json["status"] == "ready", reply.body
    return reply.json


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("PAGEZIP_CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


class Visit:
    """A page that is open, and what went wrong on it."""

    def __init__(self, browser, server, key=KEY, **options):
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.context = browser.new_context(**options)
        if key is not None:
            self.context.add_init_script(f"sessionStorage['pagezip.key'] ??= {json.dumps(key)}")
        self.page = self.context.new_page()
        self.page.set_default_timeout(SLOW_MS)
        self.wrong = []
        self.page.on("console", lambda message: message.type in ("error", "warning")
                     and self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        origin = f"http://127.0.0.1:{server.port}/"
        self.page.on("request", lambda request: request.url.startswith(origin)
                     or self.wrong.append(f"a request to {request.url}"))
        self.page.goto(origin)

    def row(self, name):
        button = self.page.get_by_role("button", name=name, exact=True)
        return self.page.locator("#list > li", has=button)


@pytest.fixture
def visit(browser, server):
    """A function that opens the page. Nothing may be wrong on it in the end."""
    visits = []

    def open_page(**options):
        visits.append(Visit(browser, server, **options))
        return visits[-1]

    yield open_page
    for each in visits:
        each.context.close()
        assert each.wrong == []
    assert server.process.poll() is None, server.text()


def texts_kept(page):
    return page.locator("#reader-text mark").all_text_contents()


def focused(page):
    return page.evaluate("document.activeElement.id")


# ---- files ----

def test_files_are_public_and_strict(server):
    page = server.request("GET", "/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    links = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    imports = ["/page/" + name for name in ("api.js", "ui.js", "documents.js", "kept.js", "live.js",
                                            "playground.js", "uplot/LICENSE")]
    for path in ["/", *links, *imports]:
        reply = server.request("GET", path)
        assert reply.status == 200, path
        assert reply.body, path
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        same = server.request("GET", path, headers={"If-None-Match": reply.headers["ETag"]})
        assert (same.status, same.body) == (304, b"")
        assert server.request("HEAD", path).headers["Content-Length"] == str(len(reply.body))
    assert server.request("POST", "/").status == 405
    assert server.request("GET", "/page/none.js").status == 401  # like any path that isn't there


# ---- keys ----

def test_asks_for_the_key(visit, document):
    visitor = visit(key=None)
    page = visitor.page
    expect(page.locator("#dialog-text")).to_have_text("An API key is needed.")
    expect(page.locator("#dialog-input")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#dialog-text")).to_have_text("The API key is not valid.")
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("no access")
    page.get_by_role("button", name="API key").click()
    page.locator("#dialog-input").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("live")
    expect(visitor.row("handbook")).to_be_visible()
    page.reload()
    expect(visitor.row("handbook")).to_be_visible()  # the tab remembers
    # Chromium itself tells of refused requests; the page adds nothing.
    assert all("401 (Unauthorized)" in text for text in visitor.wrong)
    visitor.wrong.clear()


# ---- documents ----

def test_a_documents_life(visit, server, text, document):
    visitor = visit()
    page = visitor.page
    page.get_by_text("New document").click()
    page.get_by_role("textbox", name="Name").fill("<img src=x> & more")
    page.get_by_label("Text", exact=True).fill("A note <b>on</b> it. " + text[:1000])
    page.get_by_label("0.1").check()
    page.get_by_role("button", name="Create").click()
    row = visitor.row("<img src=x> & more")
    expect(row.locator(".state")).to_have_text(re.compile("queued|reading|scoring|packing"))
    expect(row.locator("progress")).to_be_visible()
    expect(row.locator(".state")).to_have_text("ready", timeout=SLOW_MS)
    expect(row.locator("progress")).to_be_hidden()
    expect(row.locator(".versions b")).to_have_text(["exact", "0.3", "0.1"])
    expect(row.locator(".facts")).to_contain_text("smaller")
    made = server.request("GET", "/v1/documents?limit=1", headers=AUTH).json["data"][0]
    assert made["name"] == "<img src=x> & more"

    row.get_by_role("button", name="Pin").click()
    expect(row.locator(".facts")).to_contain_text("pinned")
    row.get_by_role("button", name="Rename").click()
    page.locator("#dialog-input").fill("second")
    page.keyboard.press("Enter")
    row = visitor.row("second")
    expect(row).to_be_visible()
    now = server.request("GET", f"/v1/documents/{made['id']}", headers=AUTH).json
    assert (now["name"], now["pinned"]) == ("second", True)

    # What others do is seen too.
    server.request("PATCH", f"/v1/documents/{made['id']}", {"name": "third"}, AUTH)
    row = visitor.row("third")
    expect(row).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    page.keyboard.press("Escape")
    expect(row).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    page.locator("#dialog-ok").click()
    expect(row).to_have_count(0)
    assert server.request("GET", f"/v1/documents/{made['id']}", headers=AUTH).status == 404
    expect(visitor.row("handbook")).to_be_visible()


def test_import(visit, server, document, tmp_path):
    file = tmp_path / "a.pgz"
    path = f"/v1/documents/{document['id']}"
    durable(server, path, AUTH)
    file.write_bytes(server.request("GET", path + "/content?ratio=0.3", headers=AUTH).body)
    visitor = visit()
    page = visitor.page
    page.get_by_text("New document").click()
    page.get_by_label("Or a file").set_input_files(str(file))
    page.get_by_role("textbox", name="Name", exact=True).fill("brought")
    page.get_by_role("button", name="Create", exact=True).click()
    row = visitor.row("brought")
    expect(row.locator(".state")).to_have_text("ready")
    expect(row.locator(".versions")).to_contain_text("disk")
    listed = server.request("GET", "/v1/documents", headers=AUTH).json["data"]
    [there] = [each for each in listed if each["name"] == "brought"]
    assert (there["imported"], [v["ratio"] for v in there["versions"]]) == (True, [0.3])
    file.write_bytes(file.read_bytes()[:5000])
    page.get_by_text("New document").click()
    page.get_by_label("Or a file").set_input_files(str(file))
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#notes")).to_contain_text("truncated")
    assert all("422" in text for text in visitor.wrong), visitor.wrong
    visitor.wrong.clear()
    server.request("DELETE", f"/v1/documents/{there['id']}", headers=AUTH)


def test_cancel(visit, server, text, document):
    visitor = visit()
    visitor.page.get_by_text("New document").click()
    visitor.page.get_by_label("Or a file").set_input_files(HANDBOOK)
    visitor.page.get_by_role("button", name="Create").click()
    row = visitor.row("handbook.md")
    row.get_by_role("button", name="Cancel").click()
    expect(row.locator(".state")).to_have_text("cancelled")
    row.get_by_role("button", name="Delete").click()
    visitor.page.locator("#dialog-ok").click()
    expect(row).to_have_count(0)


def test_errors_are_told_in_words(visit, document, tmp_path):
    visitor = visit()
    page = visitor.page
    page.get_by_text("New document").click()
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#notes")).to_contain_text("Paste a text, or choose a file.")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    page.get_by_label("Or a file").set_input_files(str(tmp_path / "binary.txt"))
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#notes")).to_contain_text("binary.txt is not text in UTF-8.")
    for _ in range(2):
        page.locator("#notes button").first.click()
    expect(page.locator(".note")).to_have_count(0)
    visitor.row("handbook").get_by_role("button", name="Rename").click()
    page.locator("#dialog-input").fill("x" * 300)
    page.keyboard.press("Enter")
    expect(page.locator("#notes")).to_contain_text(re.compile("name", re.IGNORECASE))
    assert all("400 (Bad Request)" in text for text in visitor.wrong)
    visitor.wrong.clear()


# ---- what is kept ----

def test_heatmap_and_text(visit, server, document):
    visitor = visit()
    page = visitor.page
    heatmap = page.locator("#heatmap")
    expect(heatmap).to_be_visible()
    expect(page.locator("#kept-version")).to_have_value("0.3")
    path = f"/v1/documents/{document['id']}/retention?ratio=0.3"
    kept = server.request("GET", path, headers=AUTH).json["kept"]
    layers, heads = len(kept), len(kept[0])
    box = heatmap.bounding_box()
    width = (box["width"] - 34) / layers
    height = (box["height"] - 18) / heads
    heatmap.click(position={"x": 34 + 14.5 * width, "y": 1.5 * height})
    expect(page.locator("#cell")).to_contain_text(f"Layer 14, KV head 1 keeps {kept[14][1]} of")
    expect(page.locator("#reader")).to_be_visible()

    def check(layer, head):
        title = f"Layer {layer}, KV head {head}: {kept[layer][head]} of"
        expect(page.locator("#reader-title")).to_contain_text(title)
        truth = server.request("GET", f"{path}&layer={layer}&head={head}", headers=AUTH).json
        assert "".join(texts_kept(page)) == "".join(truth["texts"][i] for i in truth["positions"])
        assert page.locator("#reader-text").text_content() == "".join(truth["texts"])

    check(14, 1)
    heatmap.focus()
    page.keyboard.press("ArrowRight")
    check(15, 1)
    page.keyboard.press("ArrowDown")
    check(15, 2)
    page.keyboard.press("Home")
    check(0, 2)
    page.keyboard.press("Escape")
    expect(page.locator("#reader")).to_be_hidden()
    assert focused(page) == "heatmap"
    page.keyboard.press("ArrowUp")
    expect(page.locator("#cell")).to_contain_text("Layer 0, KV head 1")
    page.keyboard.press("Enter")
    check(0, 1)
    page.locator("#kept-version").select_option("1")
    expect(page.locator("#kept-document")).to_contain_text("every head keeps 100.0 %")
    expect(page.locator("#reader-text span")).to_have_count(0)


# ---- asking ----

def test_playground(visit, server, document):
    visitor = visit()
    page = visitor.page
    columns = page.locator("#answers article")
    expect(columns.locator("h3")).to_have_text(["exact", "50 % kept", "30 % kept", "10 % kept"])
    page.locator("#ask select").select_option(label="handbook")
    page.get_by_label("Tokens at most").fill("24")
    question = page.get_by_label("Question")
    question.fill(QUESTION)
    question.press("Enter")
    for column in (0, 2):
        note = columns.nth(column).locator(".muted")
        expect(note).to_contain_text("first after", timeout=SLOW_MS)
    expect(columns.nth(2).locator(".verdict")).to_have_text(re.compile("same as exact|differs"))

    def answer(ratio):
        reply = server.request("POST", "/v1/chat/completions", {
            "temperature": 0, "max_tokens": 24, "keep_ratio": ratio,
            "messages": [{"role": "user", "content": [
                {"type": "file", "file": {"file_id": document["id"]}},
                {"type": "text", "text": QUESTION}]}]}, AUTH, timeout=120)
        return reply.json["choices"][0]["message"]["content"]

    expect(columns.nth(0).locator(".answer")).to_have_text(answer(1))
    expect(columns.nth(2).locator(".answer")).to_have_text(answer(0.3))

    columns.nth(1).get_by_role("button").click()
    expect(visitor.row("handbook").locator(".versions b")).to_have_text(["exact", "0.5", "0.3"])
    expect(columns.nth(1).get_by_role("button")).to_be_hidden()
    page.get_by_role("button", name="Ask").click()
    expect(columns.nth(1).locator(".muted")).to_contain_text("first after", timeout=SLOW_MS)
    expect(columns.nth(1).locator(".answer")).to_have_text(answer(0.5))
    expect(page.locator("#numbers")).not_to_contain_text("NaN")


def test_stop(visit, document):
    page = visit().page
    page.locator("#ask select").select_option(label="handbook")
    page.get_by_label("Tokens at most").fill("2000")
    page.get_by_label("Question").fill("Count from 1 to 1000.")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#answers .answer").first).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#answers .muted").first).to_have_text("stopped")
    expect(page.get_by_role("button", name="Ask")).to_be_enabled()


# ---- what it looks like ----

def test_light_dark_and_narrow(visit, document):
    visitor = visit(color_scheme="light")
    page = visitor.page
    expect(page.locator("#plots .uplot")).to_have_count(4)
    page.locator("#ask select").select_option(label="handbook")
    page.get_by_label("Question").fill("When was the observatory founded?")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=SLOW_MS)
    page.locator("#heatmap").click(position={"x": 300, "y": 20})
    expect(page.locator("#reader")).to_be_visible()

    def look(name):
        page.wait_for_timeout(1500)  # some points in the plots
        if folder := os.environ.get("PAGEZIP_SCREENSHOTS"):
            page.screenshot(path=os.path.join(folder, f"{name}.png"), full_page=True)
        colors = page.evaluate("""() => {
          const of = (element) => getComputedStyle(element).backgroundColor;
          const canvas = document.getElementById("heatmap");
          return [of(document.body), of(document.querySelector("section")), canvas.toDataURL()];
        }""")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name}: {wide} px too wide"
        return colors

    light = look("light")
    page.emulate_media(color_scheme="dark")
    dark = look("dark")
    assert all(a != b for a, b in zip(light, dark))
    page.set_viewport_size({"width": 360, "height": 740})
    look("narrow-dark")
    page.emulate_media(color_scheme="light")
    assert look("narrow")[:2] == light[:2]


def test_everything_can_be_reached_by_keyboard(visit, document):
    visitor = visit()
    page = visitor.page
    expect(page.locator("#heatmap")).to_be_visible()
    expect(page.locator("#answers button").last).to_be_visible()
    wanted = set(page.evaluate("""() => [...document.querySelectorAll(
        "button, input, select, textarea, summary, canvas[tabindex]")]
        .filter((e) => e.checkVisibility() && !e.disabled)
        .map((e, i) => (e.dataset.n = String(i)))"""))
    seen, unseen_focus = set(), []
    for _ in range(2 * len(wanted)):
        page.keyboard.press("Tab")
        number, outline = page.evaluate("""() => [document.activeElement.dataset.n,
            getComputedStyle(document.activeElement).outlineStyle]""")
        seen.add(number)
        if number is not None and outline == "none":
            unseen_focus.append(number)
    assert wanted <= seen
    assert unseen_focus == []
    # Everything that takes input has a name.
    unnamed = page.evaluate("""() => [...document.querySelectorAll(
        "button, input, select, textarea")]
        .filter((e) => e.checkVisibility() && !(e.labels?.length || e.textContent || e.ariaLabel))
        .map((e) => e.outerHTML)""")
    assert unnamed == []


def test_lives_with_few_requests(visit, server):
    visitor = visit(key=SLOW_KEY)
    with visitor.page.expect_response(lambda response: response.status == 429):
        pass
    with visitor.page.expect_response(lambda response: response.url.endswith("/state")
                                      and response.ok):
        expect(visitor.page.locator("#status")).to_have_text("live")
    assert all("429 (Too Many Requests)" in text for text in visitor.wrong)
    visitor.wrong.clear()


def test_comes_back(visit, document):
    visitor = visit()
    status = visitor.page.locator("#status")
    expect(status).to_have_text("live")
    visitor.context.set_offline(True)
    expect(status).to_have_text("The server can't be reached.")
    visitor.context.set_offline(False)
    expect(status).to_have_text("live")
    expect(visitor.row("handbook")).to_be_visible()
    assert all("ERR_INTERNET_DISCONNECTED" in text for text in visitor.wrong)
    visitor.wrong.clear()
