"""Find or install a browser for the tests: playwright's Chromium, or else the system's.

    python tools/browser.py             # print the browser that is available
    python tools/browser.py --install   # install one if it is missing, on Debian as root with apt-get

The exit status is 0 even without a browser; the tests then report what they skip.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 600


def find() -> str | None:
    """Return the path of a Chromium, preferably playwright's."""
    from playwright.sync_api import sync_playwright  # a browser's driver, and only developers have it

    with sync_playwright() as driver:
        bundled = driver.chromium.executable_path
    if Path(bundled).exists():
        return bundled
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install() -> None:
    """Download playwright's Chromium; if that fails, install Debian's."""
    if _run([sys.executable, "-m", "playwright", "install", "chromium"]):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _run(["apt-get", "update", "-qq"])
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"])


def _run(command: list[str]) -> bool:
    try:
        process = subprocess.run(
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def main() -> None:
    browser = find()
    if browser is None and "--install" in sys.argv[1:]:
        print("installing a browser for the tests", flush=True)
        install()
        browser = find()
    print(browser or "NO BROWSER: live widgets are not tested (apt-get install chromium)")


if __name__ == "__main__":
    main()
