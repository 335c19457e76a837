"""Tokens of texts: /tokenize, and their log-probabilities by `echo` with `logprobs` in /v1/completions."""
import json

import pytest

TEXT = "a b c 123 abc d e f"
TOPS = 20


def complete(server, prompt=TEXT, **fields):
    return server.request("POST", "/v1/completions", {
        "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0,
        "ignore_eos": True, **fields})


def tokens_of(server, text):
    return server.request("POST", "/tokenize", {"content": text}).json["tokens"]


def scored(server, prompt=TEXT, **fields):
    """The logprobs of each choice."""
    reply = complete(server, prompt, **fields)
    assert reply.status == 200, reply.body
    for index, choice in enumerate(reply.json["choices"]):
        assert choice["index"] == index
        lists = choice["logprobs"]
        assert len({len(lists[name]) for name in (
            "tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    return [choice["logprobs"] for choice in reply.json["choices"]]


def test_the_prompts_tokens_have_theirs(tiny):
    prompt = tokens_of(tiny, TEXT)
    reply = complete(tiny, logprobs=3).json
    choice = reply["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(prompt) + 1
    assert reply["usage"]["prompt_tokens"] == len(prompt)
    assert reply["usage"]["completion_tokens"] == 1
    assert choice["text"].startswith(TEXT)
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for token, logprob, tops in list(zip(logprobs["tokens"], logprobs["token_logprobs"],
                                         logprobs["top_logprobs"]))[1:]:
        assert logprob < 0 and 3 <= len(tops) <= 4
        assert tops[token] == logprob
    offsets = logprobs["text_offset"] + [len(choice["text"])]
    for token, begin, end in zip(logprobs["tokens"], offsets, offsets[1:]):
        assert choice["text"][begin:end] == token


def test_they_are_those_of_a_completion_of_what_stands_before(tiny):
    prompt = tokens_of(tiny, TEXT)
    logprobs = scored(tiny, prompt, logprobs=TOPS)[0]
    for i in range(1, len(prompt)):
        before = complete(tiny, prompt[:i], logprobs=TOPS, echo=False).json
        best = before["choices"][0]["logprobs"]["top_logprobs"][0]
        assert best.items() <= logprobs["top_logprobs"][i].items()


def test_lists_of_prompts(tiny):
    texts = [TEXT, "x y z", "1 2 3 4"]
    alone = [scored(tiny, text)[0] for text in texts]
    assert scored(tiny, texts) == alone
    assert scored(tiny, [tokens_of(tiny, text) for text in texts]) == alone


def test_nothing_but_the_prompt(tiny):
    whole = scored(tiny)[0]
    reply = complete(tiny, max_tokens=0).json
    choice = reply["choices"][0]
    assert choice["text"] == TEXT and choice["finish_reason"] == "length"
    assert choice["logprobs"] == {name: values[:-1] for name, values in whole.items()}
    assert reply["usage"]["completion_tokens"] == 0
    plain = complete(tiny, max_tokens=0, logprobs=None).json["choices"][0]
    assert plain["text"] == TEXT and plain["logprobs"] is None
    refused = complete(tiny, max_tokens=0, echo=False)
    assert refused.status == 400 and refused.json["error"]["param"] == "max_tokens"


def test_choices_share_them(tiny):
    length = len(tokens_of(tiny, TEXT))
    choices = scored(tiny, n=3, max_tokens=4, temperature=2, seed=1)
    assert len({json.dumps(choice["token_logprobs"][:length]) for choice in choices}) == 1
    assert len({json.dumps(choice["tokens"][length:]) for choice in choices}) > 1


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_stream_has_the_same(tiny, max_tokens):
    prompts = [TEXT, "x y z"]
    whole = complete(tiny, prompts, max_tokens=max_tokens, n=2, seed=1).json["choices"]
    events = complete(tiny, prompts, max_tokens=max_tokens, n=2, seed=1, stream=True).body.decode()
    chunks = [json.loads(line.removeprefix("data: ")) for line in events.splitlines()
              if line.startswith("data: {")]
    for choice in whole:
        parts = [part for chunk in chunks for part in chunk["choices"]
                 if part["index"] == choice["index"]]
        assert parts[0]["text"] == prompts[choice["index"] // 2], "the echo comes first"
        assert parts[0]["finish_reason"] is None
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            streamed = [part["logprobs"][name] for part in parts if part["logprobs"]]
            assert sum(streamed, []) == values
        assert parts[-1]["finish_reason"] == "length"


def test_no_cached_prefix_is_read(tiny):
    text = TEXT + " g h i j k l m n o p q r s t u v w x y z" * 3
    first = complete(tiny, text)
    again = complete(tiny, text)
    assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.json["choices"] == first.json["choices"]
    plain = complete(tiny, text, logprobs=None)
    assert plain.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert plain.json["choices"][0]["text"] == first.json["choices"][0]["text"]


def test_behind_a_document(tiny):
    document = tiny.request("POST", "/v1/documents", {
        "content": "a b c d e f g h " * 20, "compression": {"ratio": 0.5}},
        {"Prefer": "wait=60"}).json
    behind = scored(tiny, document_id=document["id"])[0]
    assert behind["token_logprobs"][0] is None
    without = scored(tiny)[0]
    assert behind["tokens"][:-1] == without["tokens"][:-1]
    assert behind["token_logprobs"] != without["token_logprobs"]


def test_an_end_token_is_the_last_entry(tiny):
    """So that the last one is never the prompt's: lm-eval leaves it out."""
    length = len(tokens_of(tiny, TEXT))
    for seed in range(100):
        choices = complete(tiny, n=32, temperature=100, seed=1000 * seed,
                           ignore_eos=False).json["choices"]
        assert all(len(choice["logprobs"]["tokens"]) == length + 1 for choice in choices)
        ended = [choice for choice in choices if choice["finish_reason"] == "stop"]
        if ended:
            assert ended[0]["text"] == TEXT
            return
    pytest.fail("no end token in all these tries")


def test_a_reply_has_a_bound(tiny):
    refused = complete(tiny, ["a b c d e f " * 20] * 64, n=64, logprobs=20)
    assert refused.status == 400 and refused.json["error"]["param"] == "logprobs"


def test_tokens_and_their_pieces(tiny):
    plain = tiny.request("POST", "/tokenize", {"content": "Hello, wörld!"}).json
    pieces = tiny.request("POST", "/tokenize", {"content": "Hello, wörld!", "with_pieces": True}).json
    assert [p["id"] for p in pieces["tokens"]] == plain["tokens"]
    whole = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])
                     for p in pieces["tokens"])
    assert whole.decode() == "Hello, wörld!"
