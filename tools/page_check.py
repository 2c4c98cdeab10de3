"""Drives the chat page in headless Chromium: tools/page_check.py [-o DIR] [--chromium PATH]

Needs the playwright package and a Chromium. Starts ./carat serve with the bundled model on a free port and uses the page.
page_answers.py asks the model, and then answers requests itself, with texts that the small model never writes: Markdown,
formulas, code, thoughts, tool calls, errors, markup that attacks the page, and 200 KB of texts that are slow to render.
page_chats.py has conversations: it searches, imports hostile files, fills the browser's storage, damages it and takes it
away, lets two tabs write into one conversation, and fills the context. page_media.py attaches pictures and sounds, and
records with a microphone that beeps. page_panels.py opens panels and menus, by keys too, on small screens and dark ones.

It fails on an error in the page's console, on a request to another server, on text wider than the screen, on colours
without contrast and on controls without names. With -o it writes screenshots, light and dark, desktop and phone. Where
axe-core is (--axe FILE, or node_modules), its rules find nothing in five screens with an answer, a call, the panel and the
menu open. --only PART... runs the parts whose names begin so.
"""
import argparse
import pathlib

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    raise SystemExit("page_check: skipped, because Python has no playwright (pip install playwright)")

from page_answers import attacks, broken, called, hostile, loaded_again, maths, parts, played, with_the_model
from page_chats import features, full, full_for_real, imports, menus, storage, two_tabs
from page_media import pictures, sounds
from page_panels import accessible, look, managed, rules, with_a_key
from page_rig import Page, start, want


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
            for part in (broken, loaded_again, called, menus, managed, pictures, sounds, imports, two_tabs, full):
                page = Page(browser, url, o.o, **size)
                run(part, page)
                want(not page.troubles, f"in the console: {page.troubles}")
            run(called, Page(browser, url, o.o, **looks["phone-dark"]))
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
