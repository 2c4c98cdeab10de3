"""The Python packages of OpenAI, Anthropic, ollama and Cohere, and litellm, against `carat serve` with the bundled model.

    python3 -m venv venv && venv/bin/pip install openai anthropic ollama cohere litellm
    ./carat serve -p 8080 &
    venv/bin/python tools/server_clients.py http://127.0.0.1:8080

With --pictures it checks pictures alone, against a model that sees some, whatever it answers:

    ./carat serve -p 8080 -m MODEL.gguf &      its mmproj file lies beside it
    venv/bin/python tools/server_clients.py --pictures http://127.0.0.1:8080

With --sounds it checks sounds alone in the same way, against a model that hears.

With --rerank it checks /v1/rerank, /v2/rerank and /v1/score alone, against a reranker.

It checks chat, streams, a round trip with a tool, structured output, thinking, responses, embeddings and errors,
prints a line per check and exits with 1 if one failed. Not part of the build or of the tests.
"""
import base64
import io
import json
import os
import struct
import sys
import tempfile
import traceback
import wave
import zlib

import anthropic
import ollama
import openai

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-up on the internet
if not {"--pictures", "--sounds"} & set(sys.argv):
    import litellm  # noqa: E402

ASK = [{"role": "user", "content": "What is carat?"}]
GREEDY = {"extra_body": {"temperature": 0}}  # newer packages of Anthropic have no parameter for it
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.",
                                         "parameters": WEATHER}}
QUESTION = "What is the weather in Paris?"


def chat(**kw):
    kw = {"model": "any", "messages": ASK, "temperature": 0, **kw}
    return oai.chat.completions.create(**kw)


def check_chat():
    r = chat()
    assert "carat" in r.choices[0].message.content and r.choices[0].finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    return r.choices[0].message.content


def check_stream():
    whole = chat().choices[0].message.content
    said, usage = "", None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for c in chunk.choices:
            said += c.delta.content or ""
    assert said == whole and usage.completion_tokens > 0


def check_tools_of_clients():
    """Tools that are no functions: their calls are items of their own types."""
    for tool, item in (({"type": "custom", "name": "apply"}, "custom_tool_call"), ({"type": "shell"}, "shell_call"),
                       ({"type": "local_shell"}, "local_shell_call"), ({"type": "apply_patch"}, "apply_patch_call")):
        ask = {"model": "any", "input": "List the files.", "tools": [tool], "tool_choice": "required",
               "max_output_tokens": 400}
        assert oai.responses.create(**ask).output[-1].type == item
        with oai.responses.stream(**ask) as s:
            assert s.get_final_response().output[-1].type == item
    for tool in ({"type": "bash_20250124", "name": "bash"}, {"type": "memory_20250818", "name": "memory"}):
        r = ant.messages.create(model="any", max_tokens=400, messages=ASK, tools=[tool],
                                tool_choice={"type": "tool", "name": tool["name"]})
        assert r.content[-1].name == tool["name"]
    r = oai.responses.create(model="any", input="x", tools=[{"type": "web_search"}], max_output_tokens=4)
    assert "web_search" in r.warnings[0] and not r.tools
    r = ant.messages.create(model="any", max_tokens=4, messages=ASK,
                            tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert "web_search" in r.warnings[0]


def check_n_and_seed():
    wild = {"n": 3, "temperature": 3, "top_p": 1, "seed": 7, "max_tokens": 12, "extra_body": {"top_k": 0}}
    r, again = chat(**wild), chat(**wild)
    texts = [c.message.content for c in r.choices]
    assert texts == [c.message.content for c in again.choices] and len(set(texts)) > 1


def check_stop_and_length():
    r = chat(stop=["native"])
    assert r.choices[0].finish_reason == "stop" and "native" not in r.choices[0].message.content
    assert chat(max_tokens=3).choices[0].finish_reason == "length"


def check_logprobs():
    r = chat(logprobs=True, top_logprobs=3, max_tokens=8)
    entries = r.choices[0].logprobs.content
    assert "".join(e.token for e in entries) == r.choices[0].message.content
    assert all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries)
    assert entries[0].token == entries[0].top_logprobs[0].token


def check_logit_bias():
    first = chat(logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    banned = chat(logit_bias={str(first.model_extra["id"]): -100}, logprobs=True, max_tokens=64)
    assert banned.choices[0].logprobs.content[0].token != first.token


def check_tool_round_trip():
    messages = [{"role": "user", "content": QUESTION}]
    r = chat(messages=messages, tools=[TOOL])
    m = r.choices[0].message
    assert r.choices[0].finish_reason == "tool_calls", r.choices[0]
    call = m.tool_calls[0]
    assert call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)
    messages += [m, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    r = chat(messages=messages, tools=[TOOL])
    assert r.choices[0].message.content
    cached = r.usage.prompt_tokens_details.cached_tokens
    return f"{call.function.arguments} -> {r.choices[0].message.content!r}, {cached} cached"


def check_tool_stream():
    calls = {}
    for chunk in chat(messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], stream=True):
        for c in chunk.choices:
            for t in c.delta.tool_calls or []:
                calls.setdefault(t.index, ["", ""])
                calls[t.index][0] += t.function.name or ""
                calls[t.index][1] += t.function.arguments or ""
            last = c.finish_reason
    assert last == "tool_calls" and calls[0][0] == "get_weather" and json.loads(calls[0][1])


def check_tool_none():
    r = chat(messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], tool_choice="none")
    assert not r.choices[0].message.tool_calls and r.choices[0].message.content


def check_tool_required():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        r = chat(messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], tool_choice=choice)
        call = r.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and json.loads(call.function.arguments) is not None


def check_thinking():
    r = chat(messages=[{"role": "user", "content": "What is 4821 + 377?"}], reasoning_effort="high")
    m = r.choices[0].message
    assert m.model_extra.get("reasoning_content") and m.content
    assert r.usage.completion_tokens_details.reasoning_tokens > 0
    return m.content


def check_json_schema():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
                                               "age": {"type": "integer", "minimum": 0, "maximum": 120}},
              "required": ["name", "age"], "additionalProperties": False}
    r = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
    value = json.loads(r.choices[0].message.content)
    assert set(value) == {"name", "age"} and isinstance(value["age"], int)
    r = chat(response_format={"type": "json_object"}, max_tokens=300)
    return f"{value}, {r.choices[0].message.content[:60]!r}"


def check_prefill():
    r = chat(messages=ASK + [{"role": "assistant", "content": "carat is a native"}])
    assert r.choices[0].message.content.startswith(" inference"), r.choices[0].message.content


def check_completions():
    r = oai.completions.create(model="any", prompt=["carat is", "A"], max_tokens=5, temperature=0, n=2)
    assert len(r.choices) == 4 and r.choices[0].text == r.choices[1].text
    text = "".join(c.choices[0].text for c in oai.completions.create(
        model="any", prompt="carat is", max_tokens=5, temperature=0, stream=True) if c.choices)
    assert text == r.choices[0].text


def check_responses():
    r = oai.responses.create(model="any", input="What is carat?", temperature=0)
    assert r.status == "completed" and "carat" in r.output_text
    kinds, said = [], ""
    for e in oai.responses.create(model="any", input="What is carat?", temperature=0, stream=True):
        kinds.append(e.type)
        said += e.delta if e.type == "response.output_text.delta" else ""
    assert said == r.output_text and kinds[0] == "response.created" and kinds[-1] == "response.completed"
    r = oai.responses.create(model="any", input="What is carat?", temperature=0, max_output_tokens=4)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"


def check_responses_tool():
    tool = {"type": "function", "name": "get_weather", "description": "Get the weather of a city.",
            "parameters": WEATHER}
    history = [{"role": "user", "content": QUESTION}]
    r = oai.responses.create(model="any", input=history, tools=[tool], temperature=0)
    call = next(i for i in r.output if i.type == "function_call")
    history += r.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    r = oai.responses.create(model="any", input=history, tools=[tool], temperature=0)
    assert r.output_text
    with oai.responses.stream(model="any", input=QUESTION, tools=[tool], temperature=0) as s:
        final = s.get_final_response() if not list(s) else s.get_final_response()
    assert final.output[-1].type == "function_call"


def check_responses_logprobs():
    ask = {"model": "any", "input": "What is carat?", "temperature": 0, "top_logprobs": 2,
           "include": ["message.output_text.logprobs"]}
    part = oai.responses.create(**ask).output[-1].content[0]
    assert "".join(t.token for t in part.logprobs) == part.text
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in part.logprobs)
    tokens, kinds = "", set()
    for e in oai.responses.create(**ask, stream=True, extra_body={"return_progress": True}):
        kinds.add(e.type)
        if e.type == "response.output_text.delta":
            tokens += "".join(t.token for t in e.logprobs)
    assert tokens == part.text and "response.prompt_progress" in kinds, kinds


def check_allowed_tools():
    other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
    allow = {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    r = chat(messages=[{"role": "user", "content": QUESTION}], tools=[TOOL, other], tool_choice=allow)
    assert [c.function.name for c in r.choices[0].message.tool_calls][0] == "get_time"


def check_prefill_in_form():
    r = chat(messages=ASK + [{"role": "assistant", "content": '{"city": "'}], max_tokens=200,
             response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
                 **WEATHER, "properties": {"city": {"type": "string", "maxLength": 12}},
                 "additionalProperties": False}}})
    assert list(json.loads('{"city": "' + r.choices[0].message.content)) == ["city"]


def check_cut_call():
    r = chat(messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], max_tokens=9)
    c = r.choices[0]
    assert c.finish_reason == "length" and not c.message.tool_calls and not c.message.content, c


def check_messages():
    r = ant.messages.create(model="any", max_tokens=100, messages=ASK, **GREEDY, system="Be brief.")
    assert r.stop_reason == "end_turn" and r.content[0].text
    with ant.messages.stream(model="any", max_tokens=100, messages=ASK, **GREEDY, system="Be brief.") as s:
        said = "".join(s.text_stream)
        final = s.get_final_message()
    assert said == r.content[0].text == final.content[0].text
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens > 10
    n = ant.messages.count_tokens(model="any", messages=ASK, system="Be brief.").input_tokens
    assert n == r.usage.input_tokens + r.usage.cache_read_input_tokens
    r = ant.messages.create(model="any", max_tokens=100, messages=ASK, **GREEDY, stop_sequences=["native"])
    assert r.stop_reason == "stop_sequence" and r.stop_sequence == "native"


def check_messages_tool():
    tool = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": WEATHER}
    messages = [{"role": "user", "content": QUESTION}]
    r = ant.messages.create(model="any", max_tokens=200, messages=messages, tools=[tool], **GREEDY)
    assert r.stop_reason == "tool_use"
    use = next(b for b in r.content if b.type == "tool_use")
    messages += [{"role": "assistant", "content": r.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
    with ant.messages.stream(model="any", max_tokens=200, messages=messages, tools=[tool], **GREEDY) as s:
        final = s.get_final_message()
    assert final.content[0].text
    return f"{use.input} -> {final.content[0].text!r}"


def check_messages_thinking():
    with ant.messages.stream(model="any", max_tokens=2000, **GREEDY,
                             thinking={"type": "enabled", "budget_tokens": 1024},
                             messages=[{"role": "user", "content": "What is 4821 + 377?"}]) as s:
        final = s.get_final_message()
    assert [b.type for b in final.content] == ["thinking", "text"], final.content


def refused(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError("not refused")


def check_errors():
    e = refused(openai.BadRequestError, lambda: chat(temperature=-1))
    assert e.param == "temperature" and "temperature" in e.message
    refused(openai.BadRequestError, lambda: chat(messages=[]))
    e = refused(openai.BadRequestError, lambda: chat(messages=[{"role": "user", "content": "word " * 60000}]))
    assert e.code == "context_length_exceeded"
    refused(openai.BadRequestError, lambda: oai.embeddings.create(model="any", input=""))
    refused(openai.BadRequestError, lambda: oai.responses.create(model="any", input="x", previous_response_id="r"))
    refused(anthropic.BadRequestError, lambda: ant.messages.create(model="any", max_tokens=0, messages=ASK))
    refused(anthropic.NotFoundError, lambda: ant.get("/v1/messages/none", cast_to=object))


def check_embeddings():
    both = oai.embeddings.create(model="any", input=["a fox", "an otter"])  # base64, by default
    plain = oai.embeddings.create(model="any", input="an otter", encoding_format="float")
    v = both.data[1].embedding
    assert abs(sum(x * x for x in v) - 1) < 1e-5 and len(v) == len(plain.data[0].embedding)
    assert max(abs(a - b) for a, b in zip(v, plain.data[0].embedding)) < 1e-7
    few = oai.embeddings.create(model="any", input=[[1, 2], [3]], dimensions=16)
    assert [len(d.embedding) for d in few.data] == [16, 16] and few.usage.prompt_tokens == 3


def ask(**kw):
    return oll.chat(model="any", messages=ASK, options={"temperature": 0}, **{"think": False, **kw})


def check_ollama_chat():
    whole = ask()
    last, said = None, ""
    for last in ask(stream=True):
        said += last.message.content
    assert said == whole.message.content and "carat" in said
    assert last.done and last.done_reason == "stop" and last.eval_count == whole.eval_count
    thought = oll.chat(model="any", messages=[{"role": "user", "content": "What is 4821 + 377?"}],
                       options={"temperature": 0})
    assert thought.message.thinking and thought.message.content
    return said


def check_ollama_format():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert set(json.loads(ask(format=schema).message.content)) == {"n"}
    assert isinstance(json.loads(ask(format="json").message.content), dict)


def check_ollama_tools():
    messages = [{"role": "user", "content": QUESTION}]
    r = oll.chat(model="any", messages=messages, tools=[TOOL], options={"temperature": 0}, think=False)
    call = r.message.tool_calls[0].function
    assert call.name == "get_weather" and call.arguments["city"] == "Paris"
    messages += [r.message, {"role": "tool", "tool_name": call.name, "content": "sunny"}]
    r = oll.chat(model="any", messages=messages, tools=[TOOL], options={"temperature": 0}, think=False)
    assert r.message.content
    return f"{call.arguments} -> {r.message.content!r}"


def check_ollama_generate():
    r = oll.generate(model="any", prompt="Once upon", raw=True, options={"temperature": 0, "num_predict": 5})
    assert r.done_reason == "length" and r.eval_count == 5
    r = oll.generate(model="any", prompt="Say hi", think=False, logprobs=True, top_logprobs=2)
    assert r.logprobs and len(r.logprobs[0].top_logprobs) == 2
    assert oll.generate(model="any").done_reason == "load"


def check_ollama_models():
    name = oll.list().models[0].model
    assert oll.show(name).capabilities and oll.ps().models[0].expires_at
    a, b = oll.embed(model="any", input=["a fox", "an otter"]).embeddings
    assert len(a) == len(b) and abs(sum(x * x for x in a) - 1) < 1e-5
    assert len(oll.embeddings(model="any", prompt="a fox").embedding) == len(a)
    e = refused(ollama.ResponseError, lambda: oll.push("any"))
    assert e.status_code == 501
    e = refused(ollama.ResponseError, lambda: ask(think="hugely"))
    assert e.status_code == 400 and "think" in e.error
    return name


def check_litellm():
    for kind in ("ollama_chat", "ollama"):
        kw = {"model": kind + "/any", "api_base": URL, "messages": ASK, "temperature": 0, "max_tokens": 60}
        whole = litellm.completion(**kw)
        said = "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **kw))
        assert whole.choices[0].message.content and said and whole.usage.completion_tokens > 0
    e = litellm.embedding(model="ollama/any", api_base=URL, input=["a fox"])
    assert len(e.data[0]["embedding"]) > 0


def picture(width, height, colour):
    """A PNG file of one colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(colour) * width) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


RED = picture(64, 48, (200, 20, 20))
BASE64 = base64.b64encode(RED).decode()
URI = "data:image/png;base64," + BASE64
TINY = {"image_tokens": 70, "temperature": 0}


def look_chat(detail="auto", n=1, url=URI, **kw):
    parts = [{"type": "text", "text": "What is it?"}]
    parts += [{"type": "image_url", "image_url": {"url": url, "detail": detail}}] * n
    return oai.chat.completions.create(model="any", messages=[{"role": "user", "content": parts}], max_tokens=3,
                                       **{"extra_body": TINY, **kw})


def look_openai():
    words = chat(messages=[{"role": "user", "content": "What is it?"}], max_tokens=3).usage.prompt_tokens
    one, two = look_chat().usage.prompt_tokens, look_chat(n=2).usage.prompt_tokens
    assert one > words + 40 and two - one == one - words
    assert look_chat("low", extra_body={"temperature": 0}).usage.prompt_tokens == one  # low is 70
    streamed = [c for c in look_chat(stream=True, stream_options={"include_usage": True})]
    assert streamed[-1].usage.prompt_tokens == one
    e = refused(openai.BadRequestError, lambda: look_chat(n=17))
    assert "more than 16 pictures" in str(e), e
    e = refused(openai.BadRequestError, lambda: look_chat(url="https://example.com/a.png"))
    assert "--media-urls" in str(e), e
    return f"{one - words} tokens a picture"


def look_responses():
    def ask(parts):
        return oai.responses.create(model="any", input=[{"role": "user", "content": parts}], max_output_tokens=3,
                                    extra_body=TINY).usage.input_tokens
    text = {"type": "input_text", "text": "What is it?"}
    assert ask([text, {"type": "input_image", "image_url": URI, "detail": "auto"}]) > ask([text]) + 40


def look_messages():
    def ask(parts):
        m = [{"role": "user", "content": parts}]
        n = ant.messages.count_tokens(model="any", messages=m, extra_body=TINY).input_tokens
        u = ant.messages.create(model="any", messages=m, max_tokens=3, extra_body=TINY).usage
        assert u.input_tokens + (u.cache_read_input_tokens or 0) == n
        return n
    text = {"type": "text", "text": "What is it?"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    assert ask([image, text]) > ask([text]) + 40


def look_ollama():
    assert "vision" in oll.show(oll.list().models[0].model).capabilities
    def ask(**kw):
        r = oll.chat(model="any", messages=[{"role": "user", "content": "What is it?", **kw}],
                     options={"num_predict": 3, "temperature": 0}, think=False)
        return r.prompt_eval_count
    with tempfile.NamedTemporaryFile(suffix=".png") as f:
        f.write(RED)
        f.flush()
        assert ask(images=[f.name]) == ask(images=[RED]) == ask(images=[BASE64]) > ask() + 40
    r = oll.generate(model="any", prompt="What is it?", images=[RED], options={"num_predict": 3}, think=False)
    assert r.prompt_eval_count > 40


def sound(seconds, rate=16000):
    """A WAV file of noise."""
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(bytes(i * 7919 % 251 for i in range(2 * int(seconds * rate))))
    return out.getvalue()


def hear_openai():
    def ask(parts, **kw):
        return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is it?"}] + parts}], max_tokens=3,
                    extra_body={"temperature": 0}, **kw)
    part = lambda s: {"type": "input_audio", "input_audio": {"data": base64.b64encode(s).decode(), "format": "wav"}}
    words = ask([]).usage.prompt_tokens
    one, two = ask([part(sound(1))]).usage.prompt_tokens, ask([part(sound(1)), part(sound(1, 44100))]).usage.prompt_tokens
    assert one == words + 27 and two == one + 27  # 25 and two around them
    e = refused(openai.BadRequestError, lambda: ask([part(sound(1)[:100])]))
    assert "ends in the middle" in str(e), e
    e = refused(openai.BadRequestError, lambda: ask([part(sound(0.1))] * 17))
    assert "more than 16" in str(e), e


def hear_transcriptions():
    def ask(file, **kw):
        return oai.audio.transcriptions.create(model="any", file=file, temperature=0, **kw)
    short = ask(("a.wav", sound(1)))
    assert isinstance(short.text, str)
    assert ask(("a.wav", sound(1)), response_format="text").strip() == short.text.strip()
    long = ask(("a.wav", sound(65)), response_format="verbose_json", language="en", prompt="Names: Ada.")
    assert len(long.segments) == 3 and abs(long.duration - 65) < 0.01 and long.segments[-1].end == long.duration
    assert all(a.end == b.start and b.start - a.start <= 30 for a, b in zip(long.segments, long.segments[1:]))
    for kw, says in ({"response_format": "srt"}, "response_format"), ({"stream": True}, "stream"), \
            ({"timestamp_granularities": ["word"]}, "timestamp_granularities"):
        e = refused(openai.BadRequestError, lambda: ask(("a.wav", sound(1)), **kw))
        assert says in str(e), e
    e = refused(openai.BadRequestError, lambda: ask(("a.txt", b"words")))
    assert "sound is read from" in str(e), e


def hear_ollama():
    assert "audio" in oll.show(oll.list().models[0].model).capabilities
    def ask(**kw):
        r = oll.chat(model="any", messages=[{"role": "user", "content": "What is it?", **kw}],
                     options={"num_predict": 3, "temperature": 0}, think=False)
        return r.prompt_eval_count
    assert ask(images=[sound(1)]) == ask() + 27


def rank_documents():
    """All clients give the same order and scores."""
    import cohere
    docs, query = ["An otter is an animal.", "Paris is a city.", "A carat is a unit of mass."], "What is a carat?"
    key = {"base_url": URL, "api_key": "none"}
    one = cohere.Client(**key).rerank(model="any", query=query, documents=docs)
    two = cohere.ClientV2(**key).rerank(model="any", query=query, documents=docs, top_n=2)
    lite = litellm.rerank(model="hosted_vllm/any", api_base=URL, api_key="none", query=query, documents=docs)
    got = [(r.index, r.relevance_score) for r in one.results]
    assert [s for _, s in got] == sorted((s for _, s in got), reverse=True) and sorted(i for i, _ in got) == [0, 1, 2]
    assert [(r.index, r.relevance_score) for r in two.results] == got[:2]
    assert [(r["index"], r["relevance_score"]) for r in lite.results] == got
    score = oai.post("/score", body={"model": "any", "text_1": query, "text_2": docs}, cast_to=object)
    assert [d["score"] for d in score["data"]] == [s for _, s in sorted(got)]


failed = 0


if __name__ == "__main__":
    kind = "look_" if "--pictures" in sys.argv else "hear_" if "--sounds" in sys.argv else "rank_" if "--rerank" in sys.argv else "check_"
    urls = [w for w in sys.argv[1:] if not w.startswith("--")]
    URL = urls[0] if urls else "http://127.0.0.1:8080"
    oai = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    ant = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    oll = ollama.Client(host=URL)
    for name, check in [(k, v) for k, v in list(globals().items()) if k.startswith(kind) and k != "look_chat"]:
        try:
            print(f"ok    {name[len(kind):]}  {check() or ''}")
        except Exception:
            failed += 1
            print(f"FAIL  {name[len(kind):]}")
            traceback.print_exc(limit=-2)
    sys.exit(1 if failed else 0)
