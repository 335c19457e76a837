"""What README.md says of the server: its commands and its Python, as they stand there."""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def section(title):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        return readme.read().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def steps(text):
    """Pieces of Python, and commands behind a prompt with their continuations."""
    for language, block in re.findall(r"```(console|python)\n(.*?)```", text, re.S):
        if language == "python":
            yield block
            continue
        for command in re.findall(r"^\$ (.*(?:(?<=\\)\n.*)*)", block, re.M):
            yield command


def test_serve_it(start_server, tmp_path):
    model = os.path.join(os.environ["PAGEZIP_MODELS"], MODEL)
    server, document, outputs = None, None, []
    for step in steps(section("Serve it")):
        if "pagezip serve" in step:
            flags = step.split("--model $MODEL ", 1)[1].removesuffix(" &").split()
            flags[flags.index("--documents") + 1] = str(tmp_path)
            if server is not None:
                server.stop()
            server = start_server(model, *flags)
            continue
        if document is not None:
            step = re.sub(r"doc_[\w-]{22}", document, step)
        step = re.sub(r"(localhost|127\.0\.0\.1):8080", rf"\1:{server.port}", step)
        command = ["bash", "-c", step] if step.startswith("curl") else [sys.executable, "-c", step]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        outputs.append(done.stdout)
        if document is None:
            document = re.search(r"doc_[\w-]{22}", done.stdout).group()
    made, asked, queried, metrics = outputs
    ready = made.split("event: document.ready\ndata: ", 1)[1].splitlines()[0]
    usage = json.loads(ready)["usage"]
    assert usage["kv_bytes"] <= 0.33 * usage["kv_bytes_full"]
    assert "Maureen Okafor" in asked
    assert str({"id": document, "keep_ratio": 0.3, "tier": "memory"}) in asked
    assert "800 litres" in json.loads(queried)["choices"][0]["message"]["content"]
    assert metrics.splitlines() == [
        'pagezip_rows_total{kind="document"} 0', 'pagezip_rows_total{kind="score"} 0',
        "pagezip_document_restored_total 1"]
