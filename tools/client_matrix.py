#!/usr/bin/env python3
"""What the programs and packages of others do with `carat serve` and the bundled model: a table with counts.

    python3 -m venv venv && venv/bin/pip install openai anthropic ollama cohere litellm instructor \\
        langchain-openai langchain-anthropic langchain-ollama llama-index-llms-openai-like llama-index-llms-ollama \\
        'pydantic-ai-slim[openai,anthropic]' 'lm-eval[api]'
    npm install --prefix node ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod \\
        @openai/codex @anthropic-ai/claude-code
    venv/bin/python tools/client_matrix.py ./carat [--node node] [--only WORD]

Where two packages need different versions of a third (pydantic-ai and litellm do at times), each gets a venv of its
own. The script starts a server of its own. A row is a client, a cell a thing that people do with it; a client that is not
installed is named and counts nothing. With the same packages two builds have the same counts. tools/server_clients.py
checks the packages of OpenAI, Anthropic, ollama and Cohere in depth and is a row here. Exits with 1 if a cell failed.
Not part of the build or of the tests.
"""
import argparse
import asyncio
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASK, WEATHER = "What is carat?", "What is the weather in Paris?"
KEY = "none"
URL = ""  # of the server, without /v1


class Missing(Exception):
    """The client is not installed."""


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return "sunny, 21 degrees in " + city


# ---- Packages of Python: each function gives pairs of a cell's name and what to call -----------------------------


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    chats = {
        "openai": ChatOpenAI(base_url=URL + "/v1", api_key=KEY, model="any", temperature=0),
        "responses": ChatOpenAI(base_url=URL + "/v1", api_key=KEY, model="any", temperature=0, use_responses_api=True),
        "anthropic": ChatAnthropic(base_url=URL, api_key=KEY, model="any", max_tokens=300),
        "ollama": ChatOllama(base_url=URL, model="any", temperature=0, reasoning=False),
    }
    weather = tool(get_weather)

    def says(m):
        return m.text if isinstance(m.text, str) else m.text()

    def round_trip(c):
        asked = [HumanMessage(WEATHER)]
        m = c.bind_tools([weather]).invoke(asked)
        call = m.tool_calls[0]
        assert call["name"] == "get_weather" and "city" in call["args"]
        asked += [m, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
        assert says(c.bind_tools([weather]).invoke(asked))

    def stream(c):
        assert "".join(says(x) for x in c.stream(ASK))

    for name, c in chats.items():
        yield name + " invoke", lambda c=c: says(c.invoke(ASK)) or 1 / 0
        yield name + " stream", lambda c=c: stream(c)
        yield name + " tools", lambda c=c: round_trip(c)
    for name in ("openai", "ollama"):
        yield name + " structured", lambda c=chats[name]: chats and c.with_structured_output(
            Person, method="json_schema").invoke("Name a person.").age
    e = OpenAIEmbeddings(base_url=URL + "/v1", api_key=KEY, model="any", check_embedding_ctx_length=False)
    yield "embeddings", lambda: len(e.embed_documents(["a fox", "an otter"])[1]) or 1 / 0


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.ollama import Ollama
    from llama_index.llms.openai_like import OpenAILike

    like = OpenAILike(api_base=URL + "/v1", api_key=KEY, model="any", is_chat_model=True, temperature=0,
                      is_function_calling_model=True, context_window=8192)
    oll = Ollama(base_url=URL, model="any", temperature=0, request_timeout=60, thinking=False)
    tool = FunctionTool.from_defaults(get_weather)
    for name, c in (("openai", like), ("ollama", oll)):
        yield name + " chat", lambda c=c: c.chat([ChatMessage(content=ASK)]).message.content[0]
        yield name + " stream", lambda c=c: "".join(x.delta or "" for x in c.stream_chat([ChatMessage(content=ASK)]))[0]
        yield name + " complete", lambda c=c: c.complete(ASK).text[0]
        yield name + " tools", lambda c=c: c.get_tool_calls_from_response(
            c.chat_with_tools([tool], user_msg=WEATHER))[0].tool_kwargs["city"]


def pydantic_ai():
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    class Person(BaseModel):
        name: str
        age: int

    by_openai = OpenAIProvider(base_url=URL + "/v1", api_key=KEY)
    models = {
        "chat": OpenAIChatModel("any", provider=by_openai),
        "responses": OpenAIResponsesModel("any", provider=by_openai),
        "anthropic": AnthropicModel("any", provider=AnthropicProvider(base_url=URL, api_key=KEY)),
    }
    few = {"temperature": 0, "max_tokens": 400}

    async def stream(m):
        async with Agent(m, model_settings=few).run_stream(ASK) as r:
            assert [x async for x in r.stream_text()]

    def tools(m):
        r = Agent(m, tools=[get_weather], model_settings=few).run_sync(WEATHER)
        assert any(p.part_kind == "tool-return" for x in r.all_messages() for p in x.parts) and r.output

    for name, m in models.items():
        yield name + " run", lambda m=m: Agent(m, model_settings=few).run_sync(ASK).output[0]
        yield name + " stream", lambda m=m: asyncio.run(stream(m))
        yield name + " tools", lambda m=m: tools(m)
    for name in ("chat", "responses"):
        yield name + " structured", lambda m=models[name]: Agent(
            m, output_type=NativeOutput(Person), model_settings=few).run_sync("Name a person.").output.age


def instructor():
    import instructor as lib
    import openai
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=20)
        age: int = Field(ge=0, le=120)

    for mode in (lib.Mode.TOOLS, lib.Mode.JSON_SCHEMA):
        c = lib.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key=KEY), mode=mode)
        yield mode.name.lower(), lambda c=c: c.chat.completions.create(
            model="any", response_model=Person, temperature=0, max_tokens=300, max_retries=1,
            messages=[{"role": "user", "content": "Name a person of age 30. Answer in JSON."}]).name


# ---- Programs ---------------------------------------------------------------------------------------------------


def run(words, want=0, limit=240, **env):
    r = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=limit,
                       stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}, check=False)
    assert r.returncode == want, f"status {r.returncode}: {r.stdout[-600:]}"
    return r.stdout


def server_clients():
    for name in ("openai", "anthropic", "ollama", "cohere", "litellm"):
        importlib.metadata.version(name)
    out = subprocess.run([sys.executable, ROOT / "tools/server_clients.py", URL], stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.STDOUT, check=False).stdout
    found = re.findall(r"^(ok|FAIL) +(\S+)", out, re.M)
    if not found:
        raise AssertionError(out[-600:])
    for verdict, name in found:
        yield name, lambda verdict=verdict: verdict == "ok" or 1 / 0


AI_SDK = """
import { generateText, streamText, generateObject, tool, stepCountIs } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { createAnthropic } from '@ai-sdk/anthropic';
import { z } from 'zod';
const url = process.argv[2], baseURL = url + '/v1', apiKey = 'none';
const oai = createOpenAI({ baseURL, apiKey });
const models = { chat: oai.chat('any'), responses: oai.responses('any'), anthropic: createAnthropic({ baseURL, apiKey })('any'),
                 compatible: createOpenAICompatible({ name: 'carat', baseURL, apiKey, supportsStructuredOutputs: true })('any') };
const weather = tool({ description: 'Get the weather of a city.', inputSchema: z.object({ city: z.string() }),
                       execute: async ({ city }) => 'sunny in ' + city });
const cells = [];
for (const [name, model] of Object.entries(models)) {
    cells.push([name + ' text', async () => (await generateText({ model, prompt: 'What is carat?', maxOutputTokens: 200 })).text]);
    cells.push([name + ' stream', async () => { let s = ''; for await (const x of streamText({ model, prompt: 'What is carat?', maxOutputTokens: 200 }).textStream) s += x; return s; }]);
    cells.push([name + ' tools', async () => { const r = await generateText({ model, prompt: 'What is the weather in Paris?', tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxOutputTokens: 200 }); return r.steps.length > 1 && r.text; }]);
    if (name != 'anthropic') cells.push([name + ' object', async () => (await generateObject({ model, schema: z.object({ name: z.string(), age: z.number().int() }), prompt: 'Name a person.', maxOutputTokens: 300 })).object.name]);
}
for (const [name, f] of cells) {
    try { console.log(JSON.stringify([name, !!(await f()), ''])); }
    catch (e) { console.log(JSON.stringify([name, false, String(e.message).slice(0, 300)])); }
}
"""


def need(path):
    if not path.exists():
        raise Missing
    return path


def ai_sdk(node):
    need(node / "node_modules/ai")
    script = node / "client_matrix.mjs"
    script.write_text(AI_SDK)
    try:
        out = subprocess.run(["node", script.resolve(), URL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             cwd=node, timeout=300, check=False)
    finally:
        script.unlink()
    lines = [json.loads(x) for x in out.stdout.splitlines() if x.startswith("[")]
    assert lines, out.stderr[-600:]

    def check(good, why):
        assert good, why

    for name, good, why in lines:
        yield name, lambda good=good, why=why: check(good, why)


def lm_eval(carat, data):
    program = pathlib.Path(sys.executable).parent / "lm_eval"
    need(program)
    tasks = data / "tasks"
    tasks.mkdir()
    (data / "rows.jsonl").write_text("".join(json.dumps({"q": q, "a": a, "gold": 0}) + "\n" for q, a in (
        ("What is carat?", [" carat", " stone"]), ("2 + 2 =", [" 4", " 9"]))))
    common = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}/rows.jsonl\ntest_split: test\n" \
             "doc_to_text: '{{q}}'\n"
    (tasks / "write.yaml").write_text("task: write\noutput_type: generate_until\n" + common + "doc_to_target: '{{a[0]}}'\n"
                                      "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 16\nmetric_list:\n"
                                      "  - metric: exact_match\n")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": KEY, "HF_HOME": str(data / "hf")}

    def table(kind, path, task, more):
        out = run([program, "--model", kind, "--model_args", f"model=any,base_url={URL}{path},{more}max_retries=1",
                   "--tasks", task, "--include_path", tasks, "--batch_size", "1",
                   *(["--apply_chat_template"] if "chat" in path else [])], **offline)
        assert f"|{task}" in out.replace(" ", ""), out[-600:]

    remote = "tokenizer_backend=None,tokenized_requests=False,"
    # A task of choices needs the model's tokenizer as a directory of Hugging Face, which the bundled model has not.
    yield "generate", lambda: table("local-completions", "/v1/completions", "write", remote)
    yield "chat", lambda: table("local-chat-completions", "/v1/chat/completions", "write", remote)


def coding(carat, node, client, words):
    """Of a program that writes code: it ends well, says something, and no request of its is refused."""
    path = f"{need(node / 'node_modules/.bin' / client).parent.resolve()}:{os.environ['PATH']}"
    home = tempfile.mkdtemp(prefix="carat-matrix-")

    def ask():
        out = run([carat, "connect", client, "--url", URL, "--start", "--", *words], PATH=path, HOME=home,
                  CODEX_HOME=home, DISABLE_TELEMETRY="1")
        assert len(out) > 20, out

    yield "answers", ask
    shutil.rmtree(home, ignore_errors=True)


# ---- The table --------------------------------------------------------------------------------------------------


def row(name, cells, log, verbose):
    """Runs the cells of a client; gives (passed, of them), or None if it is not installed."""
    passed = n = 0
    began, at = time.time(), log.stat().st_size
    try:
        for cell, call in cells:
            n += 1
            try:
                call()
                passed += 1
            except Exception as e:  # noqa: BLE001 - whatever a client raises is the cell's result
                print(f"FAIL {name}: {cell}: {str(e)[-400:]}", flush=True)
                if verbose:
                    traceback.print_exc()
    except (ImportError, Missing, importlib.metadata.PackageNotFoundError):
        print(f"{name:16} not installed", flush=True)
        return None
    except Exception as e:  # noqa: BLE001
        print(f"FAIL {name}: {str(e)[:400]}", flush=True)
        n += 1
    refused = len(re.findall(r" (?:4\d\d|5\d\d) \d+ ms", log.read_text()[at:]))
    print(f"{name:16} {passed:3} of {n:3} cells, {refused:2} requests refused, {time.time() - began:.0f} s", flush=True)
    return passed, n


def main():
    global URL
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("carat")
    p.add_argument("--node", type=pathlib.Path, default=pathlib.Path("node"))
    p.add_argument("--only", default="")
    p.add_argument("--verbose", action="store_true")
    o = p.parse_args()
    data = pathlib.Path(tempfile.mkdtemp(prefix="carat-matrix-"))
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", XDG_CACHE_HOME=str(data / "cache"))
    log, carat, node = data / "log", pathlib.Path(o.carat).resolve(), o.node.resolve()
    server = subprocess.Popen([carat, "serve", "-p", "0", "--ctx", "32768", "--parallel", "4"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=log.open("w"))
    try:
        while not (found := re.search(r"127\.0\.0\.1 port (\d+)", log.read_text())) or "ready" not in log.read_text():
            if server.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.05)
        URL = "http://127.0.0.1:" + found[1]
        rows = {
            "server_clients": server_clients, "langchain": langchain, "llama-index": llama_index,
            "pydantic-ai": pydantic_ai, "instructor": instructor, "AI SDK": lambda: ai_sdk(node),
            "lm-eval": lambda: lm_eval(carat, data),
            "codex": lambda: coding(carat, node, "codex", ["exec", "--skip-git-repo-check", ASK]),
            "claude": lambda: coding(carat, node, "claude", ["-p", ASK]),
        }
        counts = [row(name, cells(), log, o.verbose) for name, cells in rows.items() if o.only in name]
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(data, ignore_errors=True)
    ran = [c for c in counts if c]
    print(f"{sum(c[0] for c in ran)} of {sum(c[1] for c in ran)} cells of {len(ran)} clients, "
          f"{len(counts) - len(ran)} not installed")
    return 0 if ran and all(a == b for a, b in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
