"""The Python client of OpenAI: sdk.py URL KEY MODEL SCENARIO..., prints a JSON object with the result of each."""
import asyncio, json, sys
import openai

url, key, model, *scenarios = sys.argv[1:]
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}

def client(**options):
    return openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, **{"max_retries": 0, **options})

def say(text):
    return [{"role": "user", "content": text}]

def failure(error):
    return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}

def plain(text="Say something.", **options):
    answer = client(**options).chat.completions.create(model=model, messages=say(text))
    return {"text": answer.choices[0].message.content, "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens]}

def stream(text="Say something.", include_usage=False):
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    said, chunks, usage = "", 0, None
    for chunk in client().chat.completions.create(model=model, messages=say(text), stream=True, **options):
        chunks += 1
        if chunk.usage:
            usage = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens]
        if chunk.choices or not include_usage:
            said += chunk.choices[0].delta.content or ""
    return {"text": said, "chunks": chunks, "usage": usage}

def stream_usage():
    return stream(include_usage=True)

def tools():
    messages = say("What is the weather in Paris?")
    first = client().chat.completions.create(model=model, messages=messages, tools=[TOOL]).choices[0].message
    call = first.tool_calls[0]
    messages += [first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = client().chat.completions.create(model=model, messages=messages, tools=[TOOL])
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments), "text": second.choices[0].message.content}

def image():
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    answer = client().chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
    return {"text": answer.choices[0].message.content}

def responses():
    answer = client().responses.create(model=model, input="Say something.")
    said, usage = "", None
    for event in client().responses.create(model=model, input="Say something.", stream=True):
        if event.type == "response.output_text.delta":
            said += event.delta
        if event.type == "response.completed":
            usage = [event.response.usage.input_tokens, event.response.usage.output_tokens]
    return {"text": answer.output_text, "streamed": said, "usage": usage}

def embeddings():
    answer = client().embeddings.create(model=model, input=["one", "two words"])
    return {"vectors": [len(item.embedding) for item in answer.data], "usage": [answer.usage.prompt_tokens, 0]}

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
    answer = client().chat.completions.create(model=model, messages=say("Please drip."), stream=True)
    for chunk in answer:
        said += chunk.choices[0].delta.content or ""
        if said.count(" ") == 3:
            break
    answer.close()
    return {"text": said}

def burst(count):
    async def all_of_them():
        shared = openai.AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=key)
        calls = [shared.chat.completions.create(model=model, messages=say(f"Call {n}")) for n in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)
    answers = asyncio.run(all_of_them())
    errors = [failure(answer) for answer in answers if isinstance(answer, BaseException)]
    return {"calls": count, "errors": errors}

results = {}
for name in scenarios:
    name, _, count = name.partition(":")
    try:
        results[name] = globals()[name](*([int(count)] if count else []))
    except openai.OpenAIError as error_:
        results[name] = failure(error_)
print(json.dumps(results))
