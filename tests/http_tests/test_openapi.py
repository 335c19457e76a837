"""schemathesis over our own description: what it says holds, whatever is sent."""
import json
import os
import subprocess
import sys

import jsonschema_rs
import pytest

from test_documents import make

SOURCE = os.path.join(os.path.dirname(__file__), "..", "..", "api", "http", "openapi.json")


def test_it_is_served(tiny):
    with open(SOURCE, encoding="utf-8") as source:
        assert tiny.request("GET", "/openapi.json").json == json.load(source)


def close(node):
    """Forbids fields that aren't described, in all objects below it."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            node.setdefault("additionalProperties", False)
        for child in node.values():
            close(child)
    elif isinstance(node, list):
        for child in node:
            close(child)


@pytest.fixture(scope="module")
def described():
    """A function from a schema's name to its validator, which knows no fields but the described."""
    with open(SOURCE, encoding="utf-8") as source:
        document = json.load(source)
    close(document["components"]["schemas"])
    return lambda name: jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]})


def test_replies_are_described(tiny, described):
    document = make(tiny, "described " * 20, name="n", metadata={"a": "b"}, pinned=True,
                    expires_after={"anchor": "last_active_at", "seconds": 60}).json
    described("Document").validate(document)
    path = f"/v1/documents/{document['id']}"
    refused = make(tiny, "", wait=0)
    described("Error").validate(refused.json)
    for name, reply in (
            ("Document", tiny.request("GET", path)),
            ("Retention", tiny.request("GET", path + "/retention")),
            ("Retention", tiny.request("GET", path + "/retention?layer=0&head=0")),
            ("Build", tiny.request("GET", "/version")),
            ("Props", tiny.request("GET", "/props")),
            ("State", tiny.request("GET", "/state")),
            ("Rendered", tiny.request("POST", "/v1/chat/completions/render",
                                      {"messages": [{"role": "user", "content": "a"}]})),
            ("Tokens", tiny.request("POST", "/tokenize", {"content": "a b"})),
            ("Text", tiny.request("POST", "/detokenize", {"tokens": [97]})),
            ("Completion", tiny.request("POST", "/v1/completions",
                                        {"prompt": "a", "max_tokens": 2, "logprobs": 2})),
            ("Completion", tiny.request("POST", path + "/query",
                                        {"query": "a?", "max_tokens": 2}))):
        assert reply.status == 200, reply.body
        described(name).validate(reply.json)


def test_schemathesis(start_server, tiny_model, tmp_path):
    # A request that names no limit goes on to the end of the context: under sanitizers, on a busy
    # machine, for longer than schemathesis waits.
    server = start_server(tiny_model, "--pool-mib", "64", "--context", "256", "--documents",
                          str(tmp_path), "--no-access-log")
    count = os.environ.get("PAGEZIP_SCHEMATHESIS_EXAMPLES", "20")
    schemathesis = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    done = subprocess.run(
        [schemathesis, "run", SOURCE, "--url", f"http://127.0.0.1:{server.port}",
         "--max-examples", count, "--seed", "1", "--no-color", "--request-timeout", "60",
         # What is valid depends on the model and on the documents that are there: token ids, say.
         "--exclude-checks", "positive_data_acceptance,ensure_resource_availability",
         # Streams that have no end.
         "--exclude-path-regex", "/events$"],
        capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert server.process.poll() is None
