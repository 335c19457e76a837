"""Documents as a resource, tenants and their keys, and the server's life."""
import base64
import json
import os
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from urllib.parse import quote

import pytest

from conftest import durable

TEXT = "a b c d e f g h " * 20


def make(server, content=TEXT, headers=None, wait=60, **fields):
    fields.setdefault("compression", {"ratio": 0.5})
    return server.request("POST", "/v1/documents", {"content": content, **fields},
                          {"Prefer": f"wait={wait}", **(headers or {})})


def ask(server, document, headers=None, **fields):
    return server.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": [
            {"type": "file", "file": {"file_id": document}}, {"type": "text", "text": "a?"}]}],
        "max_tokens": 4, "temperature": 0, **fields}, headers)


def test_create_get_list_change_delete(tiny):
    reply = make(tiny, name="first", expires_after={"anchor": "last_active_at", "seconds": 600})
    assert reply.status == 201, reply.body
    document = reply.json
    path = reply.headers["Location"]
    assert path == "/v1/documents/" + document["id"]
    assert document["status"] == "ready"
    assert document["usage"]["kv_bytes"] < document["usage"]["kv_bytes_full"]
    got = durable(tiny, path)
    assert all(got.json[key] == document[key]
               for key in document.keys() - {"versions", "residency", "last_active_at"})
    assert tiny.request("GET", path, headers={"If-None-Match": got.headers["ETag"]}).status == 304
    listed = tiny.request("GET", "/v1/documents").json
    assert listed["object"] == "list" and document["id"] in [d["id"] for d in listed["data"]]
    stale = tiny.request("PATCH", path, {"name": "x"}, {"If-Match": '"77-0"'})
    assert stale.status == 412
    changed = tiny.request("PATCH", path, {"name": "second", "pinned": True},
                           {"If-Match": got.headers["ETag"]})
    assert changed.status == 200 and changed.json["name"] == "second" and changed.json["pinned"]
    assert changed.json["revision"] > document["revision"]
    lower = tiny.request("PATCH", path, {"compression": {"ratio": 0.2}})
    assert lower.status == 200
    assert [v["ratio"] for v in lower.json["versions"]] == [0.2, 0.5]
    assert tiny.request("DELETE", path).json == {
        "id": document["id"], "object": "document.deleted", "deleted": True}
    assert tiny.request("GET", path).status == 404
    assert tiny.request("DELETE", path).status == 404


def test_the_same_again_is_the_same(tiny):
    first = make(tiny, "same " + TEXT)
    again = make(tiny, "same " + TEXT)
    assert (first.status, again.status) == (201, 200)
    assert first.json["id"] == again.json["id"]
    more = make(tiny, "same " + TEXT, compression={"ratio": 0.25})
    assert more.json["id"] == first.json["id"]
    assert [v["ratio"] for v in more.json["versions"]] == [0.25, 0.5]
    other = make(tiny, "same " + TEXT, dedupe=False)
    assert other.json["id"] != first.json["id"]


def test_a_request_that_is_sent_again_makes_nothing_twice(tiny):
    key = {"Idempotency-Key": "key-1"}
    body = {"content": "once " + TEXT, "dedupe": False, "compression": {"ratio": 0.5}}

    def post(headers, **changes):
        return tiny.request("POST", "/v1/documents", {**body, **changes},
                            {"Prefer": "wait=60", **headers})

    first = post(key)
    assert first.status == 201 and "Idempotent-Replayed" not in first.headers
    again = post(key)
    assert (again.status, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert again.json["id"] == first.json["id"]
    assert again.headers["Location"] == first.headers["Location"]
    other = post(key, name="another")
    assert (other.status, other.json["error"]["code"]) == (409, "idempotency_key_reused")
    for headers in ({"Idempotency-Key": "key-2"}, {}):
        assert post(headers).json["id"] != first.json["id"]
    for bad in ("", "two words", "x" * 256, "\u00e9"):
        assert post({"Idempotency-Key": bad}).status == 400
    assert post({"Idempotency-Key": "x" * 255}).status == 201
    # A request that was refused leaves its key as it was.
    assert post({"Idempotency-Key": "key-3"}, content="").status == 400
    assert post({"Idempotency-Key": "key-3"}).status == 201
    # A stream is a stream again.
    for replayed in (None, "true"):
        stream = post({"Idempotency-Key": "key-4"}, stream=True)
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Idempotent-Replayed"] == replayed
        assert b"event: document.ready" in stream.body
    # What was made may be gone since; it isn't made again.
    tiny.request("DELETE", first.headers["Location"])
    assert post(key).status == 404


def test_of_two_that_come_at_once_one_makes_it(tiny):
    body = {"content": "race " + TEXT * 10, "dedupe": False}
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(tiny.request(
        "POST", "/v1/documents", body, {"Idempotency-Key": "race"}))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [reply for reply in replies if reply.status in (201, 202)]
    assert len(made) == 1, [reply.body for reply in replies]
    for reply in replies:
        assert reply.status in (200, made[0].status, 409)
        if reply.status == 409:
            assert reply.json["error"]["code"] == "idempotency_key_in_use"
        else:
            assert reply.json["id"] == made[0].json["id"]
    tiny.request("POST", made[0].headers["Location"] + "/cancel")
    tiny.request("DELETE", made[0].headers["Location"])


def test_list_goes_on_from_page_to_page(tiny):
    ids = {make(tiny, f"page {i} {TEXT}").json["id"] for i in range(5)}
    seen, after = [], ""
    while True:
        page = tiny.request("GET", f"/v1/documents?limit=2&order=asc{after}").json
        seen += [d["id"] for d in page["data"]]
        if not page["has_more"]:
            break
        after = "&after=" + page["last_id"]
    assert len(seen) == len(set(seen)) and ids <= set(seen)


def test_metadata(tiny):
    pairs = {"source": "web", "größe": "ü" * 512, "": ""}
    refused = make(tiny, "metadata " + TEXT, metadata=pairs)
    assert refused.status == 400 and refused.json["error"]["param"] == "metadata"
    del pairs[""]
    made = make(tiny, "metadata " + TEXT, metadata=pairs).json
    assert made["metadata"] == pairs
    path = f"/v1/documents/{made['id']}"

    def found(**asked):
        query = "&".join(f"metadata[{quote(k)}]={quote(v)}" for k, v in asked.items())
        return [d["id"] for d in tiny.request("GET", f"/v1/documents?{query}").json["data"]]

    assert found(source="web") == [made["id"]]
    assert found(source="web", **{"größe": "ü" * 512}) == [made["id"]]
    assert found(source="book") == found(other="web") == []
    # What is not said stays, and what is said replaces all.
    assert tiny.request("PATCH", path, {"name": "n"}).json["metadata"] == pairs
    changed = tiny.request("PATCH", path, {"metadata": {"source": "book"}})
    assert changed.json["metadata"] == {"source": "book"}
    assert changed.json["revision"] > made["revision"]
    assert tiny.request("PATCH", path, {"metadata": {}}).json["metadata"] == {}
    for bad in ({"a": 1}, {"k" * 65: ""}, {"k": "v" * 513}, {str(i): "" for i in range(17)},
                {str(i): "\N{GRINNING FACE}" * 512 for i in range(8)}, "text"):
        assert tiny.request("PATCH", path, {"metadata": bad}).status == 400


def test_created_as_a_stream(tiny):
    reply = tiny.request("POST", "/v1/documents", {
        "content": "stream " + TEXT * 5, "stream": True, "compression": {"ratio": 0.3}})
    events = [e.split("\n") for e in reply.body.decode().strip().split("\n\n")]
    names = [e[1].removeprefix("event: ") for e in events]
    assert names[-1] == "document.ready"
    assert json.loads(events[-1][2].removeprefix("data: "))["status"] == "ready"
    assert all(e[0].startswith("id: ") for e in events)


def test_events_resume(tiny):
    document = make(tiny, "events " + TEXT).json["id"]
    durable(tiny, f"/v1/documents/{document}")

    def first_event(headers):
        with urllib.request.urlopen(urllib.request.Request(
                f"http://127.0.0.1:{tiny.port}/v1/documents/{document}/events", headers=headers),
                timeout=3) as stream:
            try:
                return stream.readline().decode().strip()
            except TimeoutError:
                return ""

    event = first_event({})
    assert event.startswith("id: ")
    assert first_event({"Last-Event-ID": event[4:]}) == ""
    head = tiny.request("HEAD", f"/v1/documents/{document}/events", timeout=5)
    assert head.headers["Content-Type"] == "text/event-stream"


def test_multipart_upload(tiny):
    body = ("--xx\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n"
            "--xx\r\nContent-Disposition: form-data; name=\"ratio\"\r\n\r\n0.4\r\n"
            "--xx\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{\"a\": \"b\"}\r\n"
            "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n"
            "Content-Type: text/plain\r\n\r\n" + "upload " + TEXT + "\r\n--xx--\r\n")
    reply = tiny.request("POST", "/v1/documents", body, {
        "Content-Type": "multipart/form-data; boundary=xx", "Prefer": "wait=60"})
    assert reply.status == 201, reply.body
    assert (reply.json["name"], reply.json["metadata"]) == ("a.txt", {"a": "b"})
    assert [v["ratio"] for v in reply.json["versions"]] == [0.4]


def test_asking_a_document(tiny):
    document = make(tiny, "ask " + TEXT).json["id"]
    reply = ask(tiny, document)
    assert reply.status == 200
    assert reply.json["document"] == {"id": document, "keep_ratio": 0.5, "tier": "memory"}
    assert reply.headers["X-KV-Cache"] == f"document; id={document}; ratio=0.5; tier=memory"
    usage = reply.json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens_details"][
        "document_tokens"] > 0
    query = tiny.request("POST", f"/v1/documents/{document}/query",
                         {"query": "a?", "max_tokens": 4, "temperature": 0})
    assert query.json["choices"][0]["message"] == reply.json["choices"][0]["message"]
    hits = tiny.request("GET", f"/v1/documents/{document}").json["usage"]["hits"]
    assert hits == 2


def test_another_system_message_is_refused(tiny):
    document = make(tiny, "system " + TEXT, system="a b").json["id"]
    messages = [{"role": "user", "content": [{"type": "file", "file": {"file_id": document}},
                                             {"type": "text", "text": "a?"}]}]
    chat = "/v1/chat/completions"
    good = [{"role": "system", "content": "a b"}] + messages
    bad = [{"role": "system", "content": "c d"}] + messages
    assert tiny.request("POST", chat, {"messages": good, "max_tokens": 2}).status == 200
    assert tiny.request("POST", chat, {"messages": messages, "max_tokens": 2}).status == 200
    reply = tiny.request("POST", chat, {"messages": bad, "max_tokens": 2})
    assert (reply.status, reply.json["error"]["code"]) == (400, "document_not_prefix")


def test_plain_prompts_never_meet_compressed_pages(tiny):
    text = "plain " + TEXT
    document = make(tiny, text, compression={"ratio": 0.1}).json["id"]
    plain = tiny.request("POST", "/v1/completions", {"prompt": text + "a", "max_tokens": 2})
    assert "document" not in plain.json and plain.headers["X-KV-Cache"] != "document"
    assert tiny.request("GET", f"/v1/documents/{document}").json["usage"]["hits"] == 0


def test_retention(tiny):
    document = make(tiny, "kept " + TEXT, compression={"ratio": 0.5}).json["id"]
    path = f"/v1/documents/{document}/retention"
    whole = tiny.request("GET", path).json
    kept = sum(sum(row) for row in whole["kept"])
    pairs = whole["layers"] * whole["kv_heads"] * whole["tokens"]
    assert kept == pairs // 2
    assert len(whole["kept"]) == whole["layers"]
    one = tiny.request("GET", path + "?layer=0&head=0").json
    assert len(one["positions"]) == whole["kept"][0][0]
    assert len(one["texts"]) == whole["tokens"]
    assert tiny.request("GET", path + "?layer=99&head=0").status == 400


def test_cancel(tiny):
    reply = make(tiny, "cancel " + TEXT * 5, wait=0)
    assert reply.status == 202 and reply.headers["Retry-After"]
    path = reply.headers["Location"]
    cancelled = tiny.request("POST", path + "/cancel")
    if cancelled.status == 409:  # it was quicker
        assert tiny.request("GET", path).json["status"] == "ready"
    else:
        assert cancelled.json["status"] == "cancelled"
        assert ask(tiny, reply.json["id"]).status == 404
    assert tiny.request("POST", path + "/cancel").status == 409


def test_not_ready_is_a_conflict(tiny):
    reply = make(tiny, "early " + TEXT * 5, wait=0, compression={"ratio": 0.3})
    early = ask(tiny, reply.json["id"], keep_ratio=0.3)
    assert early.status in (200, 409)
    if early.status == 409:
        assert early.headers["x-should-retry"] == "false" and early.headers["Retry-After"]
    tiny.request("DELETE", reply.headers["Location"])


def test_content_is_the_file_and_has_ranges(tiny):
    document = make(tiny, "file " + TEXT).json["id"]
    path = f"/v1/documents/{document}/content"
    durable(tiny, path.removesuffix("/content"))
    whole = tiny.request("GET", path)
    assert whole.status == 200 and whole.body.startswith(b"PAGEZIP")
    assert int(tiny.request("HEAD", path).headers["Content-Length"]) == len(whole.body)
    part = tiny.request("GET", path, headers={"Range": "bytes=10-19"})
    assert (part.status, part.body) == (206, whole.body[10:20])
    tail = tiny.request("GET", path, headers={"Range": "bytes=-5"})
    assert (tail.status, tail.body) == (206, whole.body[-5:])
    beyond = tiny.request("GET", path, headers={"Range": f"bytes={10**12}-"})
    assert beyond.status == 416


def test_restart_finds_documents(start_server, tiny_model, tmp_path):
    flags = ["--pool-mib", "16", "--documents", str(tmp_path)]
    server = start_server(tiny_model, *flags)
    document = make(server, name="lasting").json["id"]
    before = ask(server, document).json["choices"][0]
    map_path = f"/v1/documents/{document}/retention?layer=0&head=0"
    kept = server.request("GET", map_path).json
    assert kept["positions"]
    assert server.stop() == 0
    server = start_server(tiny_model, *flags)
    found = server.request("GET", f"/v1/documents/{document}").json
    assert (found["name"], found["residency"]["tier"]) == ("lasting", "disk")
    assert server.request("GET", map_path).json == kept
    for tier in ("disk", "memory"):
        reply = ask(server, document).json
        assert (reply["choices"][0], reply["document"]["tier"]) == (before, tier)
    metrics = server.request("GET", "/metrics").body.decode()
    assert 'pagezip_rows_total{kind="document"} 0' in metrics  # nothing was computed again


def test_tenants_see_only_their_own(start_server, tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# tenants\nalice key-of-alice groups=legal\nbob key-of-bob groups=legal,hr\n"
                    "carol key-of-carol kv-mib=1 per-minute=8\n")
    server = start_server(tiny_model, "--pool-mib", "64", "--api-key-file", str(keys),
                          "--admin-key", "key-of-the-admin")
    alice, bob, carol = ({"Authorization": f"Bearer key-of-{name}"}
                         for name in ("alice", "bob", "carol"))
    for wrong in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic key-of-alice"}):
        reply = server.request("GET", "/v1/models", headers=wrong)
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert reply.json["error"]["type"] == "authentication_error"
    assert server.request("GET", "/nothing").status == 401
    assert server.request("GET", "/health").status == 200
    assert server.request("GET", "/v1/models", headers={"x-api-key": "key-of-bob"}).status == 200
    assert server.request("GET", "/metrics", headers=alice).status == 403
    admin = {"Authorization": "Bearer key-of-the-admin"}
    assert server.request("GET", "/metrics", headers=admin).status == 200

    own = make(server, "own " + TEXT, alice).json["id"]
    shared = make(server, "shared " + TEXT, alice, group="legal").json["id"]
    assert server.request("GET", f"/v1/documents/{own}", headers=bob).status == 404
    assert ask(server, own, bob).status == 404
    assert server.request("DELETE", f"/v1/documents/{own}", headers=bob).status == 404
    assert ask(server, shared, bob).status == 200
    assert ask(server, shared, carol).status == 404
    assert make(server, "x " + TEXT, alice, group="hr").status == 403
    assert [d["id"] for d in server.request("GET", "/v1/documents", headers=bob).json["data"]] == [
        shared]
    # The same text of another tenant is another document, and so is the same key another key.
    assert make(server, "own " + TEXT, bob).json["id"] != own
    key = {"Idempotency-Key": "same"}
    ids = {make(server, "keyed " + TEXT, {**who, **key}, dedupe=False).json["id"]
           for who in (alice, bob, alice)}
    assert len(ids) == 2

    over = make(server, "a b c d " * 5000, carol)
    assert (over.status, over.json["error"]["code"]) == (429, "insufficient_quota")
    statuses = [server.request("GET", "/v1/models", headers=carol).status for _ in range(10)]
    assert statuses[-1] == 429
    limited = server.request("GET", "/v1/models", headers=carol)
    assert limited.json["error"]["type"] == "rate_limit_error" and limited.headers["Retry-After"]

    keys.write_text("dave key-of-dave\n")
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while server.request("GET", "/v1/models", headers=alice).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    keys.write_text("broken\n")
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    dave = {"Authorization": "Bearer key-of-dave"}
    assert server.request("GET", "/v1/models", headers=dave).status == 200


def make_certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem",
                    "-out", folder / "cert.pem"], check=True, capture_output=True)


def test_tls_and_its_reload(start_server, tiny_model, tmp_path):
    make_certificate(tmp_path, "first")
    server = start_server(tiny_model, "--pool-mib", "16", "--ssl-cert-file",
                          str(tmp_path / "cert.pem"), "--ssl-key-file", str(tmp_path / "key.pem"),
                          wait=False)

    def status():
        context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        url = f"https://127.0.0.1:{server.port}/v1/models"
        with urllib.request.urlopen(url, context=context, timeout=5) as reply:
            return reply.status

    def wait_for_status():
        deadline = time.monotonic() + 60
        while True:
            try:
                return status()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    assert wait_for_status() == 200
    make_certificate(tmp_path, "second")
    with pytest.raises(OSError):
        status()
    server.process.send_signal(signal.SIGHUP)
    assert wait_for_status() == 200


def test_first_signal_drains(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16")
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.request(
        "POST", "/v1/completions", {"prompt": "a", "max_tokens": 8000, "ignore_eos": True})))
    thread.start()
    while server.state()["running"] == 0:
        assert not replies, "it ended before it was seen"
    server.process.send_signal(signal.SIGTERM)
    thread.join()
    assert replies[0].status == 200
    assert replies[0].json["usage"]["completion_tokens"] == 8000
    assert server.process.wait(timeout=20) == 0


def start_endless_request(server):
    """Returns its thread when the request runs."""
    def stream():
        try:
            server.request("POST", "/v1/completions",
                           {"prompt": "a", "max_tokens": 100000, "ignore_eos": True})
        except Exception:  # noqa: BLE001 - it is cut off
            pass

    thread = threading.Thread(target=stream)
    thread.start()
    while server.state()["running"] == 0:
        time.sleep(0.01)
    return thread


def test_second_signal_ends(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16")
    thread = start_endless_request(server)
    server.process.send_signal(signal.SIGTERM)
    while "draining" not in server.text():
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=10) == 143
    thread.join()


def test_drain_has_an_end(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16", "--shutdown-timeout", "0.5")
    thread = start_endless_request(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0
    assert "didn't end in time" in server.text()
    thread.join()


def test_bad_starts_say_why(tiny, tiny_model, tmp_path):
    def run(*flags, **env):
        done = subprocess.run([os.environ["PAGEZIP_BINARY"], "serve", *flags], timeout=60,
                              capture_output=True, text=True, env={**os.environ, **env})
        return done.returncode, done.stderr.splitlines()[-1] if done.stderr else ""

    code, line = run("-m", tiny_model, "--port", str(tiny.port))
    assert code == 5 and "can't listen on 127.0.0.1" in line
    code, line = run("-m", str(tmp_path / "none.gguf"), "--port", "0")
    assert code == 3 and "none.gguf" in line
    code, line = run("-m", tiny_model, "--port", "0", "--api-key-file", str(tmp_path / "none"))
    assert code == 2 and "API keys" in line
    code, line = run("-m", tiny_model, "--port", "banana")
    assert code == 2 and "--port" in line
    code, line = run("-m", tiny_model, PAGEZIP_PORT="banana")
    assert code == 2 and "banana" in line


def test_environment_and_file_configure(start_server, tiny_model, tmp_path):
    config = tmp_path / "pagezip.toml"
    config.write_text(f'[serve]\nmodel = "{tiny_model}"\nmodel-name = "from-file"\n')
    server = start_server(tiny_model, "--config", str(config), env={"PAGEZIP_KEEP": "0.25"})
    assert server.request("GET", "/v1/models").json["data"][0]["id"] == "from-file"
    assert server.request("GET", "/props").json["keep_ratio"] == 0.25


def test_metrics_are_prometheus(start_server, tiny_model):
    server = start_server(tiny_model, "--metrics-compat", "vllm")
    server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})
    text = server.request("GET", "/metrics").body.decode()
    assert 'vllm:num_requests_running{model_name="' in text
    ours = "\n".join(line for line in text.splitlines() if "vllm:" not in line) + "\n"
    if os.path.exists("/usr/bin/promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=ours, text=True,
                              capture_output=True)
        assert done.returncode == 0, done.stderr + done.stdout
    else:
        pytest.fail("promtool isn't installed: scripts/setup.sh does that")
