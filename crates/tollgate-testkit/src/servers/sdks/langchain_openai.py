"""LangChain's client of OpenAI: sdk.py URL KEY MODEL SCENARIO..., prints a JSON object with the result of each."""
import json, sys
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, key, model, *scenarios = sys.argv[1:]
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"

def client(**options):
    return ChatOpenAI(base_url=f"{url}/openai/v1", api_key=key, model=model, **{"max_retries": 0, **options})

def failure(error):
    return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}

def usage_of(message):
    return message.usage_metadata and [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]

def plain(text="Say something.", **options):
    answer = client(**options).invoke(text)
    return {"text": answer.content, "usage": usage_of(answer)}

def stream():
    said, chunks, usage = "", 0, None
    for chunk in client().stream("Say something."):
        said, chunks = said + chunk.content, chunks + 1
        usage = usage_of(chunk) or usage
    return {"text": said, "chunks": chunks, "usage": usage}

def tools():
    offered = client().bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Paris?")]
    first = offered.invoke(messages)
    call = first.tool_calls[0]
    messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    return {"name": call["name"], "arguments": call["args"], "text": offered.invoke(messages).content}

def image():
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return {"text": client().invoke([HumanMessage(content=content)]).content}

def embeddings():
    shared = OpenAIEmbeddings(base_url=f"{url}/openai/v1", api_key=key, model=model, check_embedding_ctx_length=False)
    return {"vectors": [len(vector) for vector in shared.embed_documents(["one", "two words"])]}

def error():
    return plain("Please fail with 400.")

def timeout():
    return plain("Please be slow.", timeout=0.4)

def retry():
    return plain("Please fail twice.", max_retries=4)

results = {}
for name in scenarios:
    try:
        results[name] = globals()[name]()
    except openai.OpenAIError as error_:
        results[name] = failure(error_)
print(json.dumps(results))
