"""Parts of tools/page_check.py: conversations, their list, search, files and storage, several tabs, and full contexts."""
import json
import pathlib

from page_rig import answer_with, delta, NAMELESS, Page, start, STATS, stream, want, when


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
    p.wait_for_selector(".msg:last-child .md em")
    p.locator(".msg.user details.chip summary").first.click()
    when(p, "document.querySelector('.msg.user details.chip pre').innerText.includes('three ```')")  # filled after the event toggle
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
    want(p.locator(".msg.user details.chip[open]").count() == 1, "an open chip is shut when another answer ends")
    # Search.
    p.keyboard.press("Control+k")
    want(p.evaluate("document.activeElement.id") == "find", "Ctrl+K")
    p.fill("#find", "BADGERS question")  # at once: each pause between keys is a search
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
