"""Parts of tools/page_check.py: pictures and sounds."""
import array
import base64
import io
import json
import math
import pathlib
import wave

from page_rig import answer_with, delta, STATS, want, when

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
    want(p.locator(".thumb.large").count() == 1, "a large picture shrinks when an answer ends")
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
