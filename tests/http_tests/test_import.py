"""Documents that come as files."""
import os
import socket
import time

import pytest

from conftest import durable
from test_documents import TEXT, ask, make

FILE = {"Content-Type": "application/vnd.pagezip.document"}


def export(server, document, headers=None):
    durable(server, f"/v1/documents/{document}", headers)
    reply = server.request("GET", f"/v1/documents/{document}/content", headers=headers)
    assert reply.status == 200
    return reply.body


def put(server, document, content, headers=None, query=""):
    return server.request("PUT", f"/v1/documents/{document}/content{query}", content,
                          {**FILE, **(headers or {})})


def choice(reply):
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]


@pytest.fixture(scope="module")
def exported(tiny):
    """A document's file, its id where it was made, and what it answers there."""
    document = make(tiny, "exported " + TEXT, name="a name").json["id"]
    return export(tiny, document), document, choice(ask(tiny, document))


def test_export_delete_import(tiny):
    made = make(tiny, "there and back " + TEXT, name="lasting", pinned=True).json
    path = f"/v1/documents/{made['id']}"
    content = export(tiny, made["id"])
    before = choice(ask(tiny, made["id"]))
    kept = tiny.request("GET", path + "/retention").json
    assert tiny.request("DELETE", path).status == 200
    assert put(tiny, made["id"], b"").status == 422
    reply = put(tiny, made["id"], content)
    assert reply.status == 201, reply.body
    assert reply.headers["Location"] == path and reply.headers["ETag"]
    back = reply.json
    assert (back["id"], back["name"], back["status"]) == (made["id"], "lasting", "ready")
    assert back["imported"] and not made["imported"] and not back["pinned"]
    assert back["created_at"] >= made["created_at"]
    assert back["residency"] == {"tier": "disk", "durable": True}
    assert back["usage"]["kv_bytes"] == made["usage"]["kv_bytes"]
    assert choice(ask(tiny, made["id"])) == before
    assert tiny.request("GET", path + "/retention").json == kept
    assert put(tiny, made["id"], content).status == 200
    # What was cut from its scores is what would have been cut before.
    lower = tiny.request("PATCH", path, {"compression": {"ratio": 0.2}, "name": "renamed"})
    assert lower.status == 200 and [v["ratio"] for v in lower.json["versions"]] == [0.2, 0.5]
    assert put(tiny, made["id"], content).json["name"] == "renamed"
    assert tiny.request("DELETE", path).status == 200


def test_another_server_takes_it(start_server, tiny_model, tmp_path, exported):
    content, document, before = exported
    flags = ["--pool-mib", "16", "--documents", str(tmp_path)]
    server = start_server(tiny_model, *flags)
    assert put(server, "its-new_Name", content).status == 201
    assert choice(ask(server, "its-new_Name"))["message"] == before["message"]
    assert server.request("GET", f"/v1/documents/{document}").status == 404
    metrics = server.request("GET", "/metrics").body.decode()
    assert 'pagezip_rows_total{kind="document"} 0' in metrics  # nothing was computed again

    def remake():
        """The same text: only what was made here is the same."""
        made = make(server, "exported " + TEXT)
        assert made.status == 201 and made.json["id"] != "its-new_Name"
        assert not made.json["imported"]
        assert server.request("DELETE", made.headers["Location"]).status == 200

    remake()
    assert server.stop() == 0
    server = start_server(tiny_model, *flags)
    found = server.request("GET", "/v1/documents/its-new_Name").json
    assert (found["name"], found["imported"], found["residency"]["tier"]) == (
        "a name", True, "disk")
    assert choice(ask(server, "its-new_Name"))["message"] == before["message"]
    remake()
    assert export(server, "its-new_Name")[1280:] == content[1280:]
    assert server.request("DELETE", "/v1/documents/its-new_Name").status == 200
    assert server.stop() == 0
    assert [name for name in os.listdir(tmp_path) if name.endswith(".pgz")] == []


def damages(content):
    """Files with one thing wrong each: a byte in every part, and the length."""
    pages = 1280 + (len(content) - 1280) // 2
    for offset in (0, 8, 40, 250, 280, 1280, 1300, pages, len(content) - 1):
        yield content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1:]
    for length in (0, 100, 1279, 1280, pages, len(content) - 1):
        yield content[:length]
    yield content + b"\0"
    yield b'{"content": "text"}'


def test_damaged_files_leave_nothing(start_server, tiny_model, tmp_path, exported):
    server = start_server(tiny_model, "--pool-mib", "16", "--documents", str(tmp_path))
    before = sorted(os.listdir(tmp_path))
    for i, content in enumerate(damages(exported[0])):
        reply = put(server, "damaged", content)
        assert (reply.status, reply.json["error"]["code"]) == (422, "corrupt_document"), i
        assert str(tmp_path) not in reply.json["error"]["message"]
        assert sorted(os.listdir(tmp_path)) == before, i
    assert server.request("GET", "/v1/documents/damaged").status == 404
    assert server.request("GET", "/v1/documents").json["data"] == []
    assert put(server, "damaged", exported[0]).status == 201  # the id is free


def test_an_upload_that_breaks_off_leaves_nothing(start_server, tiny_model, tmp_path, exported):
    server = start_server(tiny_model, "--pool-mib", "16", "--documents", str(tmp_path),
                          "--body-timeout", "1")
    before = sorted(os.listdir(tmp_path))
    head = (b"PUT /v1/documents/cut/content HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            % len(exported[0]))
    for close in (True, False):  # it leaves, or sends nothing more
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(head + exported[0][:5000])
            deadline = time.monotonic() + 10
            while sorted(os.listdir(tmp_path)) == before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert close or s.recv(65536).startswith(b"HTTP/1.1 408 ")
        while sorted(os.listdir(tmp_path)) != before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert server.request("GET", "/v1/documents/cut").status == 404


def test_another_model_is_refused(start_server, tiny_model, tmp_path, exported):
    with open(tiny_model, "rb") as file:
        weights = bytearray(file.read())
    for i in range(len(weights) // 2, len(weights), 4):
        weights[i] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(weights)
    for model, flags, why in ((tiny_model, ["--page-tokens", "32"], "tokens per page: 16 instead"),
                              (str(other), [], "made with the model of fingerprint")):
        folder = tmp_path / flags[-1] if flags else tmp_path / "weights"
        folder.mkdir()
        server = start_server(model, "--pool-mib", "16", "--documents", str(folder), *flags)
        reply = put(server, "foreign", exported[0])
        assert (reply.status, reply.json["error"]["code"]) == (409, "model_mismatch")
        assert why in reply.json["error"]["message"]
        assert os.listdir(folder) == [".lock"]
    server = start_server(tiny_model, "--pool-mib", "16", "--context", "64", "--documents",
                          str(folder.parent))
    reply = put(server, "long", exported[0])
    assert (reply.status, reply.json["error"]["code"]) == (413, "document_too_large")


def test_what_else_is_refused(tiny, start_server, tiny_model, exported):
    content, document, _ = exported
    other = make(tiny, "other " + TEXT).json["id"]
    assert put(tiny, other, content).json["error"]["code"] == "id_taken"
    assert put(tiny, document, content).status == 200  # not imported: it was there
    assert put(tiny, "a.b", content).status == 400
    assert put(tiny, "x" * 65, content).status == 400
    assert put(tiny, "x", content, {"Content-Type": "text/plain"}).status == 415
    assert put(tiny, "x", content, query="?group=nobody").status == 403
    assert put(tiny, "x", content + bytes(1 << 20)).status == 413
    assert tiny.request("GET", "/v1/documents/x").status == 404
    memory_only = start_server(tiny_model, "--pool-mib", "16")
    reply = put(memory_only, "x", content)
    assert reply.status == 400 and "--documents" in reply.json["error"]["message"]


def test_tenants_and_quotas(start_server, tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice key-of-alice groups=legal\nbob key-of-bob groups=legal,hr\n"
                    "carol key-of-carol kv-mib=1\n")
    folder = tmp_path / "documents"
    folder.mkdir()
    server = start_server(tiny_model, "--pool-mib", "64", "--api-key-file", str(keys),
                          "--documents", str(folder))
    alice, bob, carol = ({"Authorization": f"Bearer key-of-{name}"}
                         for name in ("alice", "bob", "carol"))
    own = make(server, "own " + TEXT, alice, name="for alice only").json["id"]
    content = export(server, own, alice)
    assert b"alice" in content
    assert server.request("PUT", "/v1/documents/new/content", content, FILE).status == 401

    taken = put(server, own, content, bob)
    assert (taken.status, taken.json["error"]["code"]) == (409, "id_taken")
    assert put(server, "bobs", content, bob).status == 201
    assert server.request("GET", "/v1/documents/bobs", headers=alice).status == 404
    assert put(server, "bobs", content, alice).status == 409
    # Nothing of its first owner but the name that was given to it.
    again = export(server, "bobs", bob)
    assert b"alice" not in again.replace(b"for alice only", b"")
    assert put(server, "bobs", again, bob).status == 200

    assert put(server, "shared", content, alice, "?group=hr").status == 403
    shared = put(server, "shared", content, alice, "?group=legal")
    assert (shared.status, shared.json["group"]) == (201, "legal")
    assert choice(ask(server, "shared", bob)) == choice(ask(server, own, alice))
    assert ask(server, "shared", carol).status == 404
    # The same content, but of another owner.
    assert put(server, "shared", content, alice).status == 409

    large = make(server, "a b c d " * 1500, alice, compression={"ratio": 1}).json
    assert large["usage"]["kv_bytes"] > 1 << 20
    over = put(server, "large", export(server, large["id"], alice), carol)
    assert (over.status, over.json["error"]["code"]) == (429, "insufficient_quota")
    assert put(server, "small", content, carol).status == 201
    assert sorted(name.split(".")[0] for name in os.listdir(folder) if ".pgz" in name) == sorted(
        [own, "bobs", "shared", large["id"], "small"])
