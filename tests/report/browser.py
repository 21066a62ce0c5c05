"""A real browser without a screen, that speaks to nobody but the page."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1300,900",
)


def start(folder: Path) -> Any:
    """Chromium with a profile of its own; skipped where there is none, but never in continuous integration."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not program or not driver:
        sentence = "there is no Chromium here: install the system's packages chromium and chromium-driver."
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def prefer(driver: Any, scheme: str) -> None:
    """Light or dark, as the system of the reader says."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def resize(driver: Any, width: int, height: int, mobile: bool = False) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def charts(driver: Any) -> dict[str, list[dict[str, Any]]]:
    """What is drawn: figure id -> traces as (rule, visible, points), figures that are hidden left out."""
    return driver.execute_script("""
        const found = {};
        for (const figure of document.querySelectorAll("figure")) {
          const chart = figure.querySelector(".chart");
          if (figure.offsetParent === null || chart.offsetParent === null) continue;
          const about = (t) => ({ rule: t.meta, visible: t.visible !== false, points: t.x.length });
          found[figure.id] = chart.data.map(about);
        }
        return found;""")


def drawn(driver: Any, figure: str) -> int:
    """Curves that are really painted."""
    return driver.execute_script(f"return document.querySelectorAll('#{figure} .scatterlayer .trace').length")


def problems(driver: Any) -> list[str]:
    """What the console complains about."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
