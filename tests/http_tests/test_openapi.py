"""schemathesis over our own description: what it says holds, whatever is sent."""
import json
import os
import subprocess
import sys

SOURCE = os.path.join(os.path.dirname(__file__), "..", "..", "api", "http", "openapi.json")


def test_it_is_served(tiny):
    with open(SOURCE, encoding="utf-8") as source:
        assert tiny.request("GET", "/openapi.json").json == json.load(source)


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
