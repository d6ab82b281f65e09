"""Looks at the site in a real browser, at the widths of a desk and of a telephone, light and dark.

    pip install -c constraints.txt '.[docs,look]'
    mkdocs build --strict --site-dir SITE
    python docs/look.py SITE SCREENSHOTS [PAGE ...]

SITE and SCREENSHOTS belong outside of the repository. Each page is photographed four times. What is
wrong is printed, a line each: a page or a code block wider than its room, a picture that does not
load or has no words, a link or button without a name, an id that stands twice, headings that skip
a level, text with too little contrast. It needs Chromium, which is not part of the package
`playwright`: the system's own is used.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, sync_playwright

WIDTHS = (1400, 400)
THEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FAULTS = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def faults(browser: Browser, address: str, page: str, shots: Path) -> Iterator[str]:
    """What is wrong with a page, after a screenshot of it in each width and theme."""
    for width in WIDTHS:
        for theme in THEMES:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=theme,  # type: ignore[arg-type]
            )
            tab = context.new_page()
            tab.goto(f"{address}/{page}", wait_until="load")
            name = page.strip("/").replace("/", "-") or "index"
            tab.screenshot(path=shots / f"{name}-{width}-{theme}.png", full_page=True)
            for fault in tab.evaluate(FAULTS, width >= 1000):
                yield f"{page or '/'} at {width}, {theme}: {fault}"
            context.close()


def main(site: Path, shots: Path, pages: list[str]) -> int:
    """Print the faults of the pages, or of all; 1 if there are any."""
    shots.mkdir(parents=True, exist_ok=True)
    found = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    pages = pages or ["" if page == "." else f"{page}/" for page in found]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    executable = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        address = f"http://127.0.0.1:{server.server_port}"
        count = 0
        for page in pages:
            for fault in faults(browser, address, page, shots):
                print(fault, flush=True)
                count += 1
        browser.close()
    server.shutdown()
    print(f"{len(pages)} pages, {count} faults", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
