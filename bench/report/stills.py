"""Take the pictures of the page for the documentation: ``make stills``.

The arguments are a command that serves the index of ``make demo``. Each still shows the page at an
address, in light and in dark mode, as WebP.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path("docs/stills")
STILLS = {  # still: address, width and height of the window
    "search": ("?q=a+dog+in+the+snow", 880, 500),
    "filter": ("?q=a+dog&filter=sky%3Dnight", 440, 520),
    "why": ("?q=a+dog+in+the+snow&open=00065.jpg&word=dog", 440, 520),
}
PATIENCE = 120_000  # milliseconds for a page to load its pictures


def main() -> None:
    with (
        subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"],
        ) as browser,
    ):
        try:
            url = next(line.split()[-1] for line in server.stderr or () if " is at " in line)
            for name, (address, width, height) in STILLS.items():
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    device_scale_factor=1.5,
                )
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                    page.goto(url + address, wait_until="networkidle", timeout=PATIENCE)
                    picture = Image.open(io.BytesIO(page.screenshot()))
                    picture.save(FOLDER / f"{name}-{scheme}.webp", quality=80)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
