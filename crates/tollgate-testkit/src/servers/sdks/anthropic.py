"""The Python client of Anthropic: sdk.py URL KEY MODEL SCENARIO..., prints a JSON object with the result of each."""
import asyncio, json, sys
import anthropic

url, key, model, *scenarios = sys.argv[1:]
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {"name": "get_weather", "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}

def client(**options):
    return anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key, **{"max_retries": 0, **options})

def say(text):
    return [{"role": "user", "content": text}]

def failure(error):
    return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}

def plain(text="Say something.", **options):
    answer = client(**options).messages.create(model=model, max_tokens=100, messages=say(text))
    return {"text": answer.content[0].text, "usage": [answer.usage.input_tokens, answer.usage.output_tokens]}

def stream():
    said, chunks = "", 0
    with client().messages.stream(model=model, max_tokens=100, messages=say("Say something.")) as events:
        for text in events.text_stream:
            said, chunks = said + text, chunks + 1
        end = events.get_final_message()
    return {"text": said, "chunks": chunks, "usage": [end.usage.input_tokens, end.usage.output_tokens]}

def tools():
    messages = say("What is the weather in Paris?")
    first = client().messages.create(model=model, max_tokens=100, messages=messages, tools=[TOOL])
    call = first.content[0]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages += [{"role": "assistant", "content": [call.model_dump(exclude_none=True)]}, {"role": "user", "content": [result]}]
    second = client().messages.create(model=model, max_tokens=100, messages=messages, tools=[TOOL])
    return {"name": call.name, "arguments": call.input, "text": second.content[0].text}

def image():
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    answer = client().messages.create(model=model, max_tokens=100, messages=[{"role": "user", "content": content}])
    return {"text": answer.content[0].text}

def count_tokens():
    return {"usage": [client().messages.count_tokens(model=model, messages=say("Say something.")).input_tokens, 0]}

def models():
    return {"models": [item.id for item in client().models.list()]}

def error():
    return plain("Please fail with 400.")

def timeout():
    return plain("Please be slow.", timeout=0.4)

def retry():
    return plain("Please fail twice.", max_retries=4)

def leave():
    """Leaves a stream after three words."""
    said = ""
    with client().messages.stream(model=model, max_tokens=100, messages=say("Please drip.")) as events:
        for text in events.text_stream:
            said += text
            if said.count(" ") == 3:
                break
    return {"text": said}

def burst(count):
    async def all_of_them():
        shared = anthropic.AsyncAnthropic(base_url=f"{url}/anthropic", api_key=key)
        calls = [shared.messages.create(model=model, max_tokens=100, messages=say(f"Call {n}")) for n in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)
    answers = asyncio.run(all_of_them())
    errors = [failure(answer) for answer in answers if isinstance(answer, BaseException)]
    return {"calls": count, "errors": errors}

results = {}
for name in scenarios:
    name, _, count = name.partition(":")
    try:
        results[name] = globals()[name](*([int(count)] if count else []))
    except anthropic.AnthropicError as error_:
        results[name] = failure(error_)
print(json.dumps(results))
