"""Load generators and an evaluation harness, unmodified, on a real model with a local tokenizer.

Each has an environment of its own (scripts/client_env.sh --full); test.sh --full runs them.
"""
import json
import os
import subprocess

import pytest

from conftest import SMOLLM2
from test_documents import make

CLIENTS = os.environ.get("PAGEZIP_CLIENTS") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pagezip", "clients")


def run(client, *command, cwd):
    done = subprocess.run([os.path.join(f"{CLIENTS}-{client}", "bin", command[0]), *command[1:]],
                          capture_output=True, text=True, timeout=600, cwd=cwd,
                          env={**os.environ, "HF_HOME": str(cwd)})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The model's tokenizer as a folder that Hugging Face's libraries load."""
    folder = tmp_path_factory.mktemp("tokenizer")
    model = os.path.join(os.environ["PAGEZIP_MODELS"], SMOLLM2)
    here = os.path.dirname(os.path.abspath(__file__))
    run("aiperf", "python", os.path.join(here, "make_tokenizer.py"), model, str(folder), cwd=folder)
    return str(folder)


def test_guidellm(smollm2, tokenizer, tmp_path):
    report = tmp_path / "report.json"
    run("guidellm", "guidellm", "run",
        "--backend", f"kind=openai_http,target={url(smollm2)},model=smollm2",
        "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output", f"kind=json,path={report}", "--disable-console-interactive", cwd=tmp_path)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (12, 0, 0)
    # What the server counted, and it wrote to the limit.
    assert metrics["output_token_count"]["successful"]["mean"] == 16
    assert metrics["prompt_token_count"]["successful"]["mean"] > 64  # with the chat template


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_aiperf(smollm2, tokenizer, tmp_path, endpoint):
    """Streams; the completions read one shared compressed document."""
    extra = ["--extra-inputs", "ignore_eos:true"]
    document = None
    if endpoint == "completions":
        document = make(smollm2, "The harbour opens at six. " * 40).json
        extra += ["--extra-inputs", f"document_id:{document['id']}"]
    run("aiperf", "aiperf", "profile", "--model", "smollm2", "--url", url(smollm2),
        "--endpoint-type", endpoint, "--streaming", "--request-count", "12", "--concurrency", "4",
        "--tokenizer", tokenizer, "--use-server-token-count", "--random-seed", "1",
        "--synthetic-input-tokens-mean", "64", "--synthetic-input-tokens-stddev", "0",
        "--output-tokens-mean", "16", "--output-tokens-stddev", "0", *extra,
        "--artifact-dir", str(tmp_path / "out"), "--ui", "none", cwd=tmp_path)
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 12 and not report["error_summary"]
    assert report["output_sequence_length"]["avg"] == 16
    if document:
        read = report["usage_prompt_cache_read_tokens"]["min"]
        assert read >= document["usage"]["tokens"]
        after = smollm2.request("GET", f"/v1/documents/{document['id']}").json
        assert after["usage"]["hits"] >= 12


CAPITALS = [("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome"), ("Japan", "Tokyo"),
            ("Spain", "Madrid"), ("Russia", "Moscow"), ("Greece", "Athens"), ("Austria", "Vienna")]
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: {output}
doc_to_text: "{text}"
{rest}
metric_list:
  - metric: {metric}
"""


def test_lm_eval(smollm2, tokenizer, tmp_path):
    """Log-probabilities of given text (echo), and text that is generated."""
    data = tmp_path / "capitals.jsonl"
    names = [capital for _, capital in CAPITALS]
    data.write_text("".join(json.dumps({
        "country": country, "capital": capital,
        "choices": [names[(i + k) % len(names)] for k in (3, 0, 5, 6)]}) + "\n"
                            for i, (country, capital) in enumerate(CAPITALS)))
    (tmp_path / "chosen.yaml").write_text(TASK.format(
        name="chosen", data=data, output="multiple_choice", metric="acc",
        text="The capital of {{country}} is",
        rest='doc_to_choice: "{{choices}}"\ndoc_to_target: 1'))
    (tmp_path / "written.yaml").write_text(TASK.format(
        name="written", data=data, output="generate_until", metric="exact_match",
        text="The capital of France is Paris. The capital of {{country}} is",
        rest='doc_to_target: " {{capital}}"\n'
             'generation_kwargs: {until: ["."], max_gen_toks: 8, temperature: 0}'))
    run("lm-eval", "lm_eval", "run", "--model", "local-completions", "--model_args",
        f"model=smollm2,base_url={url(smollm2)}/v1/completions,tokenizer={tokenizer},num_concurrent=2",
        "--tasks", "chosen,written", "--include_path", str(tmp_path),
        "--output_path", str(tmp_path / "out"), cwd=tmp_path)
    (report,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(report.read_text())["results"]
    assert results["chosen"]["acc,none"] == 1
    assert results["written"]["exact_match,none"] == 1
