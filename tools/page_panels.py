"""Parts of tools/page_check.py: panels, keys, screen readers, small screens and dark ones."""
import json

from page_rig import answer_with, AXE, CALL, CONTRAST, delta, NAMELESS, Page, start, STATS, want
from page_texts import MARKDOWN, MATHS, PARTS


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
