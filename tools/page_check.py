"""Drives the chat page in headless Chromium: tools/page_check.py [-o DIR] [--chromium PATH]

Needs the playwright package and a Chromium. Starts ./carat serve with the bundled model on a free
port and uses the page: streams, regenerates, edits, stops, reloads, asks for structured output, and
has two answers side by side. Then it answers requests itself, with texts that the small model never
writes: Markdown, code, thoughts, tool calls, errors, HTML, and 200 KB of texts that are slow to
render. Two tabs write into one conversation. It fails on an error in the page's console, on a request
to another server, and on text wider than the screen. With -o it writes screenshots, light and dark,
desktop and phone.
"""
import argparse
import json
import pathlib
import subprocess

from playwright.sync_api import sync_playwright

MARKDOWN = """Here is a **mutex** in *C*, with `pthread_mutex_t`, a [link](https://example.org/a_(b)) and
a <script>window.ran = 1</script> tag, snake_case_name, 2 * 3 * 4.

## Steps

1. Make the lock.
2. Take it:
   - `pthread_mutex_lock`
   - do the work
3. Give it back.

| op | cost | note |
|---|---:|---|
| lock | 25 ns | uncontended |
| unlock | 20 ns | **always** |

> Quoted text
> over two lines.

```c
#include <pthread.h>
/* one counter, many threads */
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
int add(int n) {
    pthread_mutex_lock(&m); // a line that is longer than any telephone is wide, whatever one does
    return printf("%d\\n", total += n * 0x10);
}
```

[bad](javascript:alert(1)) ![picture](https://example.org/x.png) <img src=x onerror="window.ran=1">

So \\(a_1 * b_1\\) is **\u201cbold\u201d**\u662f, 3 \\* 4 and `` a`b ``; ~~gone~~, **_both_ of them**.

\\[
x = \\frac{a}{b}
- c
\\]

- [ ] open
- [x] done

---

Done."""

SIZE = 200000


def times(text):
    return (text * (SIZE // len(text) + 1))[:SIZE]


# Texts that take some renderers of Markdown more than linear time.
HOSTILE = {
    "a heading and spaces": "# a" + " " * SIZE + "b",
    "marks of emphasis": times("*"), "emphasis that never ends": times("*a "),
    "strong in strong": times("**a ")[:SIZE // 2] + times("a** ")[:SIZE // 2],
    "emphasis of two kinds": times("*_*_**__"), "emphasis in words": times("a**bc*"),
    "ladder of backticks": "".join("`" * i + " " for i in range(1, 630)), "backticks": times("`a "),
    "brackets": "[" * (SIZE // 2) + "]" * (SIZE // 2), "links that never end": times("[a]("),
    "titles that never end": times('[a](b "'), "addresses that never end": times("[a](<b"),
    "pictures": times("!["), "links": times("[a](http://b.c) "), "addresses": times("<http://"),
    "quotes in quotes": times("> "), "lists in lists": times("- ") + "x", "a long list": times("- a\n"),
    "a deep list": "".join(" " * min(i, 400) + "- a\n" for i in range(1000)),
    "quotes": times("> a\nb\n"), "quotes and lists": times("> a\n\n- b\n\n"),
    "a wide table": "|".join("a" * 5000) + "\n" + "|".join("-" * 5000) + "\n" + times("|\n"),
    "a long table": "a|b\n-|-\n" + times("a|b\n"), "almost a rule": "---" + " " * SIZE + "x",
    "almost a table": "a|b\n" + times("-| "), "almost a fence": "~" * SIZE + "`",
    "an open fence": "```c\n" + times("int x = 1; // y\n"), "quotes in code": "```js\n" + times("'\\'")[:59000],
    "escapes in code": "```c\n" + times('\\"')[:59000], "TeX that never ends": times("\\(a "),
    "short lines": times("a\n"), "one word": times("a"), "spaces": " " * SIZE, "everything": times("*_`[~\\(\n> - | # "),
}

# Renders a text in steps. Returns milliseconds with layout, the longest step and the number of nodes.
RENDER = """([text, step]) => {
    const box = document.createElement('div');
    document.querySelector('#log').append(box);
    const stream = new MarkdownStream(box), start = performance.now();
    let worst = 0;
    for (let n = step; n < text.length; n += step) {
        const from = performance.now();
        stream.show(text.slice(0, n), false);
        worst = Math.max(worst, performance.now() - from);
    }
    stream.show(text, true);
    box.offsetHeight;
    const ms = performance.now() - start, n_nodes = box.querySelectorAll('*').length;
    box.remove();
    return [ms, worst, n_nodes];
}"""

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
    def __init__(self, browser, url, out, ready="#model.up", **kw):
        self.troubles, self.out = [], out
        self.p = browser.new_context(**kw).new_page()
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
    want(p.locator("#log script, #log img").count() == 0, "markup of the model became nodes")
    want(p.evaluate("window.ran === undefined"), "markup of the model ran")
    want(all(a.get_attribute("href").startswith("https:") for a in p.locator("#log a").all()), "a bad link")
    want(p.locator("#log table").count() == 1 and p.locator("#log ol ul li").count() == 2
         and p.evaluate("document.querySelector('#log ol').start") == 1, "markdown")
    text = p.inner_text("#log .md")
    want("\\(a_1 * b_1\\)" in text and "- c\n\\]" in text, "TeX lost its backslashes")
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
    want(p.locator(".msg").count() == 7 and p.locator("#list .go").count() == 4, "what a reload keeps")


def hostile(page):
    for name, text in HOSTILE.items():
        for step in (SIZE * 2, 400):
            ms, worst, n_nodes = page.p.evaluate(RENDER, [text, step])
            print(f"  {name:26} {'whole' if step > SIZE else 'streamed':8} {ms:6.0f} ms, longest pause {worst:4.0f} ms, {n_nodes} nodes")
            want(ms < (5000 if step > SIZE else 20000) and worst < 2500, f"{name} stops the page for {max(ms, worst):.0f} ms")


def two_tabs(page, url):
    """Both write into one conversation. No message is lost; the second becomes another version."""
    pages = [page.p, page.p.context.new_page()]
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
    server = subprocess.Popen(["./carat", "serve", "-p", "0", "--log", "off", *options],
                              stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip() + "/"


def main():
    o = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    o.add_argument("-o", type=pathlib.Path)
    o.add_argument("--chromium", default="/usr/bin/chromium")
    o = o.parse_args()
    if o.o:
        o.o.mkdir(parents=True, exist_ok=True)
    server, url = start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=o.chromium, args=["--no-sandbox"])
            page = Page(browser, url, o.o, viewport={"width": 1280, "height": 860})
            with_the_model(page)
            played(page)
            hostile(page)
            troubles, kept = page.troubles, page.p.context.storage_state()
            phone = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2}
            for name, kw in {"dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
                             "phone": {"viewport": {"width": 390, "height": 780}, **phone},
                             "phone-dark": {"viewport": {"width": 340, "height": 640}, "color_scheme": "dark",
                                            **phone}}.items():
                page = Page(browser, url, o.o, storage_state=kept, **kw)
                page.p.wait_for_selector(".msg")
                page.fits(name)
                page.p.evaluate("document.querySelector('#scroll').scrollTop = 330")
                page.shot("9-" + name)
                if "phone" in name:
                    page.p.click("#open-side")
                    page.shot("9-" + name + "-side")
                troubles += page.troubles
            page = Page(browser, url, o.o, viewport={"width": 1280, "height": 860})
            two_tabs(page, url)
            troubles += page.troubles
            want(not troubles, f"in the console: {troubles}")
            with_a_key(browser, o.o)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print("page_check: ok")


main()
