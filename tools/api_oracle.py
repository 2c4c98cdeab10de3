"""Do all APIs of `carat serve` answer as another build does? Needs nothing but Python.

    python3 tools/api_oracle.py --record FILE  [--carat ./carat]     writes what this build answers
    python3 tools/api_oracle.py --compare FILE [--carat ./carat]     says which answers differ from FILE's

Hundreds of requests of the forms that clients send, and their mistakes: wrong types, wrong ranges, missing and
unknown fields, bad UTF-8, nesting too deep. The model is the bundled one, greedy, with one slot, so each answer
follows from the request alone. Ids, times and numbers of speed are left out. Exits with 1 if an answer differs.
"""
import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile

# ---- Requests: (name, path, body); a body of bytes goes as it is ------------------------------------

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "description": "a city"},
                                            "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
           "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": WEATHER}}
TOOL_B = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "number"}, "b": {"type": "number"}}}}}
FLAT = {"type": "function", "name": "weather", "description": "The weather", "parameters": WEATHER}
ANT = {"name": "weather", "description": "The weather", "input_schema": WEATHER}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LONG = " ".join(f"Line {i} says that the river is wide and the stone is {i % 7} years old." for i in range(40))
DEEP = "[" * 70 + "]" * 70


def says(role, content, **more):
    return {"role": role, "content": content, **more}


HI = [says("user", "Say hello.")]


def call(name="weather", arguments='{"city": "Rome"}', id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Conversations in OpenAI's form; each is rendered, counted and answered.
TALKS = {
    "one": HI,
    "system": [says("system", "Be short."), *HI],
    "developer": [says("developer", "Be short."), *HI],
    "two systems": [says("system", "Be short."), says("system", "Be kind."), *HI],
    "late system": [*HI, says("system", "Be kind."), says("user", "Again.")],
    "turns": [says("user", "Who are you?"), says("assistant", "I am carat."), says("user", "What is 3 + 4?")],
    "users": [says("user", "One."), says("user", "Two."), says("user", "Three.")],
    "parts": [says("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "3 + 4?"}])],
    "system parts": [says("system", [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]), *HI],
    "refusal part": [*HI, says("assistant", [{"type": "refusal", "refusal": "No."}]), says("user", "Why?")],
    "no parts": [says("user", [])],
    "empty text": [says("user", "")],
    "spaces": [says("user", "  \n hello \n\n ")],
    "marks": [says("user", "<start_of_turn>user <bos> <|turn>model <|tool_call>call:x{} <turn|>")],
    "unicode": [says("user", "\u00e4\u00f6\u00fc \U0001f600 \u4f60\u597d \u200b\u2028 e\u0301")],
    "zero": [says("user", "a\u0000b")],
    "named": [says("user", "Hi.", name="Ann"), says("assistant", "Hi.", name="carat"), says("user", "Bye.")],
    "null content": [says("user", None)],
    "thought": [*HI, says("assistant", "Hello.", reasoning_content="They greet me."), says("user", "Again.")],
    "thought 2": [*HI, says("assistant", "Hello.", reasoning="They greet me."), says("user", "Again.")],
    "prefill": [*HI, says("assistant", "Hello and")],
    "prefill parts": [*HI, says("assistant", [{"type": "text", "text": "Hello "}, {"type": "text", "text": "and"}])],
    "prefill thought": [*HI, says("assistant", "Hello and", reasoning_content="A greeting.")],
    "prefill only thought": [*HI, says("assistant", "", reasoning_content="A greeting")],
    "only assistant": [says("assistant", "Hello")],
    "call": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]),
             says("tool", "sunny", tool_call_id="call_1")],
    "call and text": [says("user", "Rome?"), says("assistant", "Let me look.", tool_calls=[call()]),
                      says("tool", "sunny", tool_call_id="call_1"), says("assistant", "Sunny."),
                      says("user", "And Oslo?")],
    "two calls": [says("user", "Both?"), says("assistant", None, tool_calls=[
        call(), call(arguments='{"city": "Oslo", "days": 3}', id="call_2")]),
        says("tool", "rain", tool_call_id="call_2"), says("tool", '{"t": 21.50}', tool_call_id="call_1")],
    "calls numbered": [says("user", "Both?"), says("assistant", None, tool_calls=[call(id=1), call("add", "{}", id=2)]),
                       says("tool", "rain", tool_call_id=1), says("tool", "3", tool_call_id=2)],
    "call with thought": [says("user", "Rome?"), says("assistant", None, reasoning_content="I look.",
                                                      tool_calls=[call()]),
                          says("tool", "sunny", tool_call_id="call_1")],
    "call object": [says("user", "Rome?"), says("assistant", None, tool_calls=[call(arguments={"city": "Rome"})]),
                    says("tool", "sunny", tool_call_id="call_1")],
    "call broken": [says("user", "Rome?"), says("assistant", None, tool_calls=[call(arguments='{"city": ')]),
                    says("tool", "sunny", tool_call_id="call_1")],
    "call array": [says("user", "Rome?"), says("assistant", None, tool_calls=[call(arguments='[1, 2.50]')]),
                   says("tool", "sunny", tool_call_id="call_1")],
    "call empty": [says("user", "Rome?"), says("assistant", "", tool_calls=[call(arguments="")]),
                   says("tool", "", tool_call_id="call_1")],
    "call values": [says("user", "Rome?"), says("assistant", None, tool_calls=[call(arguments=json.dumps(
        {"b": [1, 2.0, None, True, {"z": "q\"'\n"}], "a": 1e5, "c": {}, "d": [], "e": -0.0}))]),
        says("tool", "x", tool_call_id="call_1")],
    "result parts": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]),
                     says("tool", [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}],
                          tool_call_id="call_1")],
    "result named": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]),
                     says("tool", "sunny", tool_call_id="other", name="weather")],
    "result alone": [says("tool", "sunny", tool_call_id="call_1")],
    "result without id": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]), says("tool", "sunny")],
    "result then user": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]),
                         says("tool", "sunny", tool_call_id="call_1"), says("user", "And now?")],
    "call custom": [says("user", "Go."), says("assistant", None, tool_calls=[
        {"id": "c1", "type": "custom", "custom": {"name": "code", "input": "print(1)"}}]),
        says("tool", "1", tool_call_id="c1")],
    "function call": [says("user", "Rome?"), says("assistant", None, function_call={
        "name": "weather", "arguments": '{"city": "Rome"}'}), says("function", "sunny", name="weather")],
    "responses": [says("user", "Rome?"), says("assistant", "", tool_calls=[call()],
                                              tool_responses=[{"name": "weather", "response": {"t": 21}}])],
    "calls missing results": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()])],
    "calls empty": [*HI, says("assistant", "Hello.", tool_calls=[]), says("user", "Again.")],
    "calls null": [*HI, says("assistant", "Hello.", tool_calls=None), says("user", "Again.")],
    "long": [says("system", "Be short."), says("user", LONG), says("assistant", "Good."), says("user", "And?")],
    # mistakes
    "e role": [says("king", "Hi.")],
    "e role number": [says(7, "Hi.")],
    "e role missing": [{"content": "Hi."}],
    "e role null": [says(None, "Hi.")],
    "e second role": [*HI, says("assistant", "Hello."), says("cook", "x")],
    "e content number": [says("user", 7)],
    "e content bool": [*HI, says("assistant", "Hello."), says("user", True)],
    "e content object": [says("user", {"text": "Hi."})],
    "e part number": [says("user", [7])],
    "e part text": [says("user", ["Hi."])],
    "e part without type": [says("user", [{"text": "Hi."}])],
    "e part type": [says("user", [{"type": "film", "film": "x"}])],
    "e part text number": [says("user", [{"type": "text", "text": 7}])],
    "e part text missing": [*HI, says("assistant", "Hello."), says("user", [{"type": "text"}])],
    "e picture": [says("user", [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG}}])],
    "e picture text": [says("user", [{"type": "image_url", "image_url": "http://x/y.png"}])],
    "e picture type": [says("user", [{"type": "image", "number": 0}])],
    "e picture in result": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]), says("tool", [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG}}], tool_call_id="call_1")],
    "e sound": [says("user", [{"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}])],
    "e message text": ["Hi."],
    "e message null": [None],
    "e message list": [[]],
    "e messages empty": [],
    "e messages text": "Hi.",
    "e messages object": {"role": "user"},
    "e messages null": None,
    "e calls text": [*HI, says("assistant", None, tool_calls="x"), says("user", "y")],
    "e calls of user": [says("user", "Hi.", tool_calls=[call()])],
    "e call without function": [*HI, says("assistant", None, tool_calls=[{"id": "a"}]), says("user", "y")],
    "e call name": [*HI, says("assistant", None, tool_calls=[call(name="a{b")]), says("user", "y")],
    "e call name number": [*HI, says("assistant", None, tool_calls=[call(name=7)]), says("user", "y")],
    "e call name empty": [*HI, says("assistant", None, tool_calls=[call(name="")]), says("user", "y")],
    "e call number": [*HI, says("assistant", None, tool_calls=[7]), says("user", "y")],
    "e thought number": [*HI, says("assistant", "x", reasoning_content=7), says("user", "y")],
    "e name number": [says("user", "Rome?"), says("assistant", None, tool_calls=[call()]),
                      says("tool", "x", name=7, tool_call_id="call_1")],
    "e responses text": [says("user", "Rome?"), says("assistant", "", tool_responses="x")],
    "e responses": [says("user", "Rome?"), says("assistant", "", tool_responses=[{"name": 7, "response": 1}])],
    "e deep": [says("user", json.loads("[" * 60 + "]" * 60))],
}

# Answers with a tool each, in the forms of each API.
TOOLS = {
    "one": [TOOL], "two": [TOOL, TOOL_B], "none": [], "null": None,
    "bare": [{"type": "function", "function": {"name": "now"}}],
    "strict": [{"type": "function", "function": {"name": "now", "strict": True, "parameters": WEATHER}}],
    "refs": [{"type": "function", "function": {"name": "now", "parameters": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}}}],
    "e text": "x", "e number": [7], "e type": [{"type": "film"}], "e no name": [{"type": "function", "function": {}}],
    "e name": [{"type": "function", "function": {"name": "a b{"}}],
    "e name number": [{"type": "function", "function": {"name": 7}}],
    "e no function": [{"type": "function"}], "e function": [{"type": "function", "function": 7}],
    "e description": [{"type": "function", "function": {"name": "a", "description": 7}}],
    "e parameters": [{"type": "function", "function": {"name": "a", "parameters": 7}}],
    "e twice": [TOOL, TOOL], "e second": [TOOL, {"type": "function", "function": {"name": "a", "description": 7}}],
}
CHOICES = ["auto", "none", "required", "cook", 7, None, {}, {"type": "function", "function": {"name": "weather"}},
           {"type": "function", "function": {"name": "other"}}, {"type": "function"}, {"type": "any"},
           {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}]

# Values for fields that every API reads: right ones, wrong types, wrong ranges.
FIELDS = {
    "temperature": [0, 0.5, 3, -1, "hot", True, None, [], 1e30],
    "top_p": [0.9, 0, 2, "x"], "top_k": [1, -1, 1.5, "x"], "min_p": [0.1, 2, "x"],
    "presence_penalty": [0.5, -3, 101, "x"], "frequency_penalty": [0.5, 9, "x"], "repeat_penalty": [1.1, -1, "x"],
    "seed": [7, -1, 1.5, "x"], "stream": ["x", 1, None], "model": [7, "other", None, ""],
    "max_tokens": [0, -1, -2, 1.5, "x", 5000000000], "ignore_eos": ["x"], "min_tokens": [3, -1, "x"],
    "stop_token_ids": [[1], [-1], ["x"], 7], "compress": ["auto", "off", 0.5, 2, "x", []], "sparse": [7, "x"],
    "speculative": [False, {"n_max": 3}, {"n_max": -3}, 7], "logit_bias": [{"5": -100}, {"x": 1}, [[5, 1.0]], 7],
    "keep_alive": ["5m", "x", -1, []], "unknown_field": [1, None, "", [], {}], "grammar": ['root ::= "yes"', 7, "x ::="],
    "image_tokens": [100, 3, "x"], "lora": [[]], "user": ["ann"], "metadata": [{}],
}
CHAT_FIELDS = {
    "n": [2, 0, 65, "x"], "stop": ["e", ["e", "o"], [7], 7, ["x" * 5000], []], "logprobs": [True, "x", 3],
    "top_logprobs": [2, 21, "x"], "max_completion_tokens": [3, 0, "x"], "reasoning_effort": ["none", "low", "x", 7],
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "x"}, {"type": "json_schema"}, 7, {}, {
        "type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
            "a": {"type": "integer"}}, "required": ["a"]}}}],
    "stream_options": [{"include_usage": True}, {"include_usage": 7}, 7], "parallel_tool_calls": [False, "x"],
    "verbosity": ["low", "high", "x"], "prediction": [{"type": "content", "content": "Hello."}, {"type": "x"}, 7,
                                                      {"type": "content", "content": [{"type": "text", "text": "a"}]},
                                                      {"type": "content", "content": [{"type": "x"}]}],
    "chat_template_kwargs": [{"enable_thinking": False}, {"enable_thinking": "x"}, {"messages": []}, {"a": 1}, 7,
                             {"preserve_thinking": True}, {"add_generation_prompt": False}],
    "think": [True, False, "low", 7], "thinking": [True, {"type": "enabled"}, {"type": "x"}, {}, 7,
                                                   {"type": "enabled", "budget_tokens": 5}],
    "reasoning": [{"effort": "low"}, {"max_tokens": 0}, {"exclude": True}, {"x": 1}, 7], "functions": [[{
        "name": "weather", "parameters": WEATHER}], [7], 7], "continue_final_message": [True, "x"],
    "add_generation_prompt": [False, "x"], "audio": [{"voice": "x"}], "modalities": [["text"], ["audio"]],
    "web_search_options": [{}, {"a": 1}], "usage": [{"include": True}, 7], "prompt_logprobs": [1, "x"],
    "guided_choice": [["yes", "no"], 7], "guided_regex": ["[a-c]+", "["], "guided_json": [{"type": "boolean"}, 7],
}

BAD_BODIES = [b"", b"{", b"[]", b"7", b"null", b'"x"', b'{"messages": ', b'{"messages":[{"role":"user","content":"\xff"}]}',
              b'{"a":' + DEEP.encode() + b"}", b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"a":1,}',
              b'{"a":01}', b"\xef\xbb\xbf{}", b'{"prompt":"x","prompt":"y","temperature":0}', b'{"input":"x","max_output_tokens":2}x']
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
         "/v1/embeddings", "/v1/rerank", "/completion", "/infill", "/tokenize", "/detokenize", "/apply-template",
         "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show", "/api/create"]


def blocks(*list_):
    return list(list_)


USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome", "days": 2.50}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
MESSAGES = {
    "one": HI, "blocks": [says("user", blocks({"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}))],
    "turns": TALKS["turns"], "prefill": TALKS["prefill"],
    "prefill blocks": [*HI, says("assistant", blocks({"type": "text", "text": "Hello and"}))],
    "prefill thought": [*HI, says("assistant", blocks({"type": "thinking", "thinking": "Hm.", "signature": ""},
                                                      {"type": "text", "text": "Hello and"}))],
    "system inside": [*HI, says("system", "Be kind."), says("user", "x")],
    "tool": [says("user", "Rome?"), says("assistant", blocks({"type": "text", "text": "I look."}, USE)),
             says("user", blocks(RESULT))],
    "tool and text": [says("user", "Rome?"), says("assistant", blocks(USE)),
                      says("user", blocks(RESULT, {"type": "text", "text": "Well?"}))],
    "two tools": [says("user", "Rome?"), says("assistant", blocks(USE, {**USE, "id": "t2", "input": {}})),
                  says("user", blocks({**RESULT, "tool_use_id": "t2", "is_error": True}, {
                      **RESULT, "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]}))],
    "thoughts": [says("user", "Rome?"), says("assistant", blocks(
        {"type": "thinking", "thinking": "Look.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}, USE)),
        says("user", blocks(RESULT))],
    "document": [says("user", blocks({"type": "document", "title": "T", "context": "C", "source": {
        "type": "text", "media_type": "text/plain", "data": "The sea is deep."}, "citations": {"enabled": True}},
        {"type": "text", "text": "What?"}))],
    "document blocks": [says("user", blocks({"type": "document", "source": {"type": "content", "content": [
        {"type": "text", "text": "Deep."}]}}))],
    "passage": [says("user", blocks({"type": "search_result", "title": "T", "source": "S", "content": [
        {"type": "text", "text": "Deep."}]}))],
    "unknown block": [says("user", blocks({"type": "container_upload", "file_id": "x"}, {"type": "text", "text": "x"}))],
    "cache": [says("user", blocks({"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}}))],
    "empty": [says("user", "")], "no blocks": [says("user", [])],
    "e role": [says("king", "x")], "e content": [says("user", 7)], "e block": [says("user", [7])],
    "e block type": [says("user", [{"text": "x"}])], "e block text": [says("user", [{"type": "text"}])],
    "e use name": [*HI, says("assistant", [{"type": "tool_use", "id": "a"}]), says("user", "x")],
    "e use braces": [*HI, says("assistant", [{**USE, "name": "a{"}]), says("user", "x")],
    "e result id": [says("user", [{"type": "tool_result", "content": "x"}])],
    "e result content": [says("user", [{**RESULT, "content": 7}])],
    "e last use": [*HI, says("assistant", [USE])], "e image": [says("user", [IMAGE])],
    "e image in result": [says("user", [{**RESULT, "content": [IMAGE]}])],
    "e document": [says("user", [{"type": "document", "source": {"type": "base64", "data": "x"}}])],
    "e document data": [says("user", [{"type": "document", "source": {"type": "text"}}])],
    "e empty": [], "e text": "x", "e null": None, "e message": [7], "e second": [*HI, says("assistant", 7)],
}
SYSTEMS = ["Be short.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "short."}], "", [], 7, [7],
           [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be short."}], None]
MESSAGE_FIELDS = {"max_tokens": [0, "x", None, 1], "stop_sequences": [["e"], "e", [7]],
                  "tool_choice": [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "x"}, 7,
                                  {"type": "tool", "name": "weather"}, {"type": "tool", "name": "x"}],
                  "thinking": [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "x"}],
                  "tools": [[ANT], [{**ANT, "input_schema": 7}], [{"name": 7}], [7], 7, [ANT, ANT],
                            [{"type": "web_search_20250305", "name": "web_search"}], [{**ANT, "name": "a{"}]]}

F_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
F_OUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
INPUTS = {
    "text": "Say hello.", "one": HI, "typed": [{"type": "message", **HI[0]}], "turns": TALKS["turns"],
    "parts": [says("user", [{"type": "input_text", "text": "Say "}, {"type": "input_text", "text": "hello."}])],
    "output parts": [*HI, says("assistant", [{"type": "output_text", "text": "Hello.", "annotations": []}]),
                     says("user", "Again.")],
    "refusal": [*HI, says("assistant", [{"type": "refusal", "refusal": "No."}]), says("user", "Why?")],
    "system": [says("system", "Be short."), *HI], "developer": [says("developer", "Be short."), *HI],
    "call": [says("user", "Rome?"), F_CALL, F_OUT],
    "two calls": [says("user", "Rome?"), F_CALL, {**F_CALL, "call_id": "c2", "arguments": "{}"},
                  {**F_OUT, "call_id": "c2"}, F_OUT],
    "thought": [says("user", "Rome?"), {"type": "reasoning", "id": "r", "summary": [
        {"type": "summary_text", "text": "Look."}]}, F_CALL, F_OUT],
    "thought text": [*HI, {"type": "reasoning", "id": "r", "summary": [], "content": [
        {"type": "reasoning_text", "text": "Greet."}]}, says("assistant", "Hello."), says("user", "Again.")],
    "custom": [says("user", "Go."), {"type": "custom_tool_call", "call_id": "c", "name": "code", "input": "1"},
               {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}],
    "shell": [says("user", "Go."), {"type": "local_shell_call", "call_id": "c", "action": {
        "type": "exec", "command": ["ls"], "env": {}}}, {"type": "local_shell_call_output", "call_id": "c", "output": "a"}],
    "output parts of call": [says("user", "Rome?"), F_CALL, {**F_OUT, "output": [{"type": "input_text", "text": "sun"}]}],
    "agent": [{"type": "agent_message", "author": "bob", "content": [{"type": "input_text", "text": "Hi."}]}],
    "mcp": [says("user", "x"), {"type": "mcp_call", "id": "m", "name": "weather", "arguments": "{}", "output": "y"}],
    "left out": [{"type": "web_search_call", "id": "w", "status": "completed"}, *HI],
    "prefill": TALKS["prefill"], "compaction": [{"type": "compaction", "encrypted_content": "x"}, *HI],
    "e number": 7, "e empty": [], "e item": [7], "e null": None, "e role": [says("king", "x")],
    "e content": [says("user", 7)], "e part": [says("user", [7])], "e last call": [says("user", "x"), F_CALL],
    "e call id": [says("user", "x"), {"type": "function_call", "name": "a", "arguments": "{}"}, F_OUT],
    "e call name": [says("user", "x"), {**F_CALL, "name": 7}, F_OUT],
    "e call braces": [says("user", "x"), {**F_CALL, "name": "a{"}, F_OUT],
    "e output": [says("user", "x"), F_CALL, {**F_OUT, "output": 7}],
    "e output id": [says("user", "x"), F_CALL, {"type": "function_call_output", "output": "x"}],
    "e file": [says("user", [{"type": "input_file", "file_id": "x"}])],
    "e image": [says("user", [{"type": "input_image", "image_url": "data:image/png;base64," + PNG}])],
    "e image id": [says("user", [{"type": "input_image", "file_id": "x"}])],
    "e sound": [says("user", [{"type": "input_audio", "input_audio": {"data": "x"}}])],
    "e reference": [{"type": "item_reference", "id": "x"}],
}
RESPONSE_FIELDS = {
    "instructions": ["Be short.", 7, ""], "max_output_tokens": [0, 3, "x"], "previous_response_id": ["resp_x", 7],
    "background": [True, "x"], "store": [False, "x"], "include": [["x"], 7, [7], ["message.output_text.logprobs"]],
    "text": [{"format": {"type": "json_object"}}, {"format": 7}, {"verbosity": "low"}, 7],
    "reasoning": [{"effort": "low", "summary": "auto"}, {"effort": "x"}], "truncation": ["auto", "x"],
    "tools": [[FLAT], [{"type": "function", "name": 7}], 7, [{"type": "web_search"}], [FLAT, FLAT], [{"type": "custom",
              "name": "code"}], [{"type": "namespace", "name": "n", "description": "d", "tools": [FLAT]}]],
    "tool_choice": ["required", {"type": "function", "name": "weather"}, {"type": "x"}], "conversation": ["x"],
}

OLLAMA = {
    **{k: TALKS[k] for k in ("one", "system", "turns", "users", "prefill", "empty text", "marks", "two systems",
                             "e role", "e role missing", "e content number", "e message text", "e messages text")},
    "thinking": [*HI, says("assistant", "Hello.", thinking="Greet."), says("user", "Again.")],
    "call": [says("user", "Rome?"), says("assistant", "", tool_calls=[{"function": {
        "name": "weather", "arguments": {"city": "Rome"}}}]), says("tool", "sunny", tool_name="weather")],
    "two calls": [says("user", "Rome?"), says("assistant", "", tool_calls=[
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}}, {"id": "x", "function": {"name": "add"}}]),
        says("tool", "3", tool_name="add"), says("tool", "sunny")],
    "call id": [says("user", "Rome?"), says("assistant", "", tool_calls=[{"id": "x", "function": {"name": "weather"}}]),
                says("tool", "sunny", tool_call_id="x")],
    "extra result": [says("tool", "sunny", tool_name="weather")],
    "e images": [says("user", "x", images=[PNG])], "e images text": [says("user", "x", images="x")],
    "e images prefill": [*HI, says("assistant", "x", images=[7])],
    "e calls": [*HI, says("assistant", "", tool_calls=7), says("user", "x")],
    "e call": [*HI, says("assistant", "", tool_calls=[{}]), says("user", "x")],
    "e call braces": [*HI, says("assistant", "", tool_calls=[{"function": {"name": "a{"}}]), says("user", "x")],
    "e last calls": [*HI, says("assistant", "", tool_calls=[{"function": {"name": "a"}}])], "load": [],
    "long": [m for i in range(60) for m in (says("user", f"{i}: {LONG}"), says("assistant", f"Good {i}."))] + HI,
    "long with system": [says("system", "Be short.")] + [m for i in range(60) for m in (
        says("user", f"{i}: {LONG}"), says("assistant", "", tool_calls=[{"function": {"name": "a"}}]),
        says("tool", "r", tool_name="a"))] + HI,
    "e too long": [says("user", LONG * 40)],
    "e late role": [m for i in range(60) for m in (says("user", f"{i}: {LONG}"), says("assistant", f"Good {i}."))] +
                   [says("cook", "x"), *HI],
}
OLLAMA_FIELDS = {"options": [{"temperature": 0, "num_predict": 3}, {"temperature": "x"}, {"unknown": 1}, 7,
                             {"stop": ["e"], "seed": 3}, {"num_ctx": 128}, {"num_keep": -2}],
                 "format": ["json", "x", {"type": "object", "properties": {"a": {"type": "boolean"}}}, 7],
                 "think": [True, "low", "x", 7], "tools": [[TOOL], 7, [7]], "stream": [True, "x"],
                 "truncate": [False, "x"], "shift": [False, 7], "logprobs": [True, 7], "top_logprobs": [2],
                 "keep_alive": ["1m", "x"], "unknown": [1]}


def chats():
    for name, talk in TALKS.items():
        body = {"messages": talk, "max_tokens": 6, "temperature": 0}
        yield "chat " + name, "/v1/chat/completions", body
        yield "template " + name, "/apply-template", {"messages": talk}
        if not name.startswith("e "):
            yield "chat tools " + name, "/v1/chat/completions", {**body, "tools": [TOOL], "max_tokens": 4}
            yield "template think " + name, "/apply-template", {"messages": talk, "tools": [TOOL, TOOL_B],
                                                                "chat_template_kwargs": {"enable_thinking": True}}
            yield "count " + name, "/v1/chat/completions/input_tokens", {"messages": talk}
    for name, tools in TOOLS.items():
        yield "chat with " + name, "/v1/chat/completions", {"messages": HI, "max_tokens": 4, "temperature": 0,
                                                            "tools": tools}
    for choice in CHOICES:
        yield f"choice {choice}", "/v1/chat/completions", {"messages": HI, "max_tokens": 40, "temperature": 0,
                                                           "tools": [TOOL], "tool_choice": choice}
    for name in ("one", "two calls", "prefill", "thought"):
        for think in (True, False):
            yield f"stream {name} {think}", "/v1/chat/completions", {
                "messages": TALKS[name], "max_tokens": 8, "temperature": 0, "stream": True, "think": think,
                "stream_options": {"include_usage": True}}
    yield "stream tools", "/v1/chat/completions", {"messages": HI, "max_tokens": 40, "temperature": 0, "stream": True,
                                                   "tools": [TOOL], "tool_choice": "required"}
    yield "manner", "/v1/chat/completions", {"messages": TALKS["system parts"], "max_tokens": 4, "temperature": 0,
                                             "verbosity": "low"}
    yield "shorter", "/v1/chat/completions", {"messages": TALKS["long"], "max_tokens": 4, "temperature": 0,
                                              "compress": 0.5}
    yield "shorter parts", "/v1/chat/completions", {"messages": [says("user", [
        {"type": "text", "text": LONG}, {"type": "text", "text": "What is old?"}])], "max_tokens": 4, "temperature": 0,
        "compress": 0.3}
    yield "shorter result", "/v1/chat/completions", {"messages": [
        says("user", "Rome?"), says("assistant", None, tool_calls=[call()]), says("tool", LONG, tool_call_id="call_1")],
        "max_tokens": 4, "temperature": 0, "compress": 0.3}
    yield "shorter e", "/v1/chat/completions", {"messages": [says("user", LONG), says("cook", "x")], "compress": 0.3}


def others():
    for name, talk in MESSAGES.items():
        body = {"messages": talk, "max_tokens": 5, "temperature": 0}
        yield "messages " + name, "/v1/messages", body
        yield "count messages " + name, "/v1/messages/count_tokens", {"messages": talk, "tools": [ANT]}
    for i, system in enumerate(SYSTEMS):
        yield f"messages system {i}", "/v1/messages", {"messages": HI, "max_tokens": 4, "temperature": 0, "system": system}
        yield f"e messages system {i}", "/v1/messages", {"messages": MESSAGES["e use braces"], "max_tokens": 4,
                                                         "system": system}
    yield "messages stream", "/v1/messages", {"messages": HI, "max_tokens": 8, "temperature": 0, "stream": True}
    for name, given in INPUTS.items():
        yield "responses " + name, "/v1/responses", {"input": given, "max_output_tokens": 5, "temperature": 0}
        yield "count responses " + name, "/v1/responses/input_tokens", {"input": given, "instructions": "Be kind."}
    yield "responses stream", "/v1/responses", {"input": "Say hello.", "max_output_tokens": 8, "temperature": 0,
                                                "stream": True}
    for name, talk in OLLAMA.items():
        yield "ollama " + name, "/api/chat", {"messages": talk, "stream": False, "options": {
            "temperature": 0, "num_predict": 4}}
    yield "ollama stream", "/api/chat", {"messages": HI, "options": {"temperature": 0, "num_predict": 6}}
    for name, body in {
            "one": {"prompt": "Say hello."}, "system": {"prompt": "x", "system": "Be short."}, "raw": {
                "prompt": "The sea", "raw": True}, "suffix": {"prompt": "a", "suffix": "b"}, "e prompt": {"prompt": 7},
            "e template": {"prompt": "x", "template": "y"}, "e raw": {"prompt": "x", "raw": True, "system": "y"},
            "e images": {"prompt": "x", "images": [PNG]}, "load": {}, "think": {"prompt": "x", "think": False},
            "e system": {"prompt": "x", "system": 7}, "long": {"prompt": LONG * 30},
            "context": {"prompt": "x", "context": [1, 2]}, "format": {"prompt": "x", "format": "json"}}.items():
        yield "generate " + name, "/api/generate", {"stream": False, "options": {"temperature": 0, "num_predict": 4}, **body}
    for path, key in (("/v1/completions", "prompt"), ("/completion", "prompt"), ("/tokenize", "content"),
                      ("/v1/embeddings", "input"), ("/api/embed", "input"), ("/embedding", "content"),
                      ("/api/embeddings", "prompt"), ("/detokenize", "tokens"), ("/infill", "input_prefix")):
        for value in ("The sea is", ["one", "two"], [1, 2, 3], [[1, 2], [3]], "", [], 7, None, {}, [7.5], [-1], {"a": 1},
                      [[]], ["a", 7], "a\u0000b", "<bos>x", {"prompt_string": "a<__media__>", "multimodal_data": [PNG]}):
            yield f"{path} {value!r}"[:80], path, {key: value, **({"max_tokens": 4, "temperature": 0}
                                                                  if "complet" in path or "infill" in path else {})}
    for path in ("/v1/rerank", "/v1/score"):
        for body in ({"query": "a", "documents": ["b", "c"]}, {"query": 7}, {"text_1": "a", "text_2": ["b"]}, {}):
            yield f"{path} {body}", path, body
    for body in ({"name": "made", "from": "carat demo", "system": "Be a cat."}, {"name": "talks", "from": "carat demo", "messages": [
            says("user", "Hi."), says("assistant", "Meow.")], "parameters": {"stop": ["e"], "temperature": 0}},
            {"name": "both", "from": "carat demo", "system": "Be a dog.", "messages": [says("system", "Be a bee."), *HI]},
            {"name": "e1", "from": "carat demo", "messages": [says("tool", "x")]}, {"name": "e2", "from": "carat demo", "messages": [
                says("user", "x", images=[PNG])]}, {"name": "e3", "from": "carat demo", "parameters": {"a": 1}}, {"name": "e4"}):
        yield f"create {body['name']}", "/api/create", {**body, "stream": False}
    for made in ("made", "talks", "both"):
        for name in ("one", "system", "two systems", "two calls", "e second role", "e role", "e call name", "e message null"):
            yield f"{made} {name}", "/v1/chat/completions", {"model": made, "messages": TALKS[name], "max_tokens": 5,
                                                             "temperature": 0, "verbosity": "high" if name == "one" else None}
            yield f"{made} template {name}", "/apply-template", {"model": made, "messages": TALKS[name]}
        yield f"{made} messages", "/v1/messages", {"model": made, "messages": HI, "max_tokens": 5, "temperature": 0}
        yield f"{made} ollama", "/api/chat", {"model": made, "messages": OLLAMA["long"], "stream": False, "options": {
            "temperature": 0, "num_predict": 4}}
        yield f"{made} show", "/api/show", {"model": made}


def fields():
    for table, path, base in (
            (FIELDS, "/v1/chat/completions", {"messages": HI, "max_tokens": 3, "temperature": 0}),
            (CHAT_FIELDS, "/v1/chat/completions", {"messages": HI, "max_tokens": 6, "temperature": 0}),
            (FIELDS, "/v1/completions", {"prompt": "The sea", "max_tokens": 3, "temperature": 0}),
            (FIELDS, "/v1/messages", {"messages": HI, "max_tokens": 3, "temperature": 0}),
            (MESSAGE_FIELDS, "/v1/messages", {"messages": HI, "max_tokens": 8, "temperature": 0, "tools": [ANT]}),
            (FIELDS, "/v1/responses", {"input": "Hi.", "max_tokens": 3, "temperature": 0}),
            (RESPONSE_FIELDS, "/v1/responses", {"input": "Hi.", "max_tokens": 8, "temperature": 0}),
            (OLLAMA_FIELDS, "/api/chat", {"messages": HI, "stream": False, "options": {"temperature": 0, "num_predict": 3}}),
            (OLLAMA_FIELDS, "/api/generate", {"prompt": "Hi.", "stream": False, "options": {
                "temperature": 0, "num_predict": 3}})):
        for key, values in table.items():
            for i, value in enumerate(values):
                yield f"field {path} {key} {i}", path, {"seed": 1, **base, key: value} if "/api/" not in path else {
                    **base, key: value}
    for path in PATHS:
        for i, body in enumerate(BAD_BODIES):
            yield f"body {path} {i}", path, body


# ---- Answers ----------------------------------------------------------------------------------------

IDS = re.compile(r"\b(chatcmpl|cmpl|resp|msg|toolu|call|fc|rs|req|embd|item|ctc|lsh|sh|ts|apc|mcp|score|rerank)[_-]"
                 r"[A-Za-z0-9]{8,}")
TIMES = re.compile(r'("(?:created|created_at|completed_at|modified_at|expires_at|[a-z_]*_ms|ms|[a-z_]*duration|'
                   r'[a-z_]*per_second|[a-z_]*_per_token_ms|system_fingerprint|seed|digest)"\s*:\s*)("[^"]*"|[-+0-9.eE]+)')


def plain(text):
    return TIMES.sub(r"\1T", IDS.sub(r"\1_ID", text))


def ask(port, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", path, data, {"Content-Type": "application/json"})
    r = c.getresponse()
    got = f"{r.status} {r.getheader('Content-Type')} {plain(r.read().decode('utf-8', 'backslashreplace'))}"
    c.close()
    return got


def answers(carat, data, requests, *options):
    env = {**os.environ, "XDG_DATA_HOME": data, "XDG_CACHE_HOME": data, "XDG_CONFIG_HOME": data, "HOME": data}
    server = subprocess.Popen([carat, "serve", "--no-config", "--port", "0", "--parallel", "1", "--log", "off",
                               "--threads", "1", "--ctx", "2048", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=env)
    got = {}
    try:
        found = re.search(r":(\d+)", server.stdout.readline())  # printed once the model is loaded
        if not found:
            server.kill()
            sys.exit(f"{carat} serve did not start: {server.communicate()[1].strip()}")
        for name, path, body in requests:
            while name in got:
                name += "'"
            try:
                got[name] = ask(int(found[1]), path, body)
            except (OSError, http.client.HTTPException) as e:
                got[name] = f"no answer: {type(e).__name__}"
    finally:
        server.terminate()
        server.wait(30)
    return got


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--record")
    args.add_argument("--compare")
    args.add_argument("--carat", default="./carat")
    args.add_argument("--show", type=int, default=10, help="how many differences are printed")
    a = args.parse_args()
    with tempfile.TemporaryDirectory() as data:
        got = answers(a.carat, data, [*chats(), *others(), *fields()])
        got |= {"with --system: " + k: v for k, v in answers(a.carat, data, [*chats(), *others()],
                                                             "--system", "You are a ship.").items()}
    kinds = {k: sum(v.startswith(k) for v in got.values()) for k in ("2", "4", "5", "no")}
    print(f"{len(got)} requests: " + ", ".join(f"{n} of {k}.." for k, n in kinds.items() if n))
    if a.record:
        with open(a.record, "w") as f:
            json.dump(got, f, indent=0, sort_keys=True)
    if a.compare:
        with open(a.compare) as f:
            was = json.load(f)
        differ = [k for k in sorted({*was, *got}) if was.get(k) != got.get(k)]
        for k in differ[:a.show]:
            print(f"\n{k}\n  was {was.get(k)}\n  is  {got.get(k)}")
        print(f"{len(differ)} differ")
        sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
