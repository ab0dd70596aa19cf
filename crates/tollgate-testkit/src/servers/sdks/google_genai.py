"""The Python client of Gemini: sdk.py URL KEY MODEL SCENARIO..., prints a JSON object with the result of each."""
import asyncio, base64, json, sys
from google import genai
from google.genai import errors, types

url, key, model, *scenarios = sys.argv[1:]
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CITY = types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")}, required=["city"])
TOOLS = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[
    types.FunctionDeclaration(name="get_weather", description="The weather of a city.", parameters=CITY)])])

clients = []  # A client that nothing refers to closes its connections, also those of a call under way.

def client(**options):
    clients.append(genai.Client(api_key=key, http_options=types.HttpOptions(base_url=f"{url}/gemini", **options)))
    return clients[-1]

def failure(error):
    return {"error": type(error).__name__, "status": getattr(error, "code", None), "message": str(error)}

def usage_of(answer):
    return [answer.usage_metadata.prompt_token_count, answer.usage_metadata.candidates_token_count]

def plain(text="Say something.", **options):
    answer = client(**options).models.generate_content(model=model, contents=text)
    return {"text": answer.text, "usage": usage_of(answer)}

def stream():
    said, chunks, usage = "", 0, None
    for chunk in client().models.generate_content_stream(model=model, contents="Say something."):
        said, chunks = said + (chunk.text or ""), chunks + 1
        usage = usage_of(chunk) if chunk.usage_metadata else usage
    return {"text": said, "chunks": chunks, "usage": usage}

def tools():
    shared = client()
    contents = [types.Content(role="user", parts=[types.Part(text="What is the weather in Paris?")])]
    first = shared.models.generate_content(model=model, contents=contents, config=TOOLS)
    call = first.function_calls[0]
    result = types.Part.from_function_response(name=call.name, response={"result": "sunny"})
    contents += [first.candidates[0].content, types.Content(role="user", parts=[result])]
    second = shared.models.generate_content(model=model, contents=contents, config=TOOLS)
    return {"name": call.name, "arguments": call.args, "text": second.text}

def image():
    part = types.Part.from_bytes(data=base64.b64decode(IMAGE), mime_type="image/png")
    return {"text": client().models.generate_content(model=model, contents=["What is this?", part]).text}

def embeddings():
    answer = client().models.embed_content(model=model, contents=["one", "two words"])
    return {"vectors": [len(item.values) for item in answer.embeddings]}

def count_tokens():
    return {"usage": [client().models.count_tokens(model=model, contents="Say something.").total_tokens, 0]}

def models():
    return {"models": [item.name for item in client().models.list()]}

def error():
    return plain("Please fail with 400.")

def timeout():
    return plain("Please be slow.", timeout=400)

def retry():
    again = types.HttpRetryOptions(attempts=5, initial_delay=0.01, max_delay=0.02)
    return plain("Please fail twice.", retry_options=again)

def leave():
    """Leaves a stream after three words."""
    said = ""
    shared = client()
    for chunk in shared.models.generate_content_stream(model=model, contents="Please drip."):
        said += chunk.text or ""
        if said.count(" ") == 3:
            break
    shared.close()
    return {"text": said}

def burst(count):
    async def all_of_them():
        shared = client()
        calls = [shared.aio.models.generate_content(model=model, contents=f"Call {n}") for n in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)
    answers = asyncio.run(all_of_them())
    errors_ = [failure(answer) for answer in answers if isinstance(answer, BaseException)]
    return {"calls": count, "errors": errors_}

results = {}
for name in scenarios:
    name, _, count = name.partition(":")
    try:
        results[name] = globals()[name](*([int(count)] if count else []))
    except Exception as error_:  # A time-out is an error of the HTTP library.
        results[name] = failure(error_)
print(json.dumps(results))
