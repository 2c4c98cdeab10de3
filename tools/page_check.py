"""Drives the chat page in headless Chromium: tools/page_check.py [-o DIR] [--chromium PATH]

Needs the playwright package and a Chromium. Starts ./carat serve with the bundled model on a free
port and uses the page: streams, regenerates, edits, stops, reloads, asks for structured output, and
has two answers side by side. Then it answers requests itself, with texts that the small model never
writes: Markdown, formulas, code, thoughts, tool calls, errors, markup that attacks the page, and 200 KB
of texts that are slow to render. It attaches files, pictures and sounds, records with a microphone that beeps, searches, imports hostile files, fills the
browser's storage, damages it and takes it away. Two tabs write into one conversation. It fills the context, leaves
turns out and takes a summary in their place. It fails on an
error in the page's console, on a request to another server, on text wider than the screen, on colours
without contrast and on controls without names. With -o it writes screenshots, light and dark, desktop
and phone. Where axe-core is (--axe FILE, or node_modules), its rules find nothing in five screens with an answer, a
call, the panel and the menu open. --only PART... runs the parts whose names begin so.

The file is long because its parts drive one page and share its helpers.
"""
import argparse
import array
import base64
import io
import json
import math
import os
import pathlib
import subprocess
import tempfile
import wave

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    raise SystemExit("page_check: skipped, because Python has no playwright (pip install playwright)")

from page_texts import ATTACKS, HOSTILE, MARKDOWN, MATHS, SIZE

# Renders a text in steps. Returns milliseconds until it is shown, the longest time for which the page
# did nothing else, and the number of nodes.
RENDER = """async ([text, step]) => {
    const box = document.createElement('div');
    document.querySelector('#log').append(box);
    const view = new MarkdownView(box), start = performance.now();
    let worst = 0, last = start, on = true;
    const beat = () => {
        const now = performance.now();
        worst = Math.max(worst, now - last);
        last = now;
        if (on) setTimeout(beat, 0);
    };
    beat();
    for (let n = step; n < text.length; n += step) {
        view.show(text.slice(0, n), false);
        if (n % (step * 4) === 0) await new Promise((go) => requestAnimationFrame(go));
    }
    view.show(text, true);
    while (view.settled !== text && performance.now() < start + 60000) await new Promise((go) => setTimeout(go, 10));
    box.offsetHeight;
    await new Promise((go) => setTimeout(go, 0));
    on = false;
    const ms = performance.now() - start, n_nodes = box.querySelectorAll('*').length;
    const whole = box.textContent.length;
    box.remove();
    return [ms, worst, n_nodes, view.level, whole];
}"""

# The nodes of a text, rendered in steps of a size.
MARKUP = """async ([text, step]) => {
    const box = document.createElement('div');
    document.querySelector('#log').append(box);
    const view = new MarkdownView(box);
    for (let n = step; n < text.length; n += step) {
        view.show(text.slice(0, n), false);
        await new Promise((go) => setTimeout(go, 5));
    }
    view.show(text, true);
    while (view.settled === null) await new Promise((go) => setTimeout(go, 5));
    const html = box.innerHTML;
    box.remove();
    return html;
}"""

HOME = tempfile.TemporaryDirectory()
STATS = {"choices": [],
         "usage": {"prompt_tokens": 812, "completion_tokens": 231,
                   "prompt_tokens_details": {"cached_tokens": 640}},
         "timings": {"cache_n": 640, "prompt_n": 172, "predicted_n": 231,
                     "predicted_per_second": 48.31, "reuse": "prefix"}}
CALL = {"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome","days":2}'}}


def delta(finish=None, **d):
    return {"choices": [{"index": 0, "delta": d, "finish_reason": finish}]}


def stream(chunks):
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


def want(ok, what):
    if not ok:
        raise SystemExit("page_check: " + what)


def when(p, js):
    """Waits until js is true. The page's policy forbids wait_for_function, which uses eval."""
    for _ in range(600):
        if p.evaluate(js):
            return
        p.wait_for_timeout(100)
    raise SystemExit("page_check: never true: " + js)


class Page:
    def __init__(self, browser, url, out, ready="#model.up", script="", **kw):
        self.troubles, self.out = [], out
        context = browser.new_context(**kw)
        if script:
            context.add_init_script(script)
        self.p = context.new_page()
        self.p.on("console", lambda m: m.type in ("error", "warning") and self.troubles.append(m.text))
        self.p.on("pageerror", lambda e: self.troubles.append(str(e)))
        self.p.on("dialog", lambda d: (self.troubles.append("dialog " + d.message), d.dismiss()))
        self.p.on("request", lambda r: r.url.startswith((url, "data:", "blob:"))
                  or self.troubles.append("request to " + r.url))
        self.p.goto(url)
        self.p.wait_for_selector(ready)

    def until(self, selector, n):
        for _ in range(600):
            idle = self.p.get_attribute("#log", "aria-busy") == "false"
            if idle and self.p.locator(selector).count() == n:
                return
            self.p.wait_for_timeout(100)
        self.shot("failed")
        raise SystemExit(f"page_check: {selector} never was {n} but {self.p.locator(selector).count()}")

    def say(self, text):
        self.p.fill("#input", text)
        self.p.keyboard.press("Enter")

    def shot(self, name):
        if self.out:
            self.p.wait_for_timeout(250)
            self.p.screenshot(path=str(self.out / (name + ".png")))

    def fits(self, name):
        wide = self.p.evaluate("""() => [...document.querySelectorAll('#bar *, #log > *, #compose *')]
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.className || e.id)""")
        want(not wide, f"{name}: wider than the screen: {wide}")


def with_the_model(page):
    p = page.p
    page.shot("1-empty")
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


def answer_with(p, make):
    """Answers requests for completions; make(request) returns chunks. Returns the list of requests."""
    seen = []

    def handle(route):
        seen.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=stream(make(seen[-1])))

    p.unroute_all()
    p.route("**/v1/chat/completions", handle)
    return seen


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


PARTS = """Before

<details><summary><b>More</b> of it</summary>

- a list with **bold**

```html
</details>
```

<details open>
<summary>Inner</summary>
deep
</details>
</details>

<details><summary>One line</summary>all here</details>

A claim[^1], another[^2], and a class [^abc].

```mermaid
graph TD; A-->B
```

[^1]: The first *note*.
[^2]: The second note
goes on.

After

<details>
<summary>Open end</summary>
tail"""


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


def menus(page):
    """The menu of a conversation, by keys alone."""
    p = page.p
    p.unroute_all()
    answer_with(p, lambda r: [delta(content="Fine."), delta("stop"), STATS])
    p.click("#new")
    page.say("A question to be named")
    page.until(".cost", 1)
    active = "document.activeElement.innerText || document.activeElement.ariaLabel || document.activeElement.className"
    p.focus("#list .go")
    p.keyboard.press("Tab")
    want(p.evaluate(active).startswith("Actions for A question"), "no button for a menu: " + p.evaluate(active))
    p.keyboard.press("Enter")
    want(p.evaluate(active) == "Rename", "a menu without the focus: " + p.evaluate(active))
    p.keyboard.press("ArrowUp")
    want(p.evaluate(active) == "Delete", "the arrows of a menu")
    p.keyboard.press("Escape")
    want(p.evaluate(active).startswith("Actions for A question") and not p.locator("#menu").is_visible(), "Escape in a menu")
    p.keyboard.press("Enter")
    p.keyboard.press("Enter")
    p.keyboard.type("  Another <b>name</b> ")
    p.keyboard.press("Enter")
    want(p.inner_text("#title") == "Another <b>name</b>" == p.locator("#list .go").first.inner_text(), "a name that was typed")
    want(p.evaluate(active) == "Another <b>name</b>", "where the focus is after a name: " + p.evaluate(active))
    p.keyboard.press("F2")
    p.keyboard.type("Dropped")
    p.keyboard.press("Escape")
    want(p.inner_text("#title") == "Another <b>name</b>", "Escape keeps a name")
    p.keyboard.press("F2")
    p.keyboard.press("Control+A")
    p.keyboard.press("Delete")
    p.keyboard.press("Enter")
    want(p.inner_text("#title") == "Another <b>name</b>", "an empty name")
    p.reload()
    p.wait_for_selector("#list .go")
    want(p.locator("#list .go").first.inner_text() == "Another <b>name</b>", "a name after a reload")
    n = p.locator("#list .go").count()
    p.focus("#list .more")
    for key in ("Enter", "ArrowDown", "Enter"):
        p.keyboard.press(key)
    want(p.locator("#list .go").count() == n - 1 and "Deleted Another" in p.inner_text("#toast"), "Delete in a menu")
    p.get_by_text("Undo").click()
    p.wait_for_selector(".msg")


AXE = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map((v) =>
    v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ', ' + n.failureSummary.split('\\n')[1]).join('; '))"""


def rules(page, name, source):
    """axe-core's rules for an answer, a call, the panel and the menu, open."""
    p = page.p
    phone = "phone" in name
    p.evaluate(source)

    def check(what):
        bad = p.evaluate(AXE)
        want(not bad, f"axe, {name}, {what}: {bad}")

    check("the empty page")
    turns = [[delta(reasoning_content="A table will do."), delta(content="\n\n".join((MARKDOWN, MATHS, PARTS))), delta("stop"), STATS],
             [delta(content="I will look."), delta(tool_calls=[CALL]), delta("tool_calls"), STATS]]
    answer_with(p, lambda r: turns.pop(0))
    page.say("Explain a mutex\nwith an example, please.")
    page.until(".cost", 1)
    p.wait_for_selector(".msg:last-child .formula")
    p.locator("details.thought summary").click()
    p.locator(".md summary").first.click()
    check("an answer")
    page.say("Weather in Rome?")
    p.wait_for_selector(".call textarea")
    check("a call")
    page.fits(name)
    small = p.evaluate("""() => [...document.querySelectorAll('#bar button, .acts button, #form button')].filter((e) => e.checkVisibility())
        .map((e) => [e.innerText || e.ariaLabel, e.getBoundingClientRect()]).filter(([, r]) => r.width < 24 || r.height < 24).map(([t]) => t)""")
    want(not small, f"{name}: too small for a finger: {small}")
    p.click("#open-set")
    p.fill("[name=temperature]", "300")
    p.fill("[name=schema]", '{"type":')
    check("the panel")
    want(p.locator("#params [aria-invalid=true]").count() == 2, "which fields are wrong")
    p.keyboard.press("Escape")
    p.route("**/hub/search*", lambda r: r.fulfill(status=200, content_type="application/json", body=json.dumps(
        {"models": [{"id": "a/" + "b" * 90, "downloads": 7}]})))
    p.click("#open-models")
    p.wait_for_selector("#model-list button")
    p.fill("#hub-words", "b")
    p.keyboard.press("Enter")
    p.wait_for_selector("#hub-list button")
    check("the models")
    page.shot(f"13-{name}-models")
    p.keyboard.press("Escape")
    for opener in ("#open-about", "#list .more"):
        if phone:
            p.evaluate("openSide()")
            p.wait_for_timeout(300)
        p.focus(opener)
        p.keyboard.press("Enter")
        check(opener)
        page.shot(f"13-{name}-{opener[1:5]}")
        if opener == "#open-about":
            p.keyboard.press("Escape")
    p.keyboard.press("Enter")
    check("a name")
    want(not page.troubles, f"in the console: {page.troubles}")


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


def features(page):
    """Files, signs, folds, search, edited answers, several models, about."""
    p = page.p
    models = [{"id": "alpha-4b", "context_length": 4096, "meta": {"n_params": 4e9, "ftype": "Q4_K"}},
              {"id": "beta <b>9b</b>", "context_length": 65536, "status": {"value": "loaded"}},
              {"id": "gamma", "status": {"value": "unloaded"}}, {"id": "delta", "status": {"value": "unloaded", "failed": True, "message": "no memory"}}, 7, {}]
    seen = answer_with(p, lambda r: [delta(content="An answer about *badgers* by " + r["model"]), delta("stop"), STATS])
    p.route("**/v1/models", lambda r: r.fulfill(status=200, content_type="application/json", body=json.dumps({"data": models})))
    p.reload()
    p.wait_for_selector("#pick:not([hidden])")
    p.click("#new")
    want(p.locator("#pick option").all_inner_texts() == ["alpha-4b", "beta <b>9b</b>", "gamma (unloaded)", "delta (failed)"], "the list of models")
    p.select_option("#pick", "beta <b>9b</b>")
    long = "\n".join(f"line {i} of a question" for i in range(80))
    page.say(long)
    page.until(".cost", 1)
    want(seen[-1]["model"] == "beta <b>9b</b>", "the model that was picked: " + seen[-1]["model"])
    want("65,536" in p.inner_text("#context"), "the context of the model that was picked")
    fold = p.locator(".msg.user .body")
    want(fold.bounding_box()["height"] < 300, "a long message is not folded")
    p.locator(".msg.user").hover()
    p.get_by_role("button", name="Show all").click()
    want(fold.bounding_box()["height"] > 1000, "a folded message does not open")
    p.get_by_role("button", name="Show less").click()
    # Files.
    p.set_input_files("#files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"three ``` ticks and ```` four"},
                                 {"name": "x.png", "mimeType": "image/png", "buffer": b"\x89PNG\0\0\xff"},
                                 {"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * 1000001},
                                 {"name": "utf16.txt", "mimeType": "", "buffer": "\ufeffH\u00e9llo".encode("utf-16-le")}])
    when(p, "document.querySelectorAll('#chips .chip').length === 2")
    want("x.png is no picture" in p.inner_text("#toast") and "big.txt is larger" in p.inner_text("#toast"), "refused files are not named")
    p.click("#open-set")
    p.fill("[name=system]", "Be brief.")
    p.fill("[name=tools]", '[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]')
    p.fill("[name=schema]", '{"type":"object"}')
    p.keyboard.press("Escape")
    want(p.locator(".sign").all_inner_texts() == ["System message", "JSON schema", "1 tool"], "signs of what is on")
    page.shot("12-signs")
    page.say("")
    page.until(".cost", 2)
    content = seen[-1]["messages"][-1]["content"]
    want("File notes.txt:\n`````\nthree ``` ticks and ```` four\n`````\n" in content and "H\u00e9llo" in content, "what was sent of files: " + content)
    want(p.locator(".msg.user details.chip").count() == 2, "chips of a sent message")
    p.locator(".msg.user details.chip summary").first.click()
    want("three ```" in p.inner_text(".msg.user details.chip pre"), "a chip does not open")
    p.locator(".sign").nth(1).click()
    want(p.evaluate("document.activeElement.name") == "schema", "a sign does not lead to its field")
    p.fill("[name=schema]", "")
    p.fill("[name=tools]", "")
    p.keyboard.press("Escape")
    # Dropped and pasted files.
    p.evaluate("""() => {
        const list = new DataTransfer();
        list.items.add(new File(['dropped text'], 'dropped.txt'));
        for (const type of ['dragenter', 'dragover', 'drop'])
            document.body.dispatchEvent(new DragEvent(type, {dataTransfer: list, bubbles: true, cancelable: true}));
        const paste = new DataTransfer();
        paste.items.add(new File(['pasted text'], 'pasted.txt'));
        document.querySelector('#input').dispatchEvent(new ClipboardEvent('paste', {clipboardData: paste, bubbles: true, cancelable: true}));
    }""")
    when(p, "document.querySelectorAll('#chips .chip').length === 2")
    p.get_by_label("Remove dropped.txt").click()
    p.get_by_label("Remove pasted.txt").click()
    want(p.locator("#chips .chip").count() == 0 and p.locator("body.drop").count() == 0, "chips that stay")
    # An edited answer is another version; the conversation goes on from it.
    p.locator(".msg.assistant").last.get_by_label("Edit this answer").click()
    page.shot("13-edit-answer")
    p.keyboard.press("Control+A")
    p.keyboard.type("My own **words**")
    p.keyboard.press("Control+Enter")
    p.wait_for_selector(".msg.assistant:last-child .md strong")
    want("2/2" in p.locator(".msg.assistant").last.inner_text() and "edited" in p.locator(".msg.assistant").last.inner_text(), "an edited answer")
    page.say("And then?")
    page.until(".msg", 6)
    want(seen[-1]["messages"][-2]["content"] == "My own **words**", "an edited answer is not sent")
    # Search.
    p.keyboard.press("Control+k")
    p.keyboard.type("BADGERS question")
    p.wait_for_selector("#list .found mark")
    want("1 found" in p.inner_text("#found") and p.inner_text("#list .found mark").lower() in ("badgers", "question"), "search: " + p.inner_text("#side"))
    page.shot("14-search")
    p.click("#new")
    p.locator("#list .found").first.click()
    p.wait_for_selector(".msg.lit")
    p.fill("#find", "no such words (anywhere")
    when(p, "document.querySelector('#found').textContent === 'Nothing found'")
    p.fill("#find", "")
    p.wait_for_selector("#list .day")
    # About.
    p.click("#open-about")
    want(p.locator("#about details").count() == 9 and "SIL OPEN FONT" in p.locator("#about").text_content().upper(), "licences")
    p.locator("#about summary").first.click()
    page.shot("15-about")
    p.keyboard.press("Escape")


# Draws a picture; gives its bytes as base64.
DRAW = """async ([w, h, type]) => {
    const c = document.createElement('canvas');
    Object.assign(c, {width: w, height: h});
    const x = c.getContext('2d'), g = x.createLinearGradient(0, 0, w, h);
    g.addColorStop(0, 'red');
    g.addColorStop(1, 'blue');
    x.fillStyle = g;
    x.fillRect(0, 0, w, h);
    return c.toDataURL(type).split(',')[1];
}"""


def managed(page):
    """The panel of models, with a server and a hub that say anything."""
    p = page.p
    evil = "<img src=x onerror=alert(1)>" + "w" * 200 + "\u202e/x"
    stored = {"id": "own/Small-GGUF:Q8_0", "status": {"value": "unloaded"}, "can_remove": True, "size": 5e9}
    models = [{"id": "first", "status": {"value": "loaded"}, "context_length": 4096}, stored,
              {"id": evil, "status": {"value": "unloaded", "failed": True, "message": "<b>no</b> " * 200}, "can_remove": "yes", "size": -1e308},
              {"id": "odd", "status": [], "size": "1", "context_length": None}, {"id": 7}, None,
              {"id": stored["id"], "status": {"value": "unloaded", "failed": True, "message": "the hub is away"}}]
    fit = {"name": "a/b:Q4_K_M", "here": False, "runs": False, "problem": "<i>too large</i>", "bytes": 1e300, "total_bytes": 9e9,
           "available_bytes": 1e9, "loaded_bytes": "x", "files": [{"quant": "Q8_0", "bytes": 7e9}, {"quant": "Q4_K_M", "bytes": 4e9}, {"quant": 7}, None]}
    calls, refuse = [], []

    def answer(r, body, status=200):
        r.fulfill(status=status, content_type="application/json", body=json.dumps(body))

    def change(r):
        request = r.request
        path = request.url.split("/", 3)[3]
        if request.method == "GET":
            return answer(r, {"data": models, "role": "router"})
        calls.append((request.method, path, request.post_data))
        if refuse:
            return answer(r, {"error": {"message": refuse[0]}}, 400)
        if request.method == "POST" and path == "models":
            models.append({"id": "a/b:Q8_0", "status": {"value": "downloading", "progress": {}, "all": {"done": 1e9, "total": 4e9}}})
        if path == "models/unload" and "a/b" in request.post_data:
            models.pop()
        if request.method == "DELETE":
            models[:] = [m for m in models if not m or m["id"] != stored["id"]]
        answer(r, {"success": True})

    p.route("**/models", change)
    p.route("**/models?*", change)
    p.route("**/models/*load", change)
    p.route("**/hub/search*", lambda r: answer(r, {"models": [
        {"id": "a/b", "downloads": 1e308, "changed": "2026-11-29", "gated": True}, {"id": evil, "downloads": "many", "changed": evil}, 7, {"id": 7}]}))
    p.route("**/hub/fit*", lambda r: answer(r, fit))
    p.click("#open-models")
    p.wait_for_selector("#model-list li")
    want(p.locator("#model-list li").count() == 4, "the list of models")
    want(p.get_by_role("button", name="Load own/Small-GGUF:Q8_0").count() == 1 and not p.get_by_role("button", name="Dismiss").count(),
         "a model that is here, and whose pull failed")
    want(evil in p.inner_text("#model-list") and not p.locator("#models-panel img, #models-panel b").count(), "markup of a name")
    page.shot("models")
    p.fill("#hub-words", "a b&c")
    p.keyboard.press("Enter")
    p.wait_for_selector("#hub-list li")
    want(p.locator("#hub-list li").count() == 2, "what the hub has")
    want("must be accepted" in p.inner_text("#hub-list"), "a gated model")
    p.get_by_role("button", name="Does it fit? a/b").click()
    p.wait_for_selector("#hub-list .fits.not")
    want("Does not run here: <i>too large</i>" in p.inner_text("#hub-list"), "a model that does not fit")
    want(p.locator("#hub-list select").input_value() == "Q4_K_M", "which file that is")
    fit.update(runs=True, name="a/b:Q8_0")
    p.select_option("#hub-list select", "Q8_0")
    p.get_by_role("button", name="Pull a/b:Q8_0").click()
    p.wait_for_selector("#model-list progress")
    want(calls == [("POST", "models", '{"model":"a/b:Q8_0"}')], f"what was asked: {calls}")
    want("1.00 GB of 4.00 GB" in p.inner_text("#model-list"), "progress")
    wide = p.evaluate("(d) => d.scrollWidth - d.clientWidth", p.query_selector("#models-panel"))
    want(wide <= 0, f"the panel is {wide} px too wide")
    bad = p.evaluate(CONTRAST)
    want(not bad, f"contrast: {bad}")
    want(not p.evaluate(NAMELESS), f"controls without a name: {p.evaluate(NAMELESS)}")
    page.shot("models-hub")
    p.get_by_role("button", name="Cancel pulling a/b:Q8_0").click()
    p.wait_for_selector("#model-list progress", state="detached")
    p.get_by_role("button", name="Remove own/Small-GGUF:Q8_0", exact=True).click()
    p.get_by_role("button", name="Keep own/Small-GGUF:Q8_0").click()
    p.get_by_role("button", name="Remove own/Small-GGUF:Q8_0", exact=True).click()
    refuse.append("others are made of it")
    p.get_by_role("button", name="Remove 5.00 GB: own/Small-GGUF:Q8_0").click()
    p.wait_for_selector("#model-list output:has-text('others are made of it')")
    refuse.clear()
    p.get_by_role("button", name="Remove 5.00 GB: own/Small-GGUF:Q8_0").click()
    p.wait_for_selector("#model-list li:has-text('own/Small')", state="detached")
    want(calls[-1][:2] == ("DELETE", "models?model=own%2FSmall-GGUF%3AQ8_0"), f"what was asked: {calls[-1]}")
    p.get_by_role("button", name="Use first").click()
    want(not p.evaluate("document.querySelector('#models-panel').open"), "the panel closes")
    for path in ("**/models", "**/models?*", "**/models/*load", "**/hub/search*", "**/hub/fit*"):
        p.unroute(path)
    page.troubles[:] = [t for t in page.troubles if "status of 400" not in t]  # the refusal


def pictures(page):
    """Pictures: chosen, pasted, scaled, sent, stored, exported, imported, deleted; a model that is blind."""
    p = page.p
    both = {"input_modalities": ["text", "image"]}
    models = [{"id": "seeing", "context_length": 4096, "architecture": both},
              {"id": "blind", "context_length": 4096, "architecture": {"input_modalities": ["text"]}}]
    seen = answer_with(p, lambda r: [delta(content="A gradient."), delta("stop"), STATS])
    p.route("**/v1/models", lambda r: r.fulfill(status=200, content_type="application/json", body=json.dumps({"data": models})))
    p.reload()
    p.wait_for_selector("#pick:not([hidden])")
    p.click("#new")
    draw = lambda w, h, kind: base64.b64decode(p.evaluate(DRAW, [w, h, kind]))
    small, large = draw(40, 30, "image/png"), draw(4000, 3000, "image/jpeg")
    p.set_input_files("#files", [{"name": "small.png", "mimeType": "image/png", "buffer": small},
                                 {"name": "large.jpg", "mimeType": "image/jpeg", "buffer": large},
                                 {"name": "broken.png", "mimeType": "image/png", "buffer": small[:30]}])
    when(p, "document.querySelectorAll('#chips .thumb img').length === 2")
    when(p, "!document.querySelector('#toast').hidden")
    want("broken.png is no picture" in p.inner_text("#toast"), "a broken picture is not named: " + p.inner_text("#toast"))
    page.shot("22-pictures")
    page.fits("pictures")
    page.say("What is this?")
    page.until(".cost", 1)
    parts = seen[-1]["messages"][-1]["content"]
    want([x["type"] for x in parts] == ["image_url", "image_url", "text"], "the parts of a message with pictures")
    urls = [x["image_url"]["url"] for x in parts[:2]]
    want(urls[0] == "data:image/png;base64," + base64.b64encode(small).decode(), "a small picture is not sent as it is")
    size = p.evaluate("async (u) => { const i = new Image(); i.src = u; await i.decode(); return [i.width, i.height]; }", urls[1])
    want(size[0] * size[1] <= 1120 * 48 * 48 and size[0] > 1800 and abs(size[0] / size[1] - 4 / 3) < 0.01, f"a scaled picture: {size}")
    want("image_tokens" not in seen[-1], "a detail that nobody asked for")
    # They are there after a reload, and go along with the next question.
    p.reload()
    p.wait_for_selector("#pick:not([hidden])")
    when(p, "[...document.querySelectorAll('.msg.user .thumb img')].filter((i) => i.naturalWidth).length === 2")
    p.click("#open-set")
    p.select_option("[name=image_tokens]", "1120")
    p.keyboard.press("Escape")
    page.say("And the other?")
    page.until(".msg", 4)
    want(seen[-1]["messages"][0]["content"][:2] == parts[:2] and seen[-1]["image_tokens"] == 1120, "pictures of earlier turns")
    p.locator(".thumb button").first.click()
    want(p.locator(".thumb.large").count() == 1, "a thumbnail does not open")
    # A blind model is told that there is something.
    p.select_option("#pick", "blind")
    page.say("Without eyes?")
    page.until(".msg", 6)
    first = seen[-1]["messages"][0]["content"]
    want(all(x["type"] == "text" for x in first) and "small.png" in first[0]["text"], "pictures are sent to a blind model")
    p.set_input_files("#files", [{"name": "small.png", "mimeType": "image/png", "buffer": small}])
    when(p, "document.querySelector('#toast').textContent.includes('reads text alone')")
    want(p.locator("#chips .thumb").count() == 0, "a picture for a blind model")
    # Export, delete, import.
    with p.expect_download() as d:
        p.click("#export")
    saved = json.loads(pathlib.Path(d.value.path()).read_text())
    want(sorted(saved["pictures"].values()) == sorted(urls), "the pictures of an export")
    p.evaluate("[...chats.keys()].forEach(removeChat)")
    p.wait_for_timeout(10500)
    count = "async () => { const n = await pictures.ask('readonly', (s) => s.count()); return n + pictures.memory.size; }"
    want(p.evaluate(count) == 0, "pictures of a deleted conversation stay")
    saved["pictures"].update({"bad": "data:text/html;base64,AAAA", "../x": urls[0], "evil": "data:image/svg+xml;base64,AAAA"})
    p.set_input_files("#import-file", [{"name": "f.json", "mimeType": "", "buffer": json.dumps(saved).encode()}])
    when(p, "document.querySelector('#toast').textContent.startsWith('Imported')")
    want(p.evaluate(count) == 2, "pictures of an import")
    p.unroute("**/v1/models")


def wav(seconds, rate=44100, channels=2):
    """A tone, in bytes of a WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(channels)
        w.setsampwidth(2)
        w.setframerate(rate)
        tone = array.array("h", (int(20000 * math.sin(i / 20)) for i in range(int(rate * seconds)) for _ in range(channels)))
        w.writeframes(tone.tobytes())
    return out.getvalue()


def sounds(page):
    """Sounds: chosen, recorded by a microphone that beeps, sent, stored, exported; a model that is deaf."""
    p = page.p
    models = [{"id": "hearing", "context_length": 4096, "architecture": {"input_modalities": ["text", "image", "audio"]}},
              {"id": "deaf", "context_length": 4096, "architecture": {"input_modalities": ["text", "image"]}}]
    seen = answer_with(p, lambda r: [delta(content="A tone."), delta("stop"), STATS])
    p.route("**/v1/models", lambda r: r.fulfill(status=200, content_type="application/json", body=json.dumps({"data": models})))
    p.reload()
    p.wait_for_selector("#pick:not([hidden])")
    p.click("#new")
    p.set_input_files("#files", [{"name": "tone.wav", "mimeType": "audio/wav", "buffer": wav(1.5)},
                                 {"name": "long.wav", "mimeType": "audio/wav", "buffer": wav(70, 8000, 1)},
                                 {"name": "broken.mp3", "mimeType": "audio/mpeg", "buffer": b"ID3 no sound"}])
    when(p, "document.querySelectorAll('#chips .chip').length === 2")
    when(p, "!document.querySelector('#toast').hidden")
    want("broken.mp3 is no sound" in p.inner_text("#toast"), "a broken sound is not named: " + p.inner_text("#toast"))
    want(p.locator("#chips small").all_inner_texts() == ["0:01", "1:10, in pieces of 30 s"], "lengths of sounds")
    page.shot("24-sounds")
    page.fits("sounds")
    page.say("What is this?")
    page.until(".cost", 1)
    parts = seen[-1]["messages"][-1]["content"]
    want([x["type"] for x in parts] == ["input_audio", "input_audio", "text"], "the parts of a message with sounds")
    for part, n in zip(parts, (24000, 70 * 16000)):
        want(part["input_audio"]["format"] == "wav", "the format of a sound")
        with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as w:
            want((w.getnchannels(), w.getsampwidth(), w.getframerate()) == (1, 2, 16000) and abs(w.getnframes() - n) < 32,
                 f"a sound of {w.getparams()}")
            want(15000 < max(map(abs, array.array("h", w.readframes(w.getnframes())))) < 25000, "how loud a sound is")
    # By the microphone; Esc throws away.
    p.click("#mic")
    p.wait_for_selector("#mic.on")
    p.keyboard.press("Escape")
    p.wait_for_selector("#mic:not(.on)")
    p.click("#mic")
    p.wait_for_selector("#mic.on")
    p.wait_for_timeout(1300)
    want(p.get_attribute("#mic", "aria-label") == "Stop recording", "the name of the microphone's button")
    page.shot("25-microphone")
    p.click("#mic")
    p.wait_for_selector("#chips .chip")
    want(p.locator("#chips .chip").count() == 1, "what Esc threw away is here")
    page.say("And that?")
    page.until(".msg", 4)
    last = seen[-1]["messages"][-1]["content"][0]["input_audio"]["data"]
    with wave.open(io.BytesIO(base64.b64decode(last))) as w:
        want(8000 < w.getnframes() < 64000 and max(array.array("h", w.readframes(w.getnframes()))) > 300, "what was recorded")
    want(seen[-1]["messages"][0]["content"] == parts, "sounds of earlier turns")
    # They are there after a reload. A deaf model is told that there is something.
    p.reload()
    p.wait_for_selector("#pick:not([hidden])")
    want(p.locator(".msg.user .chip small").all_inner_texts()[1] == "1:10, in pieces of 30 s", "sounds after a reload")
    p.select_option("#pick", "deaf")
    want(not p.is_visible("#mic"), "a microphone for a deaf model")
    page.say("Without ears?")
    page.until(".msg", 6)
    first = seen[-1]["messages"][0]["content"]
    want(all(x["type"] == "text" for x in first) and "Sound tone.wav, which you cannot hear" in first[0]["text"], "sounds for a deaf model")
    p.set_input_files("#files", [{"name": "tone.wav", "mimeType": "audio/wav", "buffer": wav(0.2)}])
    when(p, "document.querySelector('#toast').textContent.includes('does not hear')")
    with p.expect_download() as d:
        p.click("#export")
    saved = json.loads(pathlib.Path(d.value.path()).read_text())
    want(len(saved["pictures"]) == 3 and all(x.startswith("data:audio/wav;base64,") for x in saved["pictures"].values()), "the sounds of an export")
    p.unroute("**/v1/models")


def full(page):
    """A conversation that has outgrown its context. Of this server, a message has 100 tokens and the context 1000."""
    p, state = page.p, {"summary": "Badgers *dig*. The reader is Ada.", "status": 200, "counted": 0}
    seen = []

    def size(r):
        return sum(len(m["content"] or "") if "LONG" in (m["content"] or "") else 100 for m in r["messages"])

    def complete(route):
        r = json.loads(route.request.post_data)
        seen.append(r)
        n, last = size(r), r["messages"][-1]["content"]
        usage = {"choices": [], "usage": {"prompt_tokens": n, "completion_tokens": 60}}
        if n >= 1000:
            return route.fulfill(status=400, content_type="application/json", body=json.dumps({"error": {
                "message": f"the prompt has {n} tokens, and the context holds 1000", "code": "context_length_exceeded"}}))
        text = state["summary"] if last.startswith("Summarise") else f"Answer to {last[:40]}."
        chunks = [delta(content=w + " ") for w in text.split(" ")] + [delta("stop"), usage]
        route.fulfill(status=200, content_type="text/event-stream", body=stream(chunks))

    def tokenize(route):
        state["counted"] += 1
        if state["status"] != 200:
            return route.fulfill(status=state["status"], content_type="application/json", body='{"error":{"message":"no counting today"}}')
        n = size(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="application/json", body=json.dumps({"tokens": [1] * n, "count": n, "max_model_len": 1000}))

    def fill(name, n_turns=5):
        p.click("#new")
        for k in range(1, n_turns + 1):
            page.say(f"{name} {k}")
            page.until(".cost", k)

    def button(name):
        return p.get_by_role("button", name=name, exact=True)

    def texts(r):
        return [m["content"].strip() for m in r["messages"]]

    models = [{"id": "small", "context_length": 1000}]
    p.unroute_all()
    p.route("**/v1/models", lambda r: r.fulfill(status=200, content_type="application/json", body=json.dumps({"data": models})))
    p.route("**/v1/chat/completions", complete)
    p.route("**/tokenize", tokenize)
    p.reload()
    p.wait_for_selector("#model.up")
    # The oldest turns are left out, and the question that waited is answered.
    fill("Question")
    want("960 of 1,000 tokens" in p.inner_text("#context") and p.is_visible("#room"), "an almost full context: " + p.inner_text("#hint"))
    page.say("The sixth")
    p.wait_for_selector(".full")
    want("holds 1000" in p.inner_text(".full .fail"), "a full context is not explained")
    want(not p.evaluate(NAMELESS), f"controls without a name: {p.evaluate(NAMELESS)}")
    page.shot("17-full-context")
    state["status"] = 500
    button("Leave out the oldest turns").click()
    p.get_by_text("no counting today").wait_for()
    want(texts(seen[-1])[0] == "Question 1" and p.locator(".cut").count() == 0, "a failed count changed the conversation")
    state["status"] = 200
    button("Leave out the oldest turns").focus()
    p.keyboard.press("Enter")
    page.until(".cost", 6)
    want(texts(seen[-1])[0] == "Question 3" and texts(seen[-1])[-1] == "The sixth", f"what was sent: {texts(seen[-1])}")
    want(p.evaluate("document.activeElement.id") == "input", "the focus after turns were left out")
    want("2 turns above are not sent" in p.inner_text(".cut") and "2 turns not sent" in p.inner_text("#context"), "what was left out is not said")
    want(p.locator(".msg").count() == 12 and p.locator(".msg.unsent").count() == 4, "text that is not sent does not stay")
    want(p.evaluate("document.querySelectorAll('#log > *')[4].className") == "cut", "the place of the line")
    p.evaluate("document.querySelector('.cut').scrollIntoView({block: 'center'})")
    page.shot("18-turns-left-out")
    # It stays so: after a reload, for another version of the answer and of the question, for the next question.
    p.reload()
    p.wait_for_selector(".cut")
    p.locator(".msg.assistant").last.get_by_text("Regenerate").click()
    page.until(".versions", 1)
    want(texts(seen[-1])[0] == "Question 3", f"what a regenerated answer is sent: {texts(seen[-1])}")
    p.locator(".msg.user").last.hover()
    p.locator(".msg.user").last.get_by_text("Edit").click()
    p.fill(".edit", "The sixth, edited")
    p.keyboard.press("Enter")
    page.until(".cost", 6)
    want(texts(seen[-1])[0] == "Question 3" and texts(seen[-1])[-1] == "The sixth, edited", f"what an edited question is sent: {texts(seen[-1])}")
    page.say("The seventh")
    page.until(".cost", 7)
    page.say("The eighth")
    p.wait_for_selector(".full")
    button("Leave out the oldest turns").click()
    page.until(".cost", 8)
    want(texts(seen[-1])[0] == "Question 5" and "4 turns above" in p.inner_text(".cut"), f"turns left out twice: {texts(seen[-1])}")
    # A branch above the line has none.
    p.locator(".msg.user").first.hover()
    p.locator(".msg.user").first.get_by_text("Edit").click()
    p.fill(".edit", "Another beginning")
    p.keyboard.press("Enter")
    page.until(".cost", 1)
    want(p.locator(".cut").count() == 0 and p.locator(".unsent").count() == 0 and texts(seen[-1]) == ["Another beginning"], "a branch above the line")
    p.get_by_label("Version before").first.click()
    p.wait_for_selector(".cut")
    button("Send everything again").click()
    want(p.locator(".cut").count() == 0 and p.locator(".unsent").count() == 0, "a line that stays")
    page.say("The ninth")
    p.wait_for_selector(".full")
    want(texts(seen[-1])[0] == "Question 1", "everything is not sent again")
    # A summary is shown, may be discarded and edited, and stands for the turns before.
    button("Begin anew with a summary").click()
    p.wait_for_selector(".full textarea")
    want(p.evaluate("document.activeElement.matches('.full textarea')"), "a summary without the focus")
    want("5 turns are not in it" in p.inner_text(".full") and texts(seen[-1])[0] == "The sixth, edited", "what the summary lacks: " + p.inner_text(".full"))
    want(texts(seen[-1])[-1].startswith("Summarise our conversation") and "The ninth" not in texts(seen[-1]), "the request for a summary")
    page.shot("19-summary")
    button("Discard it").click()
    want(p.locator(".full textarea").count() == 0 and p.locator(".cut").count() == 0 and button("Begin anew with a summary").is_visible(), "a discarded summary")
    button("Begin anew with a summary").click()
    p.wait_for_selector(".full textarea")
    p.fill(".full textarea", "Badgers dig <b>holes</b>.")
    button("Go on with this summary").click()
    page.until(".cost", 9)
    want(len(seen[-1]["messages"]) == 3 and "Badgers dig <b>holes</b>." in texts(seen[-1])[0] and texts(seen[-1])[-1] == "The ninth", f"what a summary stands for: {texts(seen[-1])}")
    cut = p.inner_text(".cut")
    want("8 turns above are not sent" in cut and "Badgers dig <b>holes</b>." in cut and "oldest 5 turns are not in the summary" in cut, "the summary on the screen: " + cut)
    p.evaluate("document.querySelector('.cut').scrollIntoView({block: 'center'})")
    page.shot("20-summary-in-place")
    p.emulate_media(color_scheme="dark")
    p.set_viewport_size({"width": 340, "height": 640})
    page.fits("a summary in place")
    p.evaluate("document.querySelector('.cut').scrollIntoView({block: 'center'})")
    page.shot("20-summary-in-place-phone-dark")
    p.set_viewport_size({"width": 1280, "height": 860})
    p.emulate_media(color_scheme="light")
    page.say("The tenth")
    page.until(".cost", 10)
    want("Badgers dig" in texts(seen[-1])[0] and texts(seen[-1])[2] == "The ninth", "a summary is forgotten")
    p.get_by_label("Edit the summary").click()
    p.fill(".cut textarea", "Moles dig.")
    p.keyboard.press("Control+Enter")
    p.locator(".msg.assistant").last.get_by_text("Regenerate").click()
    page.until(".versions", 3)
    want(texts(seen[-1])[0].endswith("Moles dig."), "an edited summary is not sent")
    # An export has it all; a hostile cut does no harm.
    cuts = p.evaluate("JSON.stringify([...chat.messages.values()].filter((m) => m.cut).map((m) => m.cut))")
    want("Moles dig." in cuts and p.evaluate("cleanMessage({id: 'x', role: 'user', content: '', cut: {from: {}, summary: 7, lost: 'n'}}).cut.summary") == "", "a stored cut: " + cuts)
    for bad in ({"from": "", "summary": ""}, {"from": "nowhere", "summary": "x"}, {"from": "__proto__", "summary": ""}, {"from": "b", "summary": "", "lost": 1e99}):
        want(p.evaluate("""(cut) => sentOf([{id: 'a', role: 'user', content: 'q'}, {id: 'b', role: 'assistant', content: 'a'},
            cleanMessage({id: 'c', role: 'user', content: 'r', cut})]).length""", bad) >= 2, f"a hostile cut: {bad}")
    # An answer that filled the context, an empty summary, a stopped one.
    state["summary"] = " "
    fill("Item")
    p.click("#room")
    want(p.evaluate("document.activeElement.closest('.full') !== null"), "Make room without the focus")
    button("Not now").click()
    want(p.locator(".full").count() == 0 and p.locator(".cut").count() == 0 and p.is_visible("#room"), "an offer that stays")
    p.click("#room")
    p.set_viewport_size({"width": 340, "height": 640})
    page.fits("an offer")
    p.evaluate("toEnd(true)")
    page.shot("22-make-room-phone")
    p.set_viewport_size({"width": 1280, "height": 860})
    button("Begin anew with a summary").click()
    p.get_by_text("The model wrote no summary").wait_for()
    state["summary"] = "Five items."
    button("Begin anew with a summary").click()
    p.wait_for_selector(".full textarea")
    want("Item 5" in texts(seen[-1]), "a summary without the last turn")
    button("Go on with this summary").click()
    want("5 turns above" in p.inner_text(".cut") and p.evaluate("$('log').lastChild.className") == "cut", "a summary of all")
    page.say("On we go")
    page.until(".cost", 6)
    want(len(seen[-1]["messages"]) == 3 and "Five items." in texts(seen[-1])[0], f"after a summary of all: {texts(seen[-1])}")
    # One message that is too long by itself.
    p.click("#new")
    page.say("LONG " * 300)
    p.wait_for_selector(".full")
    want("no older turn" in p.inner_text(".full") and button("Leave out the oldest turns").count() == 0, "a message that is too long by itself")
    fill("Before")
    page.say("LONG " * 300)
    p.wait_for_selector(".full")
    button("Leave out the oldest turns").click()
    p.get_by_text("Without the older turns").wait_for()
    want(p.locator(".cut").count() == 0, "a cut that helps nothing")
    # Stop.
    p.route("**/tokenize", lambda r: None)
    button("Begin anew with a summary").click()
    p.wait_for_selector(".full .wait")
    p.keyboard.press("Escape")
    button("Begin anew with a summary").wait_for()
    want(p.locator(".full .fail").count() == 1, "a stopped summary leaves an error")
    # A question after an answer that failed: its version before is not lost.
    page.say("Short")
    p.wait_for_selector(".full")
    n = p.evaluate("shownPath(chat).length")
    p.locator(".msg.assistant", has_text="holds 1000").first.get_by_text("Try again").click()
    when(p, "document.querySelector('#log').ariaBusy === 'false'")
    want(p.evaluate("[...chat.messages.values()].filter((m) => m.parent && !chat.messages.has(m.parent)).length") == 0 and n == 14, "messages without their parent")
    page.troubles = [t for t in page.troubles if "400" not in t and "500" not in t]


def full_for_real(browser, out):
    """The bundled model in a short context: turns are left out until the question is answered."""
    server, url = start("-c", "256")
    try:
        page = Page(browser, url, out, viewport={"width": 1280, "height": 860})
        p = page.p
        k = 0
        while not p.locator(".full").count():
            want(k < 40, "a context that is never full")
            page.say("What is carat?")
            k += 1
            when(p, f"(document.querySelector('#log').ariaBusy === 'false' && document.querySelectorAll('.cost').length === {k}) || document.querySelector('.full')")
        page.shot("21-full-for-real")
        p.get_by_role("button", name="Begin anew with a summary").click()
        p.wait_for_selector(".full textarea, .full .fail:has-text('no summary')")
        if p.get_by_role("button", name="Discard it").count():
            p.get_by_role("button", name="Discard it").click()
        n = p.locator(".msg").count()
        p.get_by_role("button", name="Leave out the oldest turns").click()
        p.wait_for_selector(".cut")
        when(p, "document.querySelector('#log').ariaBusy === 'false'")
        want(p.locator(".full").count() == 0 and p.locator(".fail").count() == 0, "turns were left out in vain")
        want(p.locator(".msg").count() >= n and p.locator(".msg.unsent").count() > 0, "what stays on the screen")
        want(not [t for t in page.troubles if "400" not in t], f"in the console: {page.troubles}")
    finally:
        server.terminate()
        server.wait()


def imports(page):
    """What was exported comes back; hostile files do no harm."""
    p = page.p
    answer_with(p, lambda r: [delta(content="Exported *answer*"), delta("stop"), STATS])
    p.click("#new")
    page.say("To be exported")
    page.until(".cost", 1)
    with p.expect_download() as wait:
        p.click("#export")
    saved = json.loads(pathlib.Path(wait.value.path()).read_text())
    n_chats = len(saved["conversations"])
    p.evaluate("for (const id of [...chats.keys()]) eraseChat(id)")
    p.evaluate("localStorage.clear()")
    p.reload()
    p.wait_for_selector("#model.up")

    def load(data):
        p.evaluate("document.querySelector('#toast').textContent = ''")
        p.set_input_files("#import-file", [{"name": "file.json", "mimeType": "", "buffer": data if isinstance(data, bytes) else json.dumps(data).encode()}])
        when(p, "document.querySelector('#toast').textContent !== ''")
        return p.inner_text("#toast")

    want(f"Imported {n_chats} conversation" in load(saved), "an import: " + p.inner_text("#toast"))
    want("here already" in load(saved), "the same import twice: " + p.inner_text("#toast"))
    p.reload()
    p.get_by_text("To be exported").first.click()
    p.wait_for_selector(".msg .md em")
    for data in (b"", b"\xff\xfe", b"{}", b"[[[[", b"null", b"7", b'"x"', {"conversations": {}}, [None, 1, "x", [], {}], b"[" * 100000,
                 [{"id": "../x", "messages": []}], [{"id": "a.b", "messages": []}], [{"id": {}, "messages": []}], [{"id": "e", "messages": "x"}]):
        said = load(data)
        want("cannot be imported" in said or "cannot be read" in said or "here already" in said, f"{data!r}: {said}")
    evil = {"id": "evil", "title": "<img src=x onerror=window.ran=1>" + "t" * 5000, "at": "x", "leaf": "__proto__", "system": 7, "messages": [
        {"id": "__proto__", "parent": "constructor", "role": "user", "content": "<img src=x onerror=window.ran=1>", "at": 1e308},
        {"id": "a1", "parent": "a2", "role": "user", "content": "cycle one", "at": 1}, {"id": "a2", "parent": "a1", "role": "assistant", "content": "cycle *two*", "at": 2,
         "stats": {"prompt": "x", "generated": -1, "rate": "<b>", "why": {}}, "calls": [None, 1, {"id": 1, "name": "<b>n</b>", "arguments": {}}]},
        {"id": "b", "role": "system", "content": "x"}, {"id": "c", "role": "user", "content": {}}, {"role": "user"}, None, 7,
        {"id": "d", "parent": "d", "role": "user", "content": "its own parent", "files": [{"name": "n" * 999, "text": "x"}, {"name": 1}, None] * 30},
        {"id": "__proto__", "parent": None, "role": "assistant", "content": "twice", "error": "e" * 10, "finish": 3}]}
    load([evil])
    p.reload()
    p.locator("#list .go", has_text="<img").click()
    n = p.evaluate("[...chat.messages.values()].every((m) => pathTo(chat, m.id)[0].parent === null) && chat.messages.size")
    want(n == 4, f"messages of a hostile import: {n}")
    for m in ("a1", "a2", "d", "__proto__"):
        p.evaluate("(id) => { chat.leaf = id; showChat(); }", m)
    want(p.evaluate("window.ran === undefined && ({}).polluted === undefined"), "a hostile import ran")
    page.fits("a hostile import")
    p.locator("#list .on .more").click()
    p.get_by_role("menuitem", name="Delete").click()


def storage(browser, url, out):
    """Storage that is full, damaged, or not there: nothing is lost in silence."""
    troubles = []

    def fresh(script):
        page = Page(browser, url, out, script=script, viewport={"width": 1280, "height": 860})
        answer_with(page.p, lambda r: [delta(content="An *answer*."), delta("stop"), STATS])
        return page, page.p

    page, p = fresh("")
    p.evaluate("""() => { let text = 'x'.repeat(1 << 20);
        for (let k = 0; text; ) try { localStorage.setItem('other.' + k++, text); } catch { text = text.slice(0, text.length >> 1); } }""")
    page.say("With a full storage")
    page.until(".cost", 1)
    p.wait_for_selector("#storage:not([hidden])")
    want("kept only until this tab is closed" in p.inner_text("#storage"), "a full storage: " + p.inner_text("#storage"))
    page.shot("16-full")
    p.click("#new")
    p.get_by_text("With a full storage").first.click()
    p.wait_for_selector(".md em")
    p.evaluate("for (const k of Object.keys(localStorage)) if (k.startsWith('other.')) localStorage.removeItem(k)")
    p.evaluate("store.retry()")
    want(p.locator("#storage").is_hidden(), "room that was made is not used")
    p.reload()
    p.wait_for_selector(".md em")
    troubles += page.troubles

    page, p = fresh("Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }});")
    page.say("Without a storage")
    page.until(".cost", 1)
    want("keeps nothing" in p.inner_text("#storage"), "no storage: " + p.inner_text("#storage"))
    p.click("#new")
    p.get_by_text("Without a storage").first.click()
    p.wait_for_selector(".md em")
    troubles += page.troubles

    page, p = fresh("""if (!sessionStorage.getItem('done')) { sessionStorage.setItem('done', '1');
        for (const [k, v] of Object.entries({'settings': '[1,', 'last': '{"a":1}', 'chat.bad': '{"id":', 'chat.odd': '{"id":"other","title":"x"}', 'chat.ok': '{"id":"ok","title":"Still here","leaf":"nowhere"}',
            'msg.ok.m1': '{"id":"m1","role":"user","content":"Readable","parent":null,"at":1}', 'msg.ok.m2': 'not json', 'msg.ok.m3': '{"id":"m9","role":"user","content":"misplaced"}',
            'msg.ok.m4': '[]', 'index': '??'})) localStorage.setItem('carat.' + k, v); }""")
    p.get_by_text("Still here").click()
    p.wait_for_selector(".msg.user")
    want("Readable" in p.inner_text("#log") and "cannot be read" in p.inner_text("#storage"), "a damaged storage: " + p.inner_text("#storage"))
    with p.expect_download() as wait:
        p.click("#storage button >> nth=0")
    saved = json.loads(pathlib.Path(wait.value.path()).read_text())
    want(saved["damaged"]["msg.ok.m2"] == "not json" and "chat.bad" in saved["damaged"], "an export without what is damaged")
    want(p.evaluate("localStorage.getItem('carat.chat.bad')") == '{"id":', "a damaged entry was changed")
    troubles += page.troubles
    want(not troubles, f"in the console: {troubles}")


# Contrast by WCAG 2: what text needs on what is behind it.
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true}), root = getComputedStyle(document.documentElement);
    const light = (name) => {
        canvas.fillStyle = root.getPropertyValue(name);
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const bad = [];
    for (const [text, ...behind] of [['--ink', '--paper', '--sheet', '--sunk', '--wash', '--code'], ['--soft', '--paper', '--sheet', '--sunk', '--code', '--wash'],
        ['--gem', '--paper', '--sheet'], ['--gem-ink', '--gem'], ['--bad', '--paper', '--sheet'], ['--k', '--code'], ['--s', '--code'], ['--c', '--code'], ['--n', '--code'], ['--f', '--code'], ['--v', '--code']])
        for (const b of behind) {
            const [x, y] = [light(text), light(b)].sort((p, q) => q - p), ratio = (x + 0.05) / (y + 0.05);
            if (ratio < 4.5) bad.push(`${text} on ${b}: ${ratio.toFixed(2)}`);
        }
    return bad;
}"""
NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, [tabindex="0"], a[href]')].filter((e) => e.checkVisibility() &&
    !(e.getAttribute('aria-label') || e.textContent.trim() || e.title || (e.labels && e.labels.length))).map((e) => e.outerHTML.slice(0, 80))"""


def accessible(page):
    p = page.p
    for theme in ("light", "dark"):
        p.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        bad = p.evaluate(CONTRAST)
        want(not bad, f"contrast, {theme}: {bad}")
    p.evaluate("showTheme()")
    want(not p.evaluate(NAMELESS), f"controls without a name: {p.evaluate(NAMELESS)}")
    for opener, dialog in (("#open-set", "#set"), ("#open-models", "#models-panel"), ("#open-about", "#about")):
        p.click(opener)
        want(not p.evaluate(NAMELESS), f"controls without a name: {p.evaluate(NAMELESS)}")
        want(p.evaluate(f"document.querySelector('{dialog}').contains(document.activeElement)"), "a dialog without the focus")
        p.keyboard.press("Escape")
        want(p.evaluate(f"document.activeElement.matches('{opener}')"), "a dialog does not give the focus back")
    want(p.evaluate("(e => (e.focus(), e.matches('.skip')))(document.querySelector('a[href], button, input, textarea'))"), "the first stop of Tab")
    p.keyboard.press("Enter")
    want(p.evaluate("document.activeElement.id") == "input", "the skip link")
    p.emulate_media(reduced_motion="reduce")
    moving = p.evaluate("""() => { $('log').append(el('p', {className: 'wait'}, el('b')), el('p', {className: 'msg lit'}));
        return document.getAnimations().length; }""")
    p.evaluate("document.querySelectorAll('#log > .wait, #log > p.lit').forEach((e) => e.remove())")
    want(moving == 0, "motion where none is wanted")
    p.emulate_media(reduced_motion="no-preference")


def hostile(page):
    for name, text in HOSTILE.items():
        for step in (SIZE * 4, 1000):
            ms, worst, n_nodes, level, _ = page.p.evaluate(RENDER, [text, step])
            print(f"  {name:26} {'whole' if step > SIZE else 'streamed':8} {ms:6.0f} ms, longest pause {worst:4.0f} ms, "
                  f"{n_nodes} nodes{', as text' if level > 1 else ', plain' if level else ''}", flush=True)
            want(ms < 20000 and worst < 3000, f"{name} stops the page for {worst:.0f} ms of {ms:.0f} ms")


def look(page, name):
    """What the conversations of the parts before look like on another screen."""
    p = page.p
    answer_with(p, lambda r: [delta(content=MARKDOWN + "\n\n" + MATHS), delta("stop"), STATS])
    n = p.locator(".cost").count()
    page.say("Show **all** of it, please, in " + "many words, " * 150)
    page.until(".cost", n + 1)
    p.wait_for_selector(".msg:last-child .formula")
    page.fits(name)
    for k, place in enumerate((0, 700, 10 ** 6)):
        p.evaluate(f"document.querySelector('#scroll').scrollTop = {place}")
        page.shot(f"9-{name}-{k}")
    if "phone" in name:
        p.click("#open-side")
        p.fill("#find", "mutex")
        p.wait_for_selector("#list mark")
        page.shot(f"9-{name}-side")
    want(not page.troubles, f"in the console: {page.troubles}")


def two_tabs(page):
    """Both write into one conversation. No message is lost; the second becomes another version."""
    pages, url = [page.p, page.p.context.new_page()], page.p.url
    for p in pages:
        p.on("pageerror", lambda e: page.troubles.append(str(e)))
        p.route("**/v1/chat/completions", lambda r: r.fulfill(
            status=200, content_type="text/event-stream", body=stream([delta(content="An answer."), delta("stop"), STATS])))
    a, b = pages
    a.click("#new")
    a.fill("#input", "From the first tab")
    a.keyboard.press("Enter")
    a.wait_for_selector(".cost")
    b.goto(url)
    b.wait_for_selector(".cost")
    for p, words in ((a, "one"), (b, "two")):
        p.fill("#input", "And " + words)
    a.evaluate("document.querySelector('#form').requestSubmit()")
    b.evaluate("document.querySelector('#form').requestSubmit()")
    for p in pages:
        when(p, "document.querySelectorAll('.msg').length >= 4 && document.querySelector('#log').ariaBusy === 'false'")
    a.reload()
    a.wait_for_selector(".cost")
    seen = a.evaluate("JSON.stringify([...chat.messages.values()].map((m) => m.content))")
    want("And one" in seen and "And two" in seen, "a turn was lost between two tabs: " + seen)
    # A turn in one tab appears in the other.
    n = b.locator(".msg").count()
    a.evaluate("openChat(chat.id)")
    b.fill("#input", "Third")
    b.keyboard.press("Enter")
    when(b, f"document.querySelectorAll('.msg').length === {n + 2}")
    when(a, "[...chat.messages.values()].some((m) => m.content === 'Third')")
    b.close()
    # A conversation in the old format, a record with a list of messages.
    a.evaluate("""localStorage.setItem('carat.chat.old', JSON.stringify({id: 'old', title: 'Old one', at: Date.now(),
        system: '', messages: [{role: 'user', content: 'Old question'}, {role: 'assistant', content: 'Old *answer*'}]}))""")
    a.goto(url)
    a.get_by_text("Old one").click()
    a.wait_for_selector(".md em")
    want(a.locator(".msg").count() == 2 and "Old question" in a.inner_text("#log")
         and a.evaluate("'messages' in JSON.parse(localStorage.getItem('carat.chat.old'))") is False, "an old conversation")


def with_a_key(browser, out):
    """A server that asks for a key: the page says so and works after the key is entered."""
    server, url = start("--api-key", "secret")
    try:
        page = Page(browser, url, out, ready="#model.down")
        p = page.p
        page.say("What is carat?")
        p.wait_for_selector(".fail")
        want("API key" in p.inner_text(".fail"), "a missing key is not explained")
        p.click("#open-set")
        p.fill("[name=key]", "secret")
        p.keyboard.press("Escape")
        p.wait_for_selector("#model.up")
        p.get_by_text("Try again").click()
        page.until(".cost", 1)
        want(not [t for t in page.troubles if "401" not in t], f"in the console: {page.troubles}")
    finally:
        server.terminate()
        server.wait()


def start(*options):
    home = {name: HOME.name for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HF_HOME")}  # without models of this machine
    server = subprocess.Popen(["./carat", "serve", "-p", "0", "--log", "off", *options],
                              stdout=subprocess.PIPE, text=True, env={**os.environ, **home})
    return server, server.stdout.readline().strip() + "/"


def main():
    o = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    o.add_argument("-o", type=pathlib.Path)
    o.add_argument("--chromium", default="/usr/bin/chromium")
    o.add_argument("--axe", type=pathlib.Path, default="node_modules/axe-core/axe.min.js")
    o.add_argument("--only", nargs="*", default=[""])
    o = o.parse_args()
    if o.o:
        o.o.mkdir(parents=True, exist_ok=True)
    if not pathlib.Path(o.chromium).exists():
        print(f"page_check: skipped, because there is no Chromium at {o.chromium} (--chromium PATH)")
        return
    size = {"viewport": {"width": 1280, "height": 860}}
    phone = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2}
    looks = {"dark": {**size, "color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 780}, **phone},
             "phone-dark": {"viewport": {"width": 340, "height": 640}, "color_scheme": "dark", **phone}}
    server, url = start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=o.chromium, args=["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"])

            def run(part, *given):
                if part.__name__.startswith(tuple(o.only)):
                    print(part.__name__, flush=True)
                    part(*given)

            page = Page(browser, url, o.o, **size)
            for part in (with_the_model, played, maths, parts, attacks, features, accessible, hostile):
                run(part, page)
            want(not page.troubles, f"in the console: {page.troubles}")
            kept = page.p.context.storage_state()
            for name, kw in looks.items():
                run(look, Page(browser, url, o.o, storage_state=kept, **kw), name)
            if o.axe.exists():
                for name, kw in {**looks, "light": size, "phone-320": {"viewport": {"width": 320, "height": 640}, **phone},
                                 "phone-375": {"viewport": {"width": 375, "height": 667}, **phone}}.items():
                    run(rules, Page(browser, url, o.o, **kw), name, o.axe.read_text())
            else:
                print(f"  without axe-core's rules: {o.axe} is not there (npm i axe-core, --axe FILE)")
            for part in (broken, menus, managed, pictures, sounds, imports, two_tabs, full):
                page = Page(browser, url, o.o, **size)
                run(part, page)
                want(not page.troubles, f"in the console: {page.troubles}")
            run(storage, browser, url, o.o)
            run(with_a_key, browser, o.o)
            run(full_for_real, browser, o.o)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print("page_check: ok")


if __name__ == "__main__":
    main()
