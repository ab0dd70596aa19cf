"""The transports, with the real SDKs of OpenAI, Anthropic and Gemini against the fake of all three."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import types as gemini

import tollgate_rs.httpx
from adapters.conftest import Fake, bucket, policy
from tollgate_rs import Gate, InvalidInput, UnknownPolicy
from tollgate_rs.httpx2 import AsyncTransport, Transport

Start = Callable[..., Fake]

UNITS = ("requests", "tokens", "input_tokens", "output_tokens")


def gate_of(requests: int = 100, tokens: int = 1_000_000) -> Gate:
    limits = [bucket("requests", requests)]
    limits += [bucket(unit, tokens, unit=unit) for unit in UNITS[1:]]
    return Gate.memory([policy("llm", *limits)])


def used(gate: Gate, subject: str = "p7") -> dict[str, int]:
    return {standing.name: standing.used for standing in gate.standing_sync("llm", subject)}


def openai_of(fake: Fake, gate: Gate, retries: int = 0, **options: Any) -> openai.OpenAI:
    transport = Transport(gate, **{"policy": "llm", "subject": "p7", **options})
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(base_url=f"{fake.url}/openai/v1", api_key="k", http_client=http, max_retries=retries)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    messages = [{"role": "user", "content": "Say hello."}]
    return client.chat.completions.create(**{"model": "gpt-4o", "messages": messages, "max_tokens": 50, **options})


def test_openai_is_settled_with_the_usage_of_the_answer(fake: Start) -> None:
    gate = gate_of()
    reply = ask(openai_of(fake("fake-llm"), gate))
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
    assert used(gate) == {
        "requests": 1,
        "tokens": usage.total_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
    }


def test_openai_streams_are_settled_and_do_not_change_for_the_client(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    plain = ask(openai_of(llm, gate))
    before = used(gate)
    chunks = list(ask(openai_of(llm, gate), stream=True))
    # Usage was asked for and removed: no chunk without choices, none with usage.
    assert chunks and all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == plain.choices[0].message.content
    assert used(gate)["tokens"] - before["tokens"] == plain.usage.total_tokens


def test_openai_streams_with_usage_keep_it(fake: Start) -> None:
    gate = gate_of()
    chunks = list(ask(openai_of(fake("fake-llm"), gate), stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage is not None
    assert used(gate)["tokens"] == chunks[-1].usage.total_tokens


def test_openai_responses_and_embeddings_are_settled(fake: Start) -> None:
    gate = gate_of()
    client = openai_of(fake("fake-llm"), gate)
    response = client.responses.create(model="gpt-4o", input="Say hello.", max_output_tokens=40)
    assert response.usage is not None
    assert used(gate)["tokens"] == response.usage.total_tokens
    before = used(gate)
    embedding = client.embeddings.create(model="text-embedding-3-small", input="a text")
    assert used(gate)["tokens"] - before["tokens"] == embedding.usage.total_tokens
    assert used(gate)["output_tokens"] == before["output_tokens"]


def test_a_list_of_models_costs_nothing(fake: Start) -> None:
    gate = gate_of()
    assert list(openai_of(fake("fake-llm"), gate).models.list())
    assert used(gate) == dict.fromkeys(UNITS, 0)


def test_anthropic_is_settled_plain_and_streamed(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    http = httpx2.Client(transport=Transport(gate, policy="llm", subject="p7"))
    client = anthropic.Anthropic(base_url=f"{llm.url}/anthropic", api_key="k", http_client=http)
    ask: dict[str, Any] = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Say hello."}],
    }
    reply = client.messages.create(**ask)
    first = used(gate)
    assert first["output_tokens"] == reply.usage.output_tokens > 0
    assert first["input_tokens"] == reply.usage.input_tokens
    with client.messages.stream(**ask) as stream:
        text = stream.get_final_text()
        message = stream.get_final_message()
    assert text
    second = used(gate)
    assert second["requests"] == 2
    assert second["output_tokens"] - first["output_tokens"] == message.usage.output_tokens
    assert second["tokens"] - first["tokens"] == message.usage.input_tokens + message.usage.output_tokens


def gemini_of(fake: Fake, gate: Gate, **options: Any) -> Any:
    settings: dict[str, Any] = {"policy": "llm", "subject": "p7", **options}
    client = httpx2.Client(transport=Transport(gate, **settings), timeout=60)
    asynchronous = httpx2.AsyncClient(transport=AsyncTransport(gate, **settings), timeout=60)
    http = gemini.HttpOptions(
        base_url=f"{fake.url}/gemini", httpx_client=client, httpx_async_client=asynchronous
    )
    return genai.Client(api_key="k", http_options=http)


def test_gemini_is_settled_plain_and_streamed(fake: Start) -> None:
    gate = gate_of()
    client = gemini_of(fake("fake-llm"), gate)
    reply = client.models.generate_content(model="gemini-2.5-flash", contents="Say hello.")
    first = used(gate)
    # The tokens per minute of Gemini are those of the input.
    assert first["tokens"] == reply.usage_metadata.prompt_token_count
    assert first["output_tokens"] == reply.usage_metadata.candidates_token_count
    chunks = list(client.models.generate_content_stream(model="gemini-2.5-flash", contents="Say hello."))
    last = chunks[-1].usage_metadata
    assert used(gate)["output_tokens"] - first["output_tokens"] == last.candidates_token_count
    assert used(gate)["requests"] == 2


def test_async_clients_are_settled_plain_and_streamed(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")

    async def calls() -> tuple[Any, Any, list[Any]]:
        settings: dict[str, Any] = {"policy": "llm", "subject": "p7"}
        async with httpx2.AsyncClient(transport=AsyncTransport(gate, **settings), timeout=60) as http:
            chat = openai.AsyncOpenAI(base_url=f"{llm.url}/openai/v1", api_key="k", http_client=http)
            claude = anthropic.AsyncAnthropic(base_url=f"{llm.url}/anthropic", api_key="k", http_client=http)
            messages: Any = [{"role": "user", "content": "Say hello."}]
            plain = await chat.chat.completions.create(model="gpt-4o", messages=messages)
            message = await claude.messages.create(model="claude-sonnet-4-5", max_tokens=50, messages=messages)
            stream = await chat.chat.completions.create(model="gpt-4o", messages=messages, stream=True)
            return plain, message, [chunk async for chunk in stream]

    plain, message, chunks = asyncio.run(calls())
    assert chunks
    expected = 2 * plain.usage.total_tokens + message.usage.input_tokens + message.usage.output_tokens
    assert used(gate)["tokens"] == expected
    assert used(gate)["requests"] == 3


def test_sdks_on_httpx_work_as_well(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    http = httpx.Client(transport=tollgate_rs.httpx.Transport(gate, policy="llm", subject="p7"), timeout=60)
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    reply = http.post(f"{llm.url}/openai/v1/chat/completions", json=body, headers={"authorization": "Bearer k"})
    assert used(gate)["tokens"] == reply.json()["usage"]["total_tokens"]

    async def streamed() -> None:
        transport = tollgate_rs.httpx.AsyncTransport(gate, policy="llm", subject="p8")
        async with httpx.AsyncClient(transport=transport, timeout=60) as client:
            headers = {"authorization": "Bearer k"}
            stream = client.stream("POST", f"{llm.url}/openai/v1/chat/completions", json=body | {"stream": True}, headers=headers)
            async with stream as reply:
                async for _ in reply.aiter_lines():
                    pass

    asyncio.run(streamed())
    assert used(gate, "p8")["requests"] == 1 and 0 < used(gate, "p8")["tokens"]


def test_a_denied_call_is_the_rate_limit_error_of_the_sdk_and_is_not_sent(fake: Start) -> None:
    gate = gate_of(requests=1)
    llm = fake("fake-llm")
    client = openai_of(llm, gate)
    ask(client)
    with pytest.raises(openai.RateLimitError) as denied:
        ask(client)
    response = denied.value.response
    assert response.headers["x-tollgate-refused"] == "denied"
    # An hour: the SDK is told not to sleep that long.
    assert 3000 < int(response.headers["retry-after"]) and response.headers["x-should-retry"] == "false"
    assert "requests" in denied.value.message
    claude = anthropic.Anthropic(
        base_url=f"{llm.url}/anthropic",
        api_key="k",
        max_retries=0,
        http_client=httpx2.Client(transport=Transport(gate, policy="llm", subject="p7")),
    )
    with pytest.raises(anthropic.RateLimitError):
        claude.messages.create(model="claude-sonnet-4-5", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(genai.errors.ClientError) as refused:
        gemini_of(llm, gate).models.generate_content(model="gemini-2.5-flash", contents="hi")
    assert refused.value.code == 429
    assert llm.get("/tally")["calls"] == 1


def test_a_call_that_never_fits_is_denied_at_once(fake: Start) -> None:
    gate = gate_of(tokens=100)
    client = openai_of(fake("fake-llm"), gate, wait=60)
    with pytest.raises(openai.RateLimitError) as denied:
        ask(client, max_tokens=5000)
    assert "retry-after" not in denied.value.response.headers
    # An output that is not declared takes at most a quarter of the limit, so it never prevents a call.
    assert ask(client, max_tokens=openai.omit).usage.total_tokens > 0


def test_a_429_of_the_provider_gives_the_tokens_back_and_closes_the_limit(fake: Start) -> None:
    gate = gate_of()
    # Another program has used up the quota of the provider.
    llm = fake("fake-llm", "--rpm", "1")
    ask(openai_of(llm, gate_of()))
    client = openai_of(llm, gate)
    with pytest.raises(openai.RateLimitError):
        ask(client)
    assert used(gate)["tokens"] == 0
    calls = llm.get("/tally")["calls"]
    # The provider is left alone until it said it has room.
    with pytest.raises(openai.RateLimitError) as denied:
        ask(client)
    assert denied.value.response.headers["x-tollgate-refused"] == "denied"
    assert llm.get("/tally")["calls"] == calls


@pytest.mark.parametrize(("status", "kept"), [(400, False), (500, True), (503, False)])
def test_an_error_keeps_the_estimate_only_if_the_call_may_have_been_processed(
    fake: Start, status: int, kept: bool
) -> None:
    gate = gate_of()
    client = openai_of(fake("fake-llm", "--status", str(status)), gate)
    with pytest.raises(openai.APIStatusError):
        ask(client)
    assert used(gate)["requests"] == 1
    assert (0 < used(gate)["tokens"]) == kept


def test_a_provider_that_cannot_be_reached_costs_nothing(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    client = openai_of(llm, gate)
    llm.process.terminate()
    llm.process.wait()
    with pytest.raises(openai.APIConnectionError):
        ask(client)
    assert used(gate) == dict.fromkeys(UNITS, 0)


def test_a_stream_that_the_client_leaves_costs_what_was_streamed(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm", "--length", "400")
    stream = ask(openai_of(llm, gate), stream=True, max_tokens=1000)
    next(iter(stream))
    estimate = used(gate)["output_tokens"]
    assert estimate == 1000
    stream.close()
    assert 0 <= used(gate)["output_tokens"] < 500
    assert 0 < used(gate)["input_tokens"]


def test_async_streams_that_are_left_or_cancelled_are_settled(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm", "--length", "400", "--pause", "20ms")

    async def calls() -> int:
        async with httpx2.AsyncClient(transport=AsyncTransport(gate, policy="llm", subject="p7"), timeout=60) as http:
            chat = openai.AsyncOpenAI(base_url=f"{llm.url}/openai/v1", api_key="k", http_client=http)

            async def read() -> None:
                messages: Any = [{"role": "user", "content": "Say hello."}]
                stream = await chat.chat.completions.create(
                    model="gpt-4o", messages=messages, stream=True, max_tokens=1000
                )
                async for _ in stream:
                    started.set()

            started = asyncio.Event()
            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return (await gate.standing("llm", "p7"))[0].used

    assert asyncio.run(calls()) == 1
    # The input, and what was streamed of the output: not the estimate.
    assert 0 < used(gate)["input_tokens"] and used(gate)["output_tokens"] < 500


def test_several_charges_and_policies_by_model(fake: Start) -> None:
    gate = Gate.memory([policy("user", bucket("rpd", 10)), policy("gpt-4o", bucket("tpm", 10_000, unit="tokens"))])
    seen: list[str] = []

    def charges(model: str) -> list[tuple[str, str]]:
        seen.append(model)
        return [("user", "u1"), (model, "account")]

    reply = ask(openai_of(fake("fake-llm"), gate, policy=None, subject=None, charges=charges))
    assert seen == ["gpt-4o"]
    assert gate.standing_sync("user", "u1")[0].used == 1
    assert gate.standing_sync("gpt-4o", "account")[0].used == reply.usage.total_tokens


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_store_that_is_away_lets_calls_through_or_refuses_them(fake: Start, mode: str) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    client = openai_of(llm, gate, on_unavailable=mode)
    gate.close()
    if mode == "open":
        assert ask(client).usage.total_tokens > 0
    else:
        with pytest.raises(openai.InternalServerError) as refused:
            ask(client)
        assert refused.value.status_code == 503
        assert llm.get("/tally")["calls"] == 0


def test_a_call_that_is_not_covered_costs_one_request(fake: Start) -> None:
    gate = gate_of()
    llm = fake("fake-llm")
    http = httpx2.Client(transport=Transport(gate, policy="llm", subject="p7"))
    http.post(f"{llm.url}/openai/v1/files", content=b"data")
    assert used(gate) == {"requests": 1, "tokens": 0, "input_tokens": 0, "output_tokens": 0}


def test_a_compressed_answer_is_not_asked_for(fake: Start) -> None:
    gate = gate_of()
    reply = ask(openai_of(fake("fake-llm", "--gzip"), gate))
    assert used(gate)["tokens"] == reply.usage.total_tokens


def test_a_body_passes_while_it_is_read() -> None:
    """No buffering: a piece is passed on before the next one exists."""
    gate = gate_of()
    produced: list[int] = []

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for number in range(3):
                produced.append(number)
                yield b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

    class Provider(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            assert json.loads(request.read())["stream_options"] == {"include_usage": True}
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

    http = httpx2.Client(transport=Transport(gate, policy="llm", subject="p7", transport=Provider()))
    body = {"model": "m", "stream": True, "messages": []}
    with http.stream("POST", "http://provider/v1/chat/completions", json=body) as response:
        pieces = response.iter_raw()
        next(pieces)
        assert produced == [0]
        assert len(list(pieces)) == 2


def test_wrong_settings_are_refused() -> None:
    gate = gate_of()
    with pytest.raises(UnknownPolicy, match="known: llm"):
        Transport(gate, policy="gpt", subject="s")
    with pytest.raises(InvalidInput, match="and not both"):
        Transport(gate, policy="llm")
    with pytest.raises(ValueError, match="tokens"):
        Transport(gate, policy="llm", subject="s", usage={"tokens": "prompt *"})
