"""What goes wrong on the wire: each case has its answer, and leaves the server as it was."""
import contextlib
import json
import re
import socket
import struct
import threading
import time

import pytest

CHAT = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}


def post(body, path="/v1/chat/completions", extra=b"", length=None):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    length = len(body) if length is None else length
    return (b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + b"Connection: close\r\nContent-Length: " + str(length).encode() + b"\r\n" + extra
            + b"\r\n" + body)


def get(path, extra=b"", version=b"1.1", method=b"GET"):
    return (method + b" " + path + b" HTTP/" + version + b"\r\nHost: x\r\nConnection: close\r\n"
            + extra + b"\r\n")


def status_of(reply):
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0


def error_of(reply):
    return json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]


# name: (bytes to send, status expected; 0: nothing but the end)
TABLE = {
    "not HTTP": (b"hello\r\n\r\n", 400),
    "TLS to a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
    "binary": (bytes(range(256)) + b"\r\n\r\n", 400),
    "empty line": (b"\r\n\r\n", 400),
    "no path": (b"GET HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "lower-case version": (b"GET / http/1.1\r\nHost: x\r\n\r\n", 400),
    "HTTP/3.0": (get(b"/health", version=b"3.0"), 400),
    "no Host": (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    "HTTP/1.0 without Host": (b"GET /health HTTP/1.0\r\n\r\n", 200),
    "absolute form": (get(b"http://x/health"), 200),
    "relative path": (get(b"health"), 400),
    "broken percent": (get(b"/health%"), 400),
    "broken percent 2": (get(b"/v1/models/%zz"), 400),
    "NUL in path": (get(b"/v1/models/%00"), 400),
    "not UTF-8 in path": (get(b"/v1/models/%ff%fe"), 400),
    "dots in path": (get(b"/v1/documents/..%2f..%2fetc%2fpasswd"), 404),
    "long path": (get(b"/" + b"a" * 20000), 431),
    "long header": (get(b"/health", b"X-A: " + b"a" * 20000 + b"\r\n"), 431),
    "many headers": (get(b"/health", b"".join(b"X-%d: 1\r\n" % i for i in range(300))), 431),
    "header without colon": (get(b"/health", b"broken\r\n"), 400),
    "space before colon": (get(b"/health", b"X-A : 1\r\n"), 400),
    "folded header": (get(b"/health", b"X-A: 1\r\n 2\r\n"), 200),
    "negative length": (post(b"{}", length=-1), 400),
    "length not a number": (get(b"/health", b"Content-Length: abc\r\n"), 400),
    "two lengths": (post(b"{}", extra=b"Content-Length: 7\r\n"), 400),
    "length and chunked": (post(b"0\r\n\r\n", extra=b"Transfer-Encoding: chunked\r\n"), 400),
    "bad chunk": (get(b"/v1/completions", b"Transfer-Encoding: chunked\r\n", method=b"POST")
                  + b"zz\r\n", 400),
    "huge length": (post(b"", length=10**15), 413),
    "length above the limit": (post(b"x", length=2 << 20), 413),
    "unknown method": (get(b"/health", method=b"BREW"), 405),
    "PUT on models": (get(b"/v1/models", method=b"PUT"), 405),
    "GET on chat": (get(b"/v1/chat/completions"), 405),
    "unknown path": (get(b"/v2/nothing"), 404),
    "OPTIONS": (get(b"/v1/models", method=b"OPTIONS"), 204),
    "HEAD": (get(b"/v1/models", method=b"HEAD"), 200),
    "HEAD on metrics": (get(b"/metrics", method=b"HEAD"), 200),
    "empty body": (post(b""), 400),
    "not JSON": (post(b"{"), 400),
    "JSON array": (post(b"[]"), 400),
    "deep JSON": (post(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"), 400),
    "bad UTF-8 in JSON": (post(b'{"messages":[{"role":"user","content":"\xff"}]}'), 400),
    "text after JSON": (post(b"{} {}"), 400),
    "XML": (post(b"<a/>").replace(b"application/json", b"application/xml"), 415),
    "no messages": (post({"messages": []}), 400),
    "role is a number": (post({"messages": [{"role": 1, "content": "a"}]}), 400),
    "content is missing": (post({"messages": [{"role": "user"}]}), 400),
    "temperature NaN": (post(b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}'), 400),
    "temperature -1": (post({**CHAT, "temperature": -1}), 400),
    "top_p 0": (post({**CHAT, "top_p": 0}), 400),
    "n 0": (post({**CHAT, "n": 0}), 400),
    "n 1000": (post({**CHAT, "n": 1000}), 400),
    "stop is a number": (post({**CHAT, "stop": 3}), 400),
    "empty stop": (post({**CHAT, "stop": [""]}), 400),
    "max_tokens 0": (post({**CHAT, "max_tokens": 0}), 400),
    "max_tokens 1e99": (post({**CHAT, "max_tokens": 1e99}), 400),
    "tools": (post({**CHAT, "tools": [{"type": "function"}]}), 501),
    "unknown model": (post({**CHAT, "model": "gpt"}), 404),
    "unknown document": (post({"prompt": "a", "document_id": "doc_x"}, "/v1/completions"), 404),
    "document in the middle": (post({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "file", "file": {"file_id": "doc_x"}}]}]}), 400),
    "token ids too high": (post({"prompt": [10**9]}, "/v1/completions"), 400),
    "prompt mixes": (post({"prompt": ["a", [1]]}, "/v1/completions"), 400),
    "empty prompt": (post({"prompt": ""}, "/v1/completions"), 400),
    "too long a prompt": (post({"prompt": "a b c d " * 5000}, "/v1/completions"), 400),
    "document without content": (post({"name": "a"}, "/v1/documents"), 400),
    "empty document": (post({"content": ""}, "/v1/documents"), 400),
    "document with NUL": (post({"content": "a\0b"}, "/v1/documents"), 400),
    "ratio 0": (post({"content": "a", "compression": {"ratio": 0}}, "/v1/documents"), 400),
    "ratio 2": (post({"content": "a", "compression": {"ratio": 2}}, "/v1/documents"), 400),
    "compression_ratio": (post({"content": "a", "compression_ratio": 0.5}, "/v1/documents"), 400),
    "multipart without boundary": (post(b"--x\r\n", "/v1/documents").replace(
        b"application/json", b"multipart/form-data"), 400),
    "broken multipart": (post(b"--x\r\nhello", "/v1/documents").replace(
        b"application/json", b"multipart/form-data; boundary=x"), 400),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(tiny, name):
    data, status = TABLE[name]
    reply = tiny.raw(data)
    assert status_of(reply) == status, reply[:500]
    if status >= 400:
        error = error_of(reply)
        assert set(error) >= {"message", "type", "param", "code"}
        assert error["message"] and error["type"] and error["code"]
    if status == 405:
        assert b"\r\nAllow: " in reply
    assert tiny.request("GET", "/health").status == 200


@pytest.fixture(autouse=True, scope="module")
def nothing_is_held(tiny):
    """After all of this, the pool has every block but those of prefixes that nobody reads."""
    yield
    for document in tiny.request("GET", "/v1/documents?limit=1000").json["data"]:
        tiny.request("DELETE", "/v1/documents/" + document["id"])
    assert tiny.wait_idle() == 0
    assert tiny.process.poll() is None


def test_pipelined_requests_are_answered_in_order(tiny):
    one = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    reply = tiny.raw(one + get(b"/nothing").replace(b"Connection: close\r\n", b"") + get(b"/health"))
    statuses = [int(part[:3]) for part in reply.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200]


def test_one_byte_at_a_time(tiny):
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        for byte in get(b"/health"):
            s.sendall(bytes([byte]))
        assert s.recv(100).startswith(b"HTTP/1.1 200")


def test_chunked_upload(tiny):
    body = json.dumps(CHAT).encode()
    chunks = b"".join(b"1;x=y\r\n" + bytes([byte]) + b"\r\n" for byte in body) + b"0\r\nX-T: 1\r\n\r\n"
    head = get(b"/v1/chat/completions", b"Transfer-Encoding: chunked\r\n", method=b"POST")
    assert status_of(tiny.raw(head + chunks)) == 200


def test_chunked_upload_above_the_limit(tiny):
    head = get(b"/v1/chat/completions", b"Transfer-Encoding: chunked\r\n", method=b"POST")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert status_of(tiny.raw(head + chunk * 32 + b"0\r\n\r\n")) == 413


def test_expect_100_continue(tiny):
    body = json.dumps(CHAT).encode()
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        s.sendall(post(body, extra=b"Expect: 100-continue\r\n")[:-len(body)])
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(body)
        assert s.recv(100).startswith(b"HTTP/1.1 200")


def test_expect_100_continue_isnt_granted_to_a_bad_request(tiny):
    body = b"x" * 100
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        s.sendall(post(body, "/nothing", extra=b"Expect: 100-continue\r\n")[:-len(body)])
        assert s.recv(100).startswith(b"HTTP/1.1 404")


def test_slow_headers_end(tiny):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        s.sendall(b"GET /health HTTP/1.1\r\n")
        reply = b""
        try:
            while time.monotonic() < start + 8:
                s.sendall(b"X-A: 1\r\n")
                s.settimeout(0.2)
                try:
                    part = s.recv(1000)
                    if not part:
                        break
                    reply += part
                except TimeoutError:
                    pass
        except OSError:
            pass
    assert time.monotonic() - start < 5
    assert status_of(reply) in (0, 408)


def test_slow_body_ends(tiny):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        s.sendall(post(b"{", length=100))
        assert s.recv(1000).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < 6


def test_idle_connection_ends(tiny):
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as s:
        assert s.recv(100) == b""


def long_stream(tiny, **more):
    s = socket.create_connection(("127.0.0.1", tiny.port), timeout=20)
    s.sendall(post({"prompt": "a b", "max_tokens": 8000, "stream": True, "ignore_eos": True, **more},
                   "/v1/completions"))
    return s


def running(tiny):
    return tiny.state()["running"] + tiny.state()["waiting"]


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def cancelled(tiny):
    line = re.search(r"^pagezip_requests_cancelled_total (\d+)", tiny.request("GET", "/metrics").body.decode(), re.M)
    return int(line.group(1))


@contextlib.contextmanager
def one_is_cancelled(tiny, seconds=10):
    before = cancelled(tiny)
    yield
    wait_until(lambda: cancelled(tiny) == before + 1, seconds)
    assert running(tiny) == 0


def test_disconnect_in_a_stream_cancels(tiny):
    with one_is_cancelled(tiny):
        s = long_stream(tiny)
        assert s.recv(100).startswith(b"HTTP/1.1 200")
        s.close()


def test_reset_in_a_stream_cancels(tiny):
    with one_is_cancelled(tiny):
        s = long_stream(tiny)
        s.recv(100)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def test_half_close_counts_as_gone(tiny):
    with one_is_cancelled(tiny):
        s = long_stream(tiny, stream=False)
        time.sleep(0.1)
        s.shutdown(socket.SHUT_WR)
    s.close()


def test_half_close_after_a_quick_request_is_answered(tiny):
    assert status_of(tiny.raw(get(b"/health"), close=True)) == 200


def test_disconnect_before_the_reply_cancels(tiny):
    with one_is_cancelled(tiny):
        s = long_stream(tiny, stream=False)
        time.sleep(0.1)
        s.close()


def test_slow_reader_is_dropped_and_others_go_on(tiny):
    # Small buffers, and a stream that is large because of its log-probabilities.
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", tiny.port))
    s.sendall(post({"prompt": "a b", "max_tokens": 3000, "stream": True, "ignore_eos": True, "n": 8,
                    "logprobs": 20}, "/v1/completions"))
    start = time.monotonic()
    assert tiny.request("POST", "/v1/completions", {"prompt": "c", "max_tokens": 3}).status == 200
    wait_until(lambda: running(tiny) == 0, 60)
    assert time.monotonic() - start < 60
    s.close()


def test_upload_that_ends_early(tiny):
    assert tiny.raw(post(b"{}", length=1000), close=True) == b""


def test_unread_body_doesnt_eat_the_reply(tiny):
    body = b"x" * (900 << 10)
    assert status_of(tiny.raw(post(body, "/nothing"))) == 404


def test_request_ids(tiny):
    reply = tiny.request("GET", "/nothing", headers={"X-Request-Id": "my-id.1"})
    assert reply.headers["X-Request-Id"] == "my-id.1"
    reply = tiny.request("GET", "/nothing", headers={"X-Request-Id": "a b<script>"})
    assert reply.headers["X-Request-Id"].startswith("req_")


def test_traces_and_times(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16")
    trace = "0af7651916cd43dd8448eb211c80319c"
    reply = server.request("POST", "/v1/chat/completions", CHAT,
                           {"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    parts = dict(part.strip().split(";dur=") for part in reply.headers["Server-Timing"].split(","))
    assert abs(float(parts["prompt"]) - reply.json["timings"]["prompt_ms"]) < 100
    assert abs(float(parts["decode"]) - reply.json["timings"]["predicted_ms"]) < 100
    for bad in ("x", f"00-{trace[:-1]}\x1b-b7ad6b7169203331-01", f"ff-{trace}-b7ad6b7169203331-01"):
        server.raw(get(b"/v1/models", b"traceparent: " + bad.encode() + b"\r\n"))
    lines = [line for line in server.text().splitlines() if "trace=" in line]
    assert len(lines) == 1 and lines[0].endswith(f"{reply.headers['X-Request-Id']} trace={trace}")


def test_too_many_connections(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16", "--max-connections", "3")
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    time.sleep(0.2)
    assert status_of(server.raw(get(b"/health"))) == 503
    for s in held:
        s.close()
    wait_until(lambda: status_of(server.raw(get(b"/health"))) == 200)


def test_a_full_queue_is_refused(start_server, tiny_model):
    server = start_server(tiny_model, "--pool-mib", "16", "--max-queue", "4", "--max-running", "2")
    statuses = []

    def ask():
        reply = server.request("POST", "/v1/completions",
                               {"prompt": "a", "max_tokens": 3000, "ignore_eos": True})
        statuses.append((reply.status, reply.headers.get("Retry-After")))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in statuses} == {200, 429}
    assert all(retry for status, retry in statuses if status == 429)
    assert server.wait_idle() == 0


def test_mutated_requests(tiny):
    """A seeded fuzzer: whatever comes, no crash and no 500."""
    import random
    import os
    rng = random.Random(int(os.environ.get("PAGEZIP_FUZZ_SEED", "1")))
    seeds = [data for data, _ in TABLE.values() if len(data) < 2000] + [post(CHAT)]
    words = [b"\r\n", b"\0", b"\xff", b"{", b"}", b"[", b'"', b"null", b"-1", b"1e999", b"Content-Length: 5\r\n",
             b"Transfer-Encoding: chunked\r\n", b"/v1/documents", b"%00", b"true", b"\xed\xa0\x80"]
    count = int(os.environ.get("PAGEZIP_FUZZ_REQUESTS", "1000"))
    for number in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                data[at:at] = rng.choice(words)
            elif kind == 1 and data:
                data[at % len(data)] = rng.randrange(256)
            elif kind == 2:
                del data[at:at + rng.randint(1, 8)]
            else:
                other = rng.choice(seeds)
                data[at:] = other[rng.randrange(len(other) + 1):]
        # The end of our side ends what waits for more.
        reply = tiny.raw(bytes(data), close=True, timeout=10)
        for part in reply.split(b"HTTP/1.1 ")[1:]:
            assert part[:3] != b"500", (number, bytes(data), reply)
    assert tiny.request("GET", "/health").status == 200
