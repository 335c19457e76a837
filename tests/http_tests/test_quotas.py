"""What counts against a tenant's kv-mib."""
import time

import pytest

from conftest import durable
from test_documents import make

ALICE = {"Authorization": "Bearer key-of-alice"}
QUOTA = 1 << 20
FULL = {"ratio": 1}


def text(name, words=350):
    """Its pairs, all of them, take more than half of the quota."""
    return f"{name} " + "a b c d " * words


@pytest.fixture
def start(start_server, tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice key-of-alice groups=legal kv-mib=1\n")
    folder = tmp_path / "documents"
    folder.mkdir()
    return lambda: start_server(tiny_model, "--pool-mib", "64", "--api-key-file", str(keys),
                                "--documents", str(folder))


def is_over(reply):
    return (reply.status, reply.json["error"]["code"]) == (429, "insufficient_quota")


def test_documents_in_files_count(start):
    server = start()
    made = make(server, text("one"), ALICE, compression=FULL).json
    assert QUOTA / 2 < made["usage"]["kv_bytes"] < QUOTA
    durable(server, f"/v1/documents/{made['id']}", ALICE)
    server.stop()

    server = start()
    found = server.request("GET", f"/v1/documents/{made['id']}", headers=ALICE).json
    assert [v["tier"] for v in found["versions"]] == ["disk"]
    assert is_over(make(server, text("two"), ALICE, compression=FULL))
    # The same document is there already: it takes nothing more.
    assert make(server, text("one"), ALICE, compression=FULL).status == 200
    assert server.request("DELETE", f"/v1/documents/{made['id']}", headers=ALICE).status == 200
    assert make(server, text("two"), ALICE, compression=FULL).status == 201


def test_what_is_being_made_counts_until_it_is_cancelled(start):
    server = start()
    for i in range(4):  # a group's, so that what comes behind them has to wait
        assert make(server, text(i, 700), ALICE, wait=0, group="legal").status == 202
    begun = make(server, text("one"), ALICE, wait=0, compression=FULL)
    assert begun.status == 202
    assert is_over(make(server, text("two"), ALICE, wait=0, compression=FULL))
    path = f"/v1/documents/{begun.json['id']}"
    assert server.request("POST", path + "/cancel", headers=ALICE).status == 200
    deadline = time.monotonic() + 30
    while (again := make(server, text("two"), ALICE, wait=0, compression=FULL)).status != 202:
        assert is_over(again) and time.monotonic() < deadline
        time.sleep(0.05)


def test_more_versions_count(start):
    server = start()
    made = make(server, text("one"), ALICE, compression={"ratio": 0.9}).json
    assert QUOTA / 2 < made["usage"]["kv_bytes"] < QUOTA
    path = f"/v1/documents/{made['id']}"
    assert is_over(server.request("PATCH", path, {"compression": {"ratio": 0.8}}, ALICE))
    assert server.request("PATCH", path, {"compression": {"ratio": 0.05}}, ALICE).status == 200


def test_a_groups_documents_count_for_nobody(start):
    server = start()
    for name in ("one", "two"):
        assert make(server, text(name), ALICE, compression=FULL, group="legal").status == 201
    assert make(server, text("one"), ALICE, compression=FULL).status == 201
    assert is_over(make(server, text("two"), ALICE, compression=FULL))
