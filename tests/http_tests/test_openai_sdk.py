"""OpenAI's own Python client, unmodified, against a real model."""
import openai
import pytest

HANDBOOK = "handbook.md"


@pytest.fixture(scope="module")
def client(smollm2):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{smollm2.port}/v1", api_key="any",
                         max_retries=0)


QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "pagezip"


def test_chat(client):
    reply = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0,
                                           max_completion_tokens=12)
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    again = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0,
                                           max_completion_tokens=12)
    assert again.choices[0].message.content == reply.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert reply._request_id.startswith("req_")


def test_streaming_is_the_same_text(client):
    whole = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0,
                                           max_tokens=12)
    chunks = list(client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=12, stream=True,
        stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_logprobs_and_choices(client):
    reply = client.chat.completions.create(model="smollm2", messages=QUESTION, n=3, seed=5,
                                           temperature=1, max_tokens=5, logprobs=True,
                                           top_logprobs=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    for choice in reply.choices:
        assert len(choice.logprobs.content) == 5
        for token in choice.logprobs.content:
            assert token.logprob <= 0 and len(token.top_logprobs) == 2
            assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
    again = client.chat.completions.create(model="smollm2", messages=QUESTION, n=3, seed=5,
                                           temperature=1, max_tokens=5)
    assert [c.message.content for c in again.choices] == [c.message.content for c in reply.choices]


def test_completions(client):
    reply = client.completions.create(model="smollm2", prompt=["One, two, three,", "A, B, C,"],
                                      temperature=0, max_tokens=4, echo=True)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text.startswith("One, two, three,")
    assert reply.choices[1].text.startswith("A, B, C,")
    tokens = client.completions.create(model="smollm2", prompt="One, two, three,", temperature=0,
                                       max_tokens=4, logprobs=1)
    assert len(tokens.choices[0].logprobs.tokens) == 4
    assert tokens.choices[0].text == reply.choices[0].text.removeprefix("One, two, three,")


def test_likelihoods_as_lm_eval_asks_for_them(client, smollm2):
    """Its `local-completions` sends token ids, and takes [context length : -1] of what comes."""
    def encode(text):
        return smollm2.request("POST", "/tokenize", {"content": text}).json["tokens"]

    context = encode("The capital of France is")
    continuations = [" Paris", " banana", " Berlin"]
    reply = client.completions.create(
        model="smollm2", prompt=[context + encode(text) for text in continuations], echo=True,
        max_tokens=1, logprobs=1, temperature=0, seed=1234)
    sums, greedy = [], []
    for choice in reply.choices:
        theirs = slice(len(context), -1)
        logprobs = choice.logprobs.token_logprobs[theirs]
        assert logprobs
        sums.append(sum(logprobs))
        greedy.append(all(logprob == max(tops.values()) for logprob, tops in zip(
            logprobs, choice.logprobs.top_logprobs[theirs])))
    assert sums[0] > sums[2] > sums[1]
    assert greedy == [True, False, False]


def test_progress_of_a_long_prompt(client):
    long = [{"role": "user", "content": "one two three four five six seven " * 250}]
    chunks = list(client.chat.completions.create(
        model="smollm2", messages=long, temperature=0, max_tokens=2, stream=True,
        extra_body={"return_progress": True}))
    told = [c.prompt_progress for c in chunks if getattr(c, "prompt_progress", None)]
    assert len(told) > 2
    processed = [p["processed"] for p in told]
    assert processed == sorted(set(processed)) and processed[0] < told[0]["total"]
    assert processed[-1] == told[-1]["total"]
    assert chunks[len(told)].choices[0].delta.role == "assistant"
    # Who doesn't ask for usage may take the first choice of every chunk.
    assert all(len(c.choices) == 1 for c in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].timings["prompt_n"] > 0


def test_stop(client):
    reply = client.completions.create(model="smollm2", prompt="1, 2, 3, 4,", temperature=0,
                                      max_tokens=30, stop=[", 7"])
    assert reply.choices[0].finish_reason == "stop"
    assert ", 7" not in reply.choices[0].text


def test_a_document_as_a_file_part(client, smollm2):
    text = ("The lighthouse of Port Ellis was built in 1893. The keeper of the lighthouse is Martha "
            "Quill, who lives there with two cats. The lamp burns whale oil.")
    document = smollm2.request("POST", "/v1/documents", {
        "content": text, "compression": {"ratios": [1, 0.7]}}, {"Prefer": "wait=120"}).json
    assert document["status"] == "ready"
    messages = [{"role": "user", "content": [
        {"type": "file", "file": {"file_id": document["id"]}},
        {"type": "text", "text": "What does the lamp burn?"}]}]
    reply = client.chat.completions.create(model="smollm2", messages=messages, temperature=0,
                                           max_tokens=24, extra_body={"keep_ratio": 1})
    assert "whale oil" in reply.choices[0].message.content
    assert reply.usage.prompt_tokens_details.cached_tokens >= document["usage"]["tokens"]
    assert reply.document["keep_ratio"] == 1
    smallest = client.chat.completions.create(model="smollm2", messages=messages, temperature=0,
                                              max_tokens=24)
    assert smallest.document["keep_ratio"] == 0.7
    # A conversation goes on behind it, and finds its own beginning.
    messages += [{"role": "assistant", "content": smallest.choices[0].message.content},
                 {"role": "user", "content": "When was the lighthouse built?"}]
    more = client.chat.completions.create(model="smollm2", messages=messages, temperature=0,
                                          max_tokens=24)
    details = more.usage.prompt_tokens_details
    assert details.cached_tokens > details.document_tokens


def test_errors_are_its_exceptions(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="smollm2", messages=[])
    assert bad.value.param == "messages" and bad.value.code == "invalid_value"
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="smollm2", prompt="a b c d " * 20000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as tools:
        client.chat.completions.create(model="smollm2", messages=QUESTION, tools=[
            {"type": "function", "function": {"name": "f", "parameters": {}}}])
    assert tools.value.status_code == 501


def test_keys_and_retries(start_server, tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice key-of-alice per-minute=60\n")
    server = start_server(tiny_model, "--pool-mib", "16", "--api-key-file", str(keys))
    url = f"http://127.0.0.1:{server.port}/v1"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
    patient = openai.OpenAI(base_url=url, api_key="key-of-alice", max_retries=5)
    for _ in range(61):  # one more than the minute has: the last one waits for its turn
        patient.models.list()
    hasty = openai.OpenAI(base_url=url, api_key="key-of-alice", max_retries=0)
    with pytest.raises(openai.RateLimitError):
        for _ in range(10):
            hasty.models.list()
