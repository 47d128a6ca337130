"""Writes the pictures of the README: a run in the board, and rollouts of its task.

    mmrl train configs/demo/digits.toml
    python assets/make_pictures.py runs/digits

It needs Chromium and playwright, as the plugin `browser` does.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from mmrl_browser.chromium import executable
from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "pictures"
SIZE = {"width": 1200, "height": 900}
MOST_BYTES = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run's folder")
    run = parser.parse_args().run
    PICTURES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mmrl", "board", str(run.parent), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as board, sync_playwright() as playwright:
        try:
            assert board.stdout is not None
            address = next((found for line in board.stdout if (found := re.search(r"http://\S+", line))), None)
            if address is None:
                sys.exit("the board did not print its address")
            browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, device_scale_factor=1)
            for name, path in (("board", f"curves?run={run.name}"), ("rollouts", f"rollouts?run={run.name}")):
                page.goto(f"{address[0].rstrip('/')}/{path}")
                page.wait_for_timeout(3000)
                target = PICTURES / f"{name}.png"
                page.screenshot(path=target)
                size = target.stat().st_size
                if size > MOST_BYTES:
                    sys.exit(f"{target} has {size} bytes, and the README allows {MOST_BYTES}: take a smaller window")
                print(f"{target}: {size / 1000:.0f} kB")
            browser.close()
        finally:
            board.terminate()


if __name__ == "__main__":
    main()
