"""Parts of tools/page_check.py: answers, of the bundled model and made ones, as they stream, stop, break and are drawn."""
import json

from page_rig import answer_with, CALL, delta, MARKUP, NAMELESS, RENDER, STATS, stream, want, when
from page_texts import ATTACKS, HOSTILE, MARKDOWN, MATHS, PARTS, SIZE


def with_the_model(page):
    p = page.p
    page.shot("1-empty")
    p.evaluate("settings.temperature = '0'")  # what it says is no chance
    page.say("What is carat?")
    page.until(".cost", 1)
    want("inference" in p.inner_text(".msg.assistant .md"), "the bundled model does not know itself")
    page.say("What is 12 + 30?")
    page.until(".cost", 2)
    want("42" in p.locator(".msg.assistant .md").nth(1).inner_text(), "12 + 30 is not 42")
    page.say("What is the answer to my last question?")  # prefixes of a few tokens are not reused
    page.until(".cost", 3)
    want("reused" in p.locator(".cost").nth(2).inner_text(), "the third turn reused nothing")
    page.shot("2-model")
    p.locator(".msg.assistant").last.get_by_text("Regenerate").click()
    page.until(".cost", 3)
    p.locator(".msg.user").first.hover()
    p.locator(".msg.user").first.get_by_text("Edit").click()
    page.shot("3-edit")
    p.keyboard.press("Control+A")
    p.keyboard.type("Who made you?")
    p.keyboard.press("Enter")
    page.until(".msg", 2)
    # The old message and the messages after it are still there, as a version.
    want("2/2" in p.locator(".msg.user").first.inner_text(), "an edit without versions")
    p.locator(".msg.user").first.get_by_label("Version before").click()
    page.until(".msg", 6)
    want("2/2" in p.locator(".msg.assistant").last.inner_text(), "a regenerated answer without versions")
    page.shot("3-versions")
    p.locator(".msg.user").first.get_by_label("Version after").click()
    page.until(".msg", 2)
    # Two long answers side by side, each stopped by itself.
    p.click("#open-set")
    p.fill("[name=schema]", '{"type":"array","items":{"type":"integer"},"minItems":20000}')
    p.keyboard.press("Escape")
    page.say("Numbers, please.")
    p.wait_for_selector(".msg.assistant:last-child .md p")
    p.click("#new")
    page.say("More numbers, please.")
    p.wait_for_selector(".msg.assistant:last-child .md p")
    want(p.locator("#list .busy").count() == 2, "two answers side by side")
    page.shot("3-side-by-side")
    p.click("#send")
    page.until(".note", 1)
    want(p.locator("#list .busy").count() == 1, "Stop stopped more than its own conversation")
    p.locator("#list .busy .go").click()
    n = len(p.inner_text(".msg.assistant:last-child .md"))
    when(p, f"document.querySelector('.msg.assistant:last-child .md').innerText.length > {n}")
    p.keyboard.press("Escape")
    page.until(".note", 1)
    want(p.locator("#list .busy").count() == 0, "Escape did not stop the answer")
    p.click("#open-set")
    p.fill("[name=schema]", '{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"'
           ',"maxLength":20}},"required":["n","s"]}')
    p.keyboard.press("Escape")
    p.click("#new")
    page.say("A number and a word.")
    page.until(".cost", 1)
    answer = json.loads(p.inner_text(".msg.assistant .md"))
    want(isinstance(answer["n"], int) and isinstance(answer["s"], str), "an answer outside its schema")
    p.click("#open-set")
    p.fill("[name=schema]", "")
    # Every number of sampling has a field, with the model's own number in it and a sentence beside a wrong one.
    when(p, "$('params').elements.top_k.placeholder.startsWith('default ')")
    want(p.locator("#sampling input, #more-sampling input").count() == p.evaluate("SAMPLING.length"), "fields of sampling")
    p.fill("[name=temperature]", "")
    p.fill("[name=temperature]", "300")
    want("0 to 100" in p.inner_text("output[data-for=temperature]"), "a temperature of 300")
    p.fill("[name=top_k]", "1.5")
    want("whole number" in p.inner_text("output[data-for=top_k]"), "a top_k of 1.5")
    want(p.evaluate("!settings.temperature && !settings.top_k"), "wrong numbers are kept")
    page.shot("3-numbers")
    p.fill("[name=temperature]", "0")
    p.fill("[name=top_k]", "")
    p.click("summary:text('More of sampling')")
    p.fill("[name=min_keep]", "1")
    p.keyboard.press("Escape")
    p.click("#new")
    with p.expect_request("**/v1/chat/completions") as sent:
        page.say("Say hello.")
    body = sent.value.post_data_json
    want(body.get("temperature") == 0 and body.get("min_keep") == 1 and "top_k" not in body, f"numbers of a request: {body}")
    page.until(".cost", 1)
    p.click("#open-set")
    for name in ("temperature", "min_keep"):
        p.fill(f"[name={name}]", "")
    p.keyboard.press("Escape")


def played(page):
    p = page.p
    answers = [
        [delta(role="assistant", content=None), delta(reasoning_content="The user asks about a mutex. "),
         delta(reasoning_content="A table and code will do.")]
        + [delta(content=MARKDOWN[i:i + 7]) for i in range(0, len(MARKDOWN), 7)] + [delta("stop"), STATS],
        [delta(content="I will look."), delta(tool_calls=[CALL]), delta("tool_calls"), STATS],
        [delta(content="It is **21 degrees** in Rome."), delta("stop"), STATS]]
    seen = []

    def handle(route):
        seen.append(json.loads(route.request.post_data))
        if len(seen) <= len(answers):
            route.fulfill(status=200, content_type="text/event-stream", body=stream(answers[len(seen) - 1]))
        else:
            route.fulfill(status=400, content_type="application/json", body=json.dumps(
                {"error": {"message": "the prompt has 9000 tokens and the context 8192"}}))

    p.route("**/v1/chat/completions", handle)
    p.click("#new")
    page.say("Explain a mutex\nwith an example, please.")
    page.until(".cost", 1)
    p.locator("details.thought summary").click()
    p.evaluate("document.querySelector('#scroll').scrollTop = 0")
    page.shot("4-markdown")
    p.evaluate("document.querySelector('#scroll').scrollTop = 1e6")
    page.shot("5-code")
    p.wait_for_selector("#log .katex")
    want(p.locator("#log script, #log img").count() == 0, "markup of the model became nodes")
    want(p.evaluate("window.ran === undefined"), "markup of the model ran")
    want(all(a.get_attribute("href").startswith("https:") for a in p.locator("#log a").all()), "a bad link")
    want(p.locator("#log table").count() == 1 and p.locator("#log ol ul li").count() == 2
         and p.evaluate("document.querySelector('#log ol').start") == 1, "markdown")
    text = p.inner_text("#log .md")
    want(p.locator("#log .katex").count() == 2 and p.locator("#log .formula .katex-display").count() == 1, "formulas")
    want(p.locator("#log .md strong", has_text="bold").count() == 1 and p.locator("#log .md del").count() == 1
         and "3 * 4" in text and p.locator("#log .md li.task").count() == 2, "marks of emphasis")
    page.say("Weather in Rome?")
    p.wait_for_selector(".call textarea")
    p.fill(".call textarea", '{"t":21}')
    page.shot("6-call")
    p.get_by_text("Give the result").click()
    page.until(".cost", 3)
    want([m["role"] for m in seen[-1]["messages"]] == ["user", "assistant", "user", "assistant", "tool"],
         "the conversation that was sent")
    page.say("Too long")
    p.wait_for_selector(".fail")
    page.shot("7-error")
    page.troubles = [t for t in page.troubles if "400" not in t]
    p.click("#open-set")
    p.fill("[name=schema]", '{"type":')
    page.shot("8-parameters")
    want(p.inner_text("output[data-for=schema]"), "bad JSON went unnoticed")
    p.fill("[name=schema]", "")
    p.keyboard.press("Escape")
    p.reload()
    p.wait_for_selector(".fail")
    want(p.locator(".msg").count() == 7 and p.locator("#list .go").count() == 5, "what a reload keeps")


def loaded_again(page):
    """An answer goes on when the page is loaded again, and no event is lost or read twice."""
    p = page.p
    text = "document.querySelector('.msg.assistant:last-child .md').innerText"

    def numbers(n):
        when(p, f"document.querySelector('.msg.assistant .md') && {text}.length > {n}")

    def stopped():
        p.keyboard.press("Escape")
        page.until(".note", 1)
        return p.evaluate("chat.messages.get(chat.leaf).content")

    p.click("#open-set")
    p.fill("[name=schema]", '{"type":"array","items":{"type":"integer"},"minItems":20000}')
    p.fill("[name=temperature]", "0")
    p.keyboard.press("Escape")
    p.click("#new")
    page.say("Numbers, please.")
    numbers(900)
    want_text = stopped()
    p.click("#new")
    page.say("Numbers, please.")
    for n in (100, 300, 600):
        numbers(n)
        p.reload()
        p.wait_for_selector("#list .busy")
    numbers(900)
    want(p.locator("#log .msg").count() == 2, "an answer that goes on is another message")
    got = stopped()
    n = min(len(got), len(want_text))
    want(n >= 900 and got[:n] == want_text[:n], f"an answer after three reloads: {got[:n]} is not {want_text[:n]}")
    # What was stopped does not go on.
    p.reload()
    p.wait_for_selector("#model.up")
    p.wait_for_timeout(300)
    want(p.locator("#list .busy").count() == 0 and p.evaluate("chat.messages.get(chat.leaf).content") == got, "a stopped answer after a reload")
    p.click("#open-set")
    p.fill("[name=schema]", "")
    p.fill("[name=temperature]", "")
    p.keyboard.press("Escape")
    # The server has lost the rest; or it had not begun: then the question is asked again.
    for last, says in (("strm_x:7", "no longer has the rest"), ("", "carat")):
        p.click("#new")
        page.say("What is carat?")
        page.until(".cost", 1)
        p.evaluate("""(last) => { const m = chat.messages.get(chat.leaf);
            sessionStorage.setItem('carat.flights', JSON.stringify([{chat: chat.id, message: m, name: '0'.repeat(32), last}])); }""", last)
        p.evaluate("noteFlights = () => []")
        p.reload()
        p.wait_for_selector(".fail" if last else ".cost")
        page.until(".msg", 2)
        want(says in p.inner_text(".msg.assistant"), "what a lost answer says: " + p.inner_text(".msg.assistant"))
    # Hostile notes do nothing.
    p.evaluate("""() => { noteFlights = () => []; sessionStorage.setItem('carat.flights', JSON.stringify([null, 7, {}, {name: '../x'},
        {name: '0'.repeat(32), chat: '../x', message: {}}, {name: '0'.repeat(32), chat: chat.id, message: {id: 'x', role: 'user', content: 'x'}},
        {name: '0'.repeat(32), chat: chat.id, message: {id: 'x', role: 'assistant', parent: 'nobody'}}])); }""")
    p.reload()
    p.wait_for_selector("#model.up")
    p.wait_for_timeout(300)
    want(p.locator("#list .busy").count() == 0 and p.locator(".msg").count() == 2, "hostile notes of answers in flight")
    page.troubles = [t for t in page.troubles if "404" not in t]


def called(page):
    """Tools of MCP servers: told to the model, called with the user's consent, left out with a sentence."""
    p = page.p
    evil = "<img src=x onerror=window.ran=1>"

    def tool(name, **more):
        return {"name": name, "server": "files", "auto": False, "declared": {"type": "function", "function": {"name": name}}, **more}

    tools = [tool("get_weather"), tool("quick", auto=True), tool("marks", left_out="a string contains " + evil), 7, {}, tool(3)]
    call = lambda name: {"index": 0, "id": "c" + name, "type": "function", "function": {"name": name, "arguments": "{}"}}
    answers = [[delta(tool_calls=[call("get_weather")]), delta("tool_calls"), STATS], [delta(content="Sunny."), delta("stop"), STATS],
               [delta(tool_calls=[call("quick")]), delta("tool_calls"), STATS], [delta(content="Done."), delta("stop"), STATS],
               [delta(tool_calls=[call("marks")]), delta("tool_calls"), STATS]]
    seen, asked, run = answer_with(p, lambda r: answers.pop(0)), [], []

    def list_tools(route):
        asked.append(route.request.url)
        route.fulfill(status=200, content_type="application/json", body=json.dumps({"tools": tools}))

    def run_tool(route):
        run.append(json.loads(route.request.post_data)["name"])
        route.fulfill(status=200, content_type="application/json", body=json.dumps({"content": evil}))

    p.route("**/mcp/tools**", list_tools)
    p.route("**/mcp/call", run_tool)
    p.reload()
    p.wait_for_selector("#model.up")
    p.evaluate("startChat()")
    page.say("Weather?")
    p.wait_for_selector(".consent")
    want(asked[0].endswith("mcp/tools") and "?model=" in asked[-1], f"the model is not named: {asked}")
    want([t["function"]["name"] for t in seen[0]["tools"]] == ["get_weather", "quick"], "the tools of a request")
    toast = p.inner_text("#toast")
    want("does without the tool marks of files" in toast and evil in toast and not p.locator("#toast img").count(), "a tool that is left out: " + toast)
    want(not run and not p.evaluate(NAMELESS), "a call without consent, or a control without a name")
    page.fits("a call")
    page.shot("26-consent")
    p.get_by_text("Allow once").click()
    page.until(".cost", 2)
    want(run == ["get_weather"] and p.inner_text(".result") == evil and p.evaluate("window.ran === undefined"), f"a call: {run}")
    page.say("Quickly.")
    page.until(".cost", 4)
    want(run == ["get_weather", "quick"], f"a call that needs no consent: {run}")
    # What the model calls all the same is asked for.
    page.say("Marks.")
    p.wait_for_selector(".consent")
    want(run == ["get_weather", "quick"], "a call of a tool that is left out")
    p.get_by_text("Refuse").wait_for()
    for path in ("**/mcp/tools**", "**/mcp/call"):
        p.unroute(path)


def maths(page):
    p = page.p
    answer_with(p, lambda r: [delta(content=MATHS), delta("stop"), STATS])
    p.click("#new")
    page.say("Formulas, please.")
    page.until(".cost", 1)
    p.wait_for_selector("#log .formula")
    page.shot("10-maths")
    want(p.locator("#log .formula .katex-display").count() == 4 and p.locator("#log .maths > .katex").count() == 3,
         "formulas: %d displays, %d in lines" % (p.locator("#log .katex-display").count(), p.locator("#log .maths > .katex").count()))
    text = p.inner_text("#log .md")
    want("for $5 or $10" in text and "$no$" in text and "$5$" in text, "dollars of money: " + text)
    want(p.locator("#log .tex.bad").count() == 1, "a formula with an error")
    want(p.locator("#log strong").count() == 2, "emphasis beside punctuation")
    want(p.locator("#log a[href='https://example.org/ref']").count() == 1, "a definition behind its use")
    want(p.evaluate("document.fonts.check('16px KaTeX_Main') && [...document.fonts].some((f) => f.family.includes('KaTeX') && f.status === 'loaded')"),
         "no font of KaTeX")
    want(p.evaluate("[...document.querySelectorAll('#log annotation')].some((a) => a.textContent.includes('{-b'))"), "no source in a formula")
    # Streamed or at once, a text ends as the same nodes.
    for text in (MARKDOWN, MATHS, MATHS + "\n\n```c\nint x;\n```\n" + MARKDOWN, "a\r\n\r\n- b\r\n- c\r\n"):
        whole = p.evaluate(MARKUP, [text, 10 ** 6])
        want(whole == p.evaluate(MARKUP, [text, 11]), "a streamed text differs from a whole one")


def parts(page):
    """Parts that open, footnotes, and what stays code."""
    p = page.p
    whole = p.evaluate(MARKUP, [PARTS, 10 ** 6])
    for n in (2, 3, 5, 7, 11, 13):
        want(whole == p.evaluate(MARKUP, [PARTS, n]), f"parts streamed by {n} characters differ from whole ones")
    answer_with(p, lambda r: [delta(content=PARTS), delta("stop"), STATS])
    p.click("#new")
    page.say("Parts, please.")
    page.until(".cost", 1)
    p.wait_for_selector("#log .note-of")
    want(p.locator("#log details:not(details details)").count() == 3 and p.locator("#log details details[open]").count() == 1, "details")
    want(p.locator("#log summary").all_inner_texts()[0] == "More of it" and not p.locator("#log details li").is_visible(), "a summary")
    p.locator("#log summary").first.click()
    want(p.locator("#log details li strong").is_visible(), "a part does not open")
    want(p.locator("#log .fence", has_text="mermaid").locator("code").inner_text() == "graph TD; A-->B", "mermaid is not left as code")
    want("[^abc]" in p.inner_text("#log .md") and p.locator("#log .note-of em").count() == 1, "footnotes")
    p.get_by_label("Footnote 2", exact=True).focus()
    p.keyboard.press("Enter")
    want(p.evaluate("document.activeElement.ariaLabel") == "Back from footnote 2", "a reference does not lead to its note")
    p.keyboard.press("Enter")
    want(p.evaluate("document.activeElement.ariaLabel") == "Footnote 2", "a note does not lead back")


def broken(page):
    """A connection that breaks: the rest comes behind the last event, each once."""
    p, told = page.p, []

    def part(first, chunks, end=""):
        return "".join(f"id: s:{first + k}\ndata: {json.dumps(c)}\n\n" for k, c in enumerate(chunks)) + end

    def rest(route):
        told.append((route.request.method, route.request.headers.get("last-event-id")))
        if route.request.method == "DELETE":
            return route.fulfill(status=204, body="")
        if len(told) == 1:
            return route.abort()
        if len(told) == 2:
            return route.fulfill(status=200, content_type="text/event-stream", body=part(2, [delta(content="three ")]))
        route.fulfill(status=200, content_type="text/event-stream",
                      body=part(3, [delta(content="four."), delta("stop"), STATS], "data: [DONE]\n\n"))

    p.unroute_all()
    p.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, content_type="text/event-stream", body=part(
        0, [delta(content="One "), delta(content="two ")])))
    p.route("**/v1/stream**", rest)
    p.click("#new")
    page.say("Count, please.")
    page.until(".cost", 1)
    want(p.inner_text(".msg.assistant .md") == "One two three four.", "an answer whose connection broke: " + p.inner_text(".msg.assistant .md"))
    want(told == [("GET", "s:1"), ("GET", "s:1"), ("GET", "s:2")], f"how it went on: {told}")
    page.troubles = [t for t in page.troubles if "ERR_FAILED" not in t]
    # Stop says so to the server, which would go on.
    del told[:]
    p.unroute("**/v1/stream**")
    p.route("**/v1/stream**", lambda r: (told.append((r.request.method, None)), r.abort() if r.request.method == "GET" else r.fulfill(status=204, body="")))
    page.say("Again, please.")
    when(p, "document.querySelector('.msg:last-child .md').innerText.includes('two')")
    p.keyboard.press("Escape")
    page.until(".note", 1)
    for _ in range(50):
        if ("DELETE", None) in told:
            break
        p.wait_for_timeout(100)
    want(("DELETE", None) in told, "Stop leaves the answer running")
    # Also before the first byte.
    del told[:]
    asked = []
    p.route("**/v1/chat/completions", lambda r: asked.append(r))
    page.say("Once more, please.")
    for _ in range(50):
        if asked:
            break
        p.wait_for_timeout(100)
    p.keyboard.press("Escape")
    for _ in range(50):
        if told:
            break
        p.wait_for_timeout(100)
    want(told == [("DELETE", None)], f"Stop before the first byte leaves the answer running: {told}")
    page.troubles = [t for t in page.troubles if "ERR_FAILED" not in t]


def attacks(page):
    p = page.p
    for first in range(0, len(ATTACKS), 20):
        text = "\n\n".join(ATTACKS[first:first + 20])
        seen = answer_with(p, lambda r: [delta(reasoning_content=text), delta(content=text), delta("stop"), STATS])
        p.click("#new")
        p.fill("#input", text)
        p.set_input_files("#files", [{"name": "<img src=x onerror=window.ran=1>\u202e.txt", "mimeType": "", "buffer": text.replace("\0", "").encode()}])
        p.wait_for_selector("#chips .chip")
        p.keyboard.press("Enter")
        page.until(".cost", 1)
        want(len(seen) == 1, "an attack sent a request")
        when(p, "document.querySelector('#log .md').view.settled !== null")
        bad = p.evaluate("""() => {
            const bad = [];
            for (const e of document.querySelectorAll('#log *, #list *, #chips *')) {
                if (/^(script|iframe|object|embed|style|link|meta|base|form|img|image|use|foreignobject)$/i.test(e.tagName) && !e.closest('svg.i'))
                    bad.push(e.tagName);
                if (e.tagName === 'INPUT' && (e.type !== 'checkbox' || !e.disabled)) bad.push('input ' + e.type);
                for (const a of e.attributes) {
                    if (/^on|^id$|^srcdoc$|^src$|^xlink/i.test(a.name)) bad.push(e.tagName + ' ' + a.name);
                    if (a.name === 'href' && !e.closest('svg.i') && !/^(https?:\\/\\/|mailto:)/.test(a.value)) bad.push(a.value);
                    if (a.name === 'style' && /url|fixed|expression/i.test(a.value)) bad.push(a.value);
                }
                if (e.tagName === 'A' && e.rel !== 'noopener noreferrer' && e.href) bad.push('rel ' + e.href);
            }
            return bad;
        }""")
        want(not bad, f"of hostile texts became {bad}")
        want(p.evaluate("window.ran === undefined"), "a hostile text ran")
        page.fits("attacks")
    want("HACKED" not in p.evaluate(MARKUP, ["$\\frac12$", 100]), "a formula changed others")
    p.evaluate("document.querySelector('#scroll').scrollTop = 600")
    page.shot("11-attacks")


def hostile(page):
    """Texts that are slow to render. What counts is the processor time of the page, as others may use the machine."""
    cdp = page.p.context.new_cdp_session(page.p)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_ms():
        return 1000 * next(m["value"] for m in cdp.send("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")

    for name, text in HOSTILE.items():
        for step in (SIZE * 4, 1000):
            start = busy_ms()
            ms, worst, n_nodes, level, _ = page.p.evaluate(RENDER, [text, step])
            busy = busy_ms() - start
            print(f"  {name:26} {'whole' if step > SIZE else 'streamed':8} {ms:6.0f} ms, {busy:5.0f} busy, longest pause {worst:4.0f} ms, "
                  f"{n_nodes} nodes{', as text' if level > 1 else ', plain' if level else ''}", flush=True)
            want(busy < 3000 and ms < 60000, f"{name} keeps the page busy for {busy:.0f} of {ms:.0f} ms")
