#!/usr/bin/env python3
"""Our server beside llama-server, on the same model at temperature 0: which fields replies have, in
which order the parts of a stream come, why texts end, and what is counted.

usage: compare_llama_server.py PAGEZIP LLAMA_SERVER MODEL.gguf

Prints every difference. Those of DELIBERATE are meant (docs/SERVING.md, "What differs"); exit code 1
if there are others. Texts may differ after some tokens, since the two round differently.
"""
import fnmatch
import http.client
import json
import socket
import subprocess
import sys
import time

# "CASE PATH" with wildcards -> why. `+`: only ours has it; `-`: only llama-server has it.
DELIBERATE = {
    "* + .choices[[]].logprobs null": "as OpenAI: null where it isn't asked for",
    "* + .choices[[]].message.refusal null": "as OpenAI",
    "* + .choices[[]].logprobs.refusal null": "as OpenAI",
    "* + .usage null": "as OpenAI: null before the chunk that has it",
    "* + .usage.prompt_tokens_details.cache_write_tokens number": "what this request left in the cache",
    "* - .choices[[]].logprobs.content[[]]*.id number": "OpenAI has no token ids there",
    "chat_progress stage 0 + .prompt_progress.stage text": "what is done: prefill",
    "chat_* stage 1 - .timings.*": "timings come once, in the chunk with the usage",
    "text_stream *": "as OpenAI: usage has a chunk of its own, without choices",
    "text_logprobs *": "as OpenAI: the older form of /v1/completions",
    "models *": "max_model_len as vLLM; no second list as Ollama's, no sizes of the file",
    "props *": "what is known of this server; no defaults of samplers, slots or modalities",
    "tokenize* + .count number": "as vLLM, whose gateways ask",
    "tokenize* + .max_model_len number": "as vLLM, whose gateways ask",
    "detokenize + .prompt text": "as vLLM",
    "apply_template + .content text": "what to send to /tokenize",
    "* + .error.code text": "a word that programs can compare, as OpenAI",
    "* - .error.code number": "a word that programs can compare, as OpenAI",
    "* + .error.param *": "as OpenAI: the field that is wrong",
    "bad_json status 400, llama-server 500": "it is the client's mistake",
    "empty_messages *": "as OpenAI: an error",
    "wrong_method status 405, llama-server 404": "with Allow",
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command):
        self.name = name
        self.port = free_port()
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        deadline = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, f"{self.name} ended"
            assert time.monotonic() < deadline, f"{self.name} doesn't get ready"
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)

    def call(self, method, path, body=None):
        """(status, reply): JSON, or for a stream the list of its events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = body if isinstance(body, (str, type(None))) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        if reply.getheader("Content-Type", "").startswith("text/event-stream"):
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            return reply.status, [e if e == "[DONE]" else json.loads(e) for e in events]
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, text

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


CHAT = {"messages": [{"role": "system", "content": "You are a helpful assistant."},
                     {"role": "user", "content": "Name three colours of the rainbow."}],
        "temperature": 0, "max_tokens": 8}
TEXT = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 6}
LONG = {"messages": [{"role": "user", "content": "Say hello. " * 200}], "temperature": 0,
        "max_tokens": 4}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

CASES = {
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat_short": ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}),
    "chat_max_completion_tokens": ("POST", "/v1/chat/completions",
                                   {**{k: v for k, v in CHAT.items() if k != "max_tokens"},
                                    "max_completion_tokens": 5}),
    "chat_stream": ("POST", "/v1/chat/completions", {**CHAT, **STREAM}),
    "chat_stream_no_usage": ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    "chat_logprobs": ("POST", "/v1/chat/completions",
                      {**CHAT, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}),
    "chat_stop": ("POST", "/v1/chat/completions", {**CHAT, "stop": ["e"]}),
    "chat_stop_stream": ("POST", "/v1/chat/completions", {**CHAT, **STREAM, "stop": ["e"]}),
    "chat_progress": ("POST", "/v1/chat/completions", {**LONG, **STREAM, "return_progress": True}),
    "chat_again": ("POST", "/v1/chat/completions", LONG),
    "chat_timings": ("POST", "/v1/chat/completions",
                     {**CHAT, **STREAM, "max_tokens": 2, "timings_per_token": True}),
    "text": ("POST", "/v1/completions", TEXT),
    "text_stream": ("POST", "/v1/completions", {**TEXT, **STREAM}),
    "text_logprobs": ("POST", "/v1/completions", {**TEXT, "max_tokens": 3, "logprobs": 2}),
    "text_tokens": ("POST", "/v1/completions", {**TEXT, "prompt": [504, 3575, 282, 4649, 314]}),
    "text_list": ("POST", "/v1/completions", {**TEXT, "prompt": ["One, two,", "Red, green,"],
                                              "max_tokens": 4}),
    "text_stop": ("POST", "/v1/completions", {**TEXT, "stop": "."}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "props": ("GET", "/props", None),
    "tokenize": ("POST", "/tokenize", {"content": "Hello, wörld!"}),
    "tokenize_pieces": ("POST", "/tokenize", {"content": "Hello, wörld!", "with_pieces": True}),
    "detokenize": ("POST", "/detokenize", {"tokens": [19556, 28, 905]}),
    "apply_template": ("POST", "/apply-template", {"messages": CHAT["messages"]}),
    "bad_json": ("POST", "/v1/chat/completions", "{"),
    "no_messages": ("POST", "/v1/chat/completions", {"max_tokens": 2}),
    "empty_messages": ("POST", "/v1/chat/completions", {"messages": [], "max_tokens": 2}),
    "bad_type": ("POST", "/v1/chat/completions", {"messages": "hello", "max_tokens": 2}),
    "no_prompt": ("POST", "/v1/completions", {"max_tokens": 2}),
    "unknown_path": ("GET", "/v1/nothing", None),
    "wrong_method": ("GET", "/v1/completions", None),
}


def shape(value, path=""):
    """The paths of all fields, with the kinds of their values."""
    if isinstance(value, dict):
        return {p for key, v in value.items() for p in shape(v, f"{path}.{key}")} or {path + " {}"}
    if isinstance(value, list):
        return {p for v in value[:1] for p in shape(v, path + "[]")} or {path + " []"}
    kind = {bool: "boolean", int: "number", float: "number", str: "text", type(None): "null"}
    return {f"{path} {kind[type(value)]}"}


def stages(events):
    """What a stream consists of: runs of events of one shape, as one."""
    runs = []
    for event in events:
        now = ("[DONE]",) if event == "[DONE]" else tuple(sorted(shape(event)))
        if not runs or runs[-1] != now:
            runs.append(now)
    return runs


def counts(reply):
    """What both must agree on: reasons and counts, of the last event that has them."""
    found = {}
    for part in reply if isinstance(reply, list) else [reply]:
        if isinstance(part, dict):
            for choice in part.get("choices") or []:
                if choice.get("finish_reason"):
                    found[f"finish_reason {choice.get('index')}"] = choice["finish_reason"]
            for key, value in (part.get("usage") or {}).items():
                if isinstance(value, int):
                    found["usage." + key] = value
    return found


def text_of(reply):
    parts = reply if isinstance(reply, list) else [reply]
    text = ""
    for part in parts:
        for choice in part.get("choices") or [] if isinstance(part, dict) else []:
            message = choice.get("message") or choice.get("delta") or choice
            text += message.get("content") or message.get("text") or ""
    return text


def differences(ours, theirs):
    """Lines that say what differs."""
    found = []
    if ours[0] != theirs[0]:
        found.append(f"status {ours[0]}, llama-server {theirs[0]}")
    streams = [isinstance(r, list) and r and isinstance(r[-1], (dict, str)) for r in (ours[1], theirs[1])]
    if all(streams) and "[DONE]" in (ours[1][-1], theirs[1][-1]):
        a, b = stages(ours[1]), stages(theirs[1])
        if len(a) != len(b):
            found.append(f"{len(a)} stages, llama-server {len(b)}")
        pairs = [(f"stage {i} ", set(x), set(y)) for i, (x, y) in enumerate(zip(a, b))]
    else:
        pairs = [("", shape(ours[1]), shape(theirs[1]))]
    for where, a, b in pairs:
        found += [f"{where}+ {path}" for path in sorted(a - b)]
        found += [f"{where}- {path}" for path in sorted(b - a)]
    if text_of(ours[1]) == text_of(theirs[1]):
        a, b = counts(ours[1]), counts(theirs[1])
        found += [f"{key}: {a.get(key)}, llama-server {b.get(key)}" for key in sorted(a.keys() | b.keys())
                  if a.get(key) != b.get(key)]
    return found


def main():
    ours, theirs, model = sys.argv[1:]
    servers = [
        Server("pagezip", [ours, "serve", "--model", model, "--context", "2048", "--threads", "2"]),
        Server("llama-server", [theirs, "-m", model, "-c", "2048", "-t", "2", "-np", "1", "--no-webui"])]
    open_ones, same = 0, 0
    used = set()
    try:
        for server in servers:
            server.wait()
        for case, (method, path, body) in CASES.items():
            replies = [server.call(method, path, body) for server in servers]
            same += text_of(replies[0][1]) == text_of(replies[1][1])
            for line in differences(*replies):
                rule = next((r for r in DELIBERATE if fnmatch.fnmatchcase(f"{case} {line}", r)), None)
                used.add(rule)
                open_ones += rule is None
                print(f"{case:26} {line}" + (f"   ({DELIBERATE[rule]})" if rule else "   <--"))
    finally:
        for server in servers:
            server.stop()
    for rule in DELIBERATE.keys() - used:
        print(f"no longer there: {rule}")
    print(f"{len(CASES)} requests, {same} with equal texts, {open_ones} differences that nobody meant")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
