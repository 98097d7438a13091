"""Headless Chromium, as Debian packages it, driven by selenium."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

NARROW, WIDE = (390, 844), (1280, 900)


class Browser:
    """One window; `with Browser() as browser: browser.open(path)`.

    Raises:
        SystemExit: there is no Chromium, or no selenium; says how they are installed.
    """

    def __init__(self) -> None:
        try:
            from selenium import webdriver
        except ImportError:
            raise SystemExit(
                "no selenium: make bars installs it, or pip install '.[bars]'"
            ) from None
        found = shutil.which("chromium"), shutil.which("chromedriver")
        if None in found:
            raise SystemExit("no chromium: apt-get install chromium chromium-driver")
        options = webdriver.ChromeOptions()
        options.binary_location = str(found[0])
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=str(found[1]))
        self.driver: Any = webdriver.Chrome(options=options, service=service)
        self.resize(WIDE)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def open(self, path: Path) -> float:
        """Open a file; returns the seconds until its scripts have run and it is painted once."""
        begin = time.monotonic()
        self.driver.get(path.resolve().as_uri())
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )
        return time.monotonic() - begin

    def resize(self, size: tuple[int, int]) -> None:
        """Make the window so wide and high, as a phone's or a desk's."""
        width, height = size
        wanted = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)

    def prefer(self, scheme: str) -> None:
        """Say that the user prefers "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def ask(self, script: str, *arguments: Any) -> Any:
        """What a line of JavaScript gives."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def click(self, selector: str) -> None:
        """Click the first element of a kind, as a user would: it is scrolled to before."""
        found = self.driver.find_element("css selector", selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, on what has the focus: "TAB", "ARROW_DOWN", "END"."""
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key))

    def complaints(self) -> list[str]:
        """What was written to the console since it was asked for last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: Path) -> None:
        """Keep what is seen as a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))
