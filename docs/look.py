"""Looks at the site in a real browser, at the widths of a desk and of a telephone, light and dark.

    pip install -c constraints.txt '.[docs,look]'
    npm install --prefix FOLDER axe-core
    mkdocs build --strict --site-dir SITE
    sharegen report runs/*.jsonl --html SITE/report.html
    python docs/look.py FOLDER SITE SCREENSHOTS [PAGE ...]

The three folders belong outside of the repository. Each page is photographed four times. What is
wrong is printed, a line each: all that axe-core finds (contrast, names, headings, words for
pictures, labels), a page wider than its room, a code block or a table that is cut off at a desk, a
table that does not scroll, a picture that does not load, an id that stands twice, and what has the
keyboard's focus without showing it. The report's page is looked at in the same way as the site's.
It needs Chromium, which is not part of the package `playwright`: the system's own is used.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, Page, sync_playwright

WIDTHS = (1400, 400)
THEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FAULTS = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
AXE = Path("node_modules/axe-core/axe.min.js")
RUN_AXE = """async () => (await axe.run()).violations.flatMap(rule =>
    rule.nodes.map(node => `${rule.id}: ${node.html.replace(/\\s+/g, " ").slice(0, 100)}`))"""
TABS = 12  # presses of the tabulator: past the theme's head, into the page
HAS_FOCUS = """() => {
    const element = document.activeElement;
    if (element === document.body) return "";
    const style = getComputedStyle(element);
    const shows = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    return shows || element.tagName === "INPUT" ? "" : element.outerHTML.slice(0, 100);
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def focus_faults(tab: Page) -> Iterator[str]:
    """What the tabulator reaches and nobody sees that it did. A field shows its caret."""
    for _ in range(TABS):
        tab.keyboard.press("Tab")
        if hidden := tab.evaluate(HAS_FOCUS):
            yield f"focus does not show: {hidden}"


def faults(browser: Browser, address: str, page: str, axe: str, shots: Path) -> Iterator[str]:
    """What is wrong with a page, after a screenshot of it in each width and theme."""
    for width in WIDTHS:
        for theme in THEMES:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=theme,  # type: ignore[arg-type]
                reduced_motion="reduce",  # or colours are judged while they change
                bypass_csp=True,  # or the report's page keeps axe-core out
            )
            tab = context.new_page()
            tab.goto(f"{address}/{page}", wait_until="load")
            name = page.strip("/").replace("/", "-").removesuffix(".html") or "index"
            tab.screenshot(path=shots / f"{name}-{width}-{theme}.png", full_page=True)
            tab.evaluate(f"{axe}; 0")
            found = [*tab.evaluate(FAULTS, width >= 1000), *tab.evaluate(RUN_AXE)]
            for fault in [*found, *focus_faults(tab)]:
                yield f"{page or '/'} at {width}, {theme}: {fault}"
            context.close()


def main(axe: Path, site: Path, shots: Path, pages: list[str]) -> int:
    """Print the faults of the pages, or of all; 1 if there are any."""
    shots.mkdir(parents=True, exist_ok=True)
    found = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    others = sorted(path.name for path in site.glob("*.html") if path.stem not in ("index", "404"))
    pages = pages or ["" if page == "." else f"{page}/" for page in found] + others
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    executable = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        address = f"http://127.0.0.1:{server.server_port}"
        source = (axe / AXE).read_text(encoding="utf-8")
        count = 0
        for page in pages:
            for fault in faults(browser, address, page, source, shots):
                print(fault, flush=True)
                count += 1
        browser.close()
    server.shutdown()
    print(f"{len(pages)} pages, {count} faults", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*map(Path, sys.argv[1:4]), sys.argv[4:]))
