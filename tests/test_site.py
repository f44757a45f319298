"""The built documentation: complete, strict, and readable in a browser at both widths and in both modes."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documents import ROOT

import normplace
from normplace import analysis, edit, lab, models, ntk, ops
from normplace.models import transformer

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
API = ROOT / "docs" / "reference" / "api"
OPENED = (
    "index",
    "start/install",
    "start/tour",
    "tutorials/audit",
    "tutorials/training-run",
    "howto/gallery",
    "howto/ci",
    "papers/claims",
    "papers/periln",
    "reference/audit",
    "reference/benchmarks",
    "reference/api/analysis",
)
TALLEST = 30_000
"""Pixels at a width of 1400 that a page may have."""

LINKS = """(() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = element => {
        for (let node = element; node; node = node.parentElement) {
            const color = parse(getComputedStyle(node).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255];
    };
    const worst = {};
    for (const link of document.querySelectorAll('article a[href]:not(.headerlink), .md-nav__link, .md-tabs__link')) {
        const seen = link.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
        if (!seen || !link.innerText.trim()) continue;
        const style = getComputedStyle(link), color = parse(style.color), back = ground(link);
        let opacity = color.length === 4 ? color[3] : 1;
        for (let node = link; node; node = node.parentElement) opacity *= getComputedStyle(node).opacity;
        const mixed = [0, 1, 2].map(i => opacity * color[i] + (1 - opacity) * back[i]);
        const [a, b] = [light(mixed), light(back)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (!(ratio >= 4.5)) worst[link.innerText.trim()] = ratio;
    }
    return worst;
})()"""


def pages_of(entries: list) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages_of(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("zensical", reason="needs zensical: pip install 'normplace[docs]'")
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_the_navigation_has_every_page_once():
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages_of(CONFIG["nav"])) == pages


def test_the_reference_has_every_public_name_once():
    documented = re.findall(r"^::: normplace\.(\S+)$", "\n".join(page.read_text() for page in API.glob("*.md")), re.M)
    assert len(documented) == len(set(documented))
    names = [name.rpartition(".")[2] for name in documented]
    modules = {"models", "ops", "ntk", "edit"}
    for public in (normplace, models, transformer, ops, ntk, analysis, edit, lab):
        assert set(public.__all__) - modules - {"UsageError", "__version__"} <= set(names)
    assert not [name for name in documented if "._" in name]


def test_the_probe_sees_links_with_too_little_contrast(browser, tmp_path):
    page = tmp_path / "page.html"
    link = "<a href='#' style='color: {}'>{}</a>"
    body = "".join(link.format(color, color) for color in ("#777", "#767676", "rgb(0 0 0 / 0.5)"))
    page.write_text(f"<body style='background: #fff'><article>{body}</article>")
    browser.open(page.as_uri())
    assert sorted(browser.run(LINKS)) == ["#777", "rgb(0 0 0 / 0.5)"]


def test_the_screenshots_are_complete_and_small():
    script = runpy.run_path(str(ROOT / "scripts" / "take_screenshots.py"))
    pictures = sorted(script["IMAGES"].iterdir())
    assert [picture.name for picture in pictures] == sorted(script["names"]())
    assert sum(picture.stat().st_size for picture in pictures) < 1.5e6
    shown = (ROOT / "docs" / "start" / "tour.md").read_text()
    assert all(picture.name in shown for picture in pictures)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_readable(browser, site, width, dark):
    for name in OPENED:
        browser.open((site / f"{name}.html").as_uri(), width, dark)
        assert browser.named("Runtime.exceptionThrown") == [], name
        addresses = [params["request"]["url"] for params in browser.named("Network.requestWillBeSent")]
        assert all(address.startswith(("file:", "data:", "blob:")) for address in addresses), name
        root = "document.documentElement"
        assert browser.run(f"{root}.scrollWidth") <= browser.run(f"{root}.clientWidth") <= width, name
        assert browser.run("innerWidth") == width, name
        assert browser.run("Array.from(document.images).every(image => image.naturalWidth > 0)"), name
        assert browser.run(LINKS) == {}, f"{name}: links with too little contrast"
        if width == 1400:
            assert browser.run(f"{root}.scrollHeight") < TALLEST, name


def test_the_first_picture_is_on_the_first_screen(browser, site):
    for width in (390, 1400):
        browser.open((site / "index.html").as_uri(), width)
        shown = "Array.from(document.querySelectorAll('article img')).filter(image => image.offsetHeight > 0)"
        assert 300 < browser.run(f"{shown}[0].getBoundingClientRect().bottom") < 900
