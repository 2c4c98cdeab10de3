"""What the parts of tools/page_check.py share: the server, a page that notes every trouble, answers that are made here, and
what is asked of any page.
"""
import json
import os
import subprocess
import tempfile

HOME = tempfile.TemporaryDirectory()
STATS = {"choices": [],
         "usage": {"prompt_tokens": 812, "completion_tokens": 231,
                   "prompt_tokens_details": {"cached_tokens": 640}},
         "timings": {"cache_n": 640, "prompt_n": 172, "predicted_n": 231,
                     "predicted_per_second": 48.31, "reuse": "prefix"}}
CALL = {"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Rome","days":2}'}}
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
AXE = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map((v) =>
    v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ', ' + n.failureSummary.split('\\n')[1]).join('; '))"""

DRAWN = "[...document.querySelectorAll('#log .md')].every((e) => !e.view || e.view.settled !== null)"


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
        """Waits until no answer runs, all texts are drawn, which a worker does, and there are n of these nodes."""
        for _ in range(600):
            idle = self.p.get_attribute("#log", "aria-busy") == "false" and self.p.evaluate(DRAWN)
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


def answer_with(p, make):
    """Answers requests for completions; make(request) returns chunks. Returns the list of requests."""
    seen = []

    def handle(route):
        seen.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=stream(make(seen[-1])))

    p.unroute_all()
    p.route("**/v1/chat/completions", handle)
    return seen


def start(*options):
    home = {name: HOME.name for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HF_HOME")}  # without models of this machine
    server = subprocess.Popen(["./carat", "serve", "-p", "0", "--log", "off", *options],
                              stdout=subprocess.PIPE, text=True, env={**os.environ, **home})
    return server, server.stdout.readline().strip() + "/"
