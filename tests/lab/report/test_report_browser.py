"""The report in a real browser."""

from __future__ import annotations

import csv
import dataclasses
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.lab.report.probes import CONTRAST, FIRST_FIGURE, LINKS, OVERFLOW

from normplace.lab.report import write_report

SHOW_EVERYTHING = """(async () => {
    document.querySelectorAll('section.view').forEach(section => section.removeAttribute('hidden'));
    document.querySelectorAll('details').forEach(details => { details.open = true; });
    await new Promise(done => setTimeout(done, 300));
    figures.drawAll();
    await new Promise(done => setTimeout(done, 100));
})()"""


@pytest.fixture(scope="module")
def page(sections, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(sections, path)
    return path.as_uri()


def wait_for(condition, seconds: float = 10):
    """The first true value of a condition."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return value


def download(browser, folder: Path, figure: str, kind: str) -> Path:
    """Save the figure that a selector matches as a file."""
    browser("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    name = browser.run(f"document.querySelector('{figure}').id")
    browser.run(f"document.querySelector('{figure} [data-save={kind}]').click()")
    path = folder / f"{name}.{kind}"
    wait_for(lambda: path.exists() and path.stat().st_size)
    return path


def test_no_console_message_and_no_request_leaves_the_page(browser, page):
    browser.open(page)
    browser.run(SHOW_EVERYTHING)
    assert browser.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    addresses = [params["request"]["url"] for params in browser.named("Network.requestWillBeSent")]
    assert addresses[0] == page
    assert all(address.startswith("data:") for address in addresses[1:])


def test_the_probe_sees_console_messages_and_requests(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/a.png'><script>console.error('no')</script>")
    browser.open(bad.as_uri())
    assert browser.named("Runtime.consoleAPICalled", "Log.entryAdded")
    assert any("127.0.0.1" in params["request"]["url"] for params in browser.named("Network.requestWillBeSent"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 700, 1000, 1400])
def test_nothing_is_wider_than_the_window(browser, page, width, dark):
    browser.open(page, width, dark)
    browser.run(SHOW_EVERYTHING)
    assert browser.run(OVERFLOW) <= 0
    assert browser.run("innerWidth") == width  # a phone zooms out instead of scrolling


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_figure_is_within_the_first_screen(browser, page, width, height):
    browser.open(page, width)
    browser("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
    first = browser.run(FIRST_FIGURE)
    assert first["top"] >= 0 and first["bottom"] <= first["height"]
    assert first["left"] >= 0 and first["right"] <= width


def test_hostile_names_are_text(browser, page, hostile):
    browser.open(page)
    browser.run(SHOW_EVERYTHING)
    assert browser.run("document.scripts.length") == 1
    text = browser.run("document.body.innerText")
    kinds = ("Study", "Paper", "Summary", "Claimed in", "Statement", "Label", "Note", "Figure", "Caption", "Error")
    for kind in (*kinds, "Column", "Row"):
        assert f"{kind} {hostile}" in text, kind
    drawn = browser.run("Array.from(document.querySelectorAll('svg text'), t => t.textContent).join('|')")
    assert f"Chart {hostile}" in drawn and f"Axis {hostile}" in drawn


def test_injected_scripts_are_refused(browser, page):
    browser.open(page)
    ran = browser.run("""(() => {
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        return window.ran === true;
    })()""")
    assert ran is False


def test_one_part_is_shown_at_a_time(browser, page):
    visible = "Array.from(document.querySelectorAll('section.view:not([hidden])'), section => section.id)"
    browser.open(page)
    assert browser.run(visible) == ["overview"]
    browser.open(f"{page}#extrapolation")
    assert browser.run(visible) == ["extrapolation"]
    assert browser.run("scrollY") == 0
    browser.open(f"{page}#claims")
    assert browser.run(visible)[0] == "claims" and len(browser.run(visible)) == 3
    assert browser.run("document.querySelector('section.study figure').checkVisibility()") is False
    assert browser.run("document.querySelector('#contents [aria-current]').innerText").startswith("All claims")


@pytest.mark.parametrize("width", [390, 1400])
def test_every_link_shows_what_it_leads_to(browser, page, width):
    browser.open(page, width)
    links = browser.run(LINKS)
    assert links["broken"] == [] and links["links"] > 20


def test_a_link_to_a_claim_opens_it(browser, page):
    browser.open(f"{page}#extrapolation-claim-faces")  # not tested, hence folded away
    assert browser.run("document.getElementById('extrapolation-claim-faces').open")
    assert browser.run("document.getElementById('extrapolation-claim-faces').checkVisibility()")


def test_claims_are_grouped_by_verdict_and_untested_ones_are_folded(browser, page):
    browser.open(f"{page}#extrapolation")
    groups = browser.run("""Array.from(document.querySelectorAll('#extrapolation .group'), group => [
        new Set(Array.from(group.querySelectorAll('.claim'), claim => claim.dataset.verdict)).size,
        group.querySelector('.claim').dataset.verdict, group.querySelector('.claim').checkVisibility()])""")
    assert all(size == 1 for size, _, _ in groups)
    assert {verdict: shown for _, verdict, shown in groups} == {
        "reproduced": True,
        "mixed": True,
        "not reproduced": True,
        "void": True,
        "not tested": False,
    }


def filter_claims(browser, form: str, text: str = "", verdicts: tuple[str, ...] = ()) -> list[str]:
    """Ids of the claims that a filter shows."""
    browser.run(f"""(() => {{
        const form = document.querySelector('{form} form.filter');
        form.elements.text.value = {text!r};
        const chosen = {list(verdicts)!r};
        form.querySelectorAll('[name=verdict]').forEach(box => {{ box.checked = chosen.includes(box.value); }});
        form.dispatchEvent(new Event('input', {{bubbles: true}}));
    }})()""")
    return browser.run("""Array.from(document.querySelectorAll('.claim')).filter(claim => claim.checkVisibility())
        .map(claim => claim.id.split('-claim-')[1])""")


def test_claims_are_filtered_by_text_and_verdict(browser, page):
    browser.open(f"{page}#extrapolation")
    form, output = "#extrapolation", "document.querySelector('#extrapolation form.filter output').innerText"
    assert filter_claims(browser, form, text="NORM grows") == ["unbounded"]
    assert browser.run(output) == "1 of 5 claims"
    assert filter_claims(browser, form, text="error ratio") == ["faces"]  # in a folded group, inside a closed claim
    assert filter_claims(browser, form, verdicts=("mixed", "void")) == ["bounded", "widths"]
    assert filter_claims(browser, form, text="norm", verdicts=("reproduced",)) == ["unbounded"]
    assert filter_claims(browser, form, text="nothing like this") == []
    assert browser.run("document.querySelector('#extrapolation .none-match').checkVisibility()")
    assert "faces" not in (shown := filter_claims(browser, form)) and len(shown) == 4
    assert browser.run(output) == "5 claims"


def test_the_filter_of_all_claims_covers_every_study(browser, page):
    browser.open(f"{page}#claims")
    assert filter_claims(browser, "#claims", text="statement") == ["hostile"]
    assert browser.run("document.querySelector('#claims output').innerText") == "1 of 6 claims"
    assert browser.run("document.getElementById('extrapolation').checkVisibility()") is False


def test_typing_into_the_filter_works(browser, page):
    browser.open(f"{page}#claims")
    browser.run("document.querySelector('#claims [name=text]').focus()")
    browser("Input.insertText", text="bounded")
    assert browser.run("document.querySelector('#claims output').innerText") == "1 of 6 claims"


@pytest.mark.parametrize("width", [390, 1400])
def test_a_chart_is_drawn_when_its_figure_is_near(browser, page, width):
    browser.open(page, width)
    drawn = "document.querySelectorAll('#extrapolation .chart svg').length"
    assert browser.run(drawn) == 0
    browser.run("location.hash = '#extrapolation'")
    wait_for(lambda: browser.run(drawn) == 2)
    least = browser.run("""Math.min(...Array.from(document.querySelectorAll('#extrapolation .chart svg'), svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        const sizes = Array.from(svg.querySelectorAll('text'), text => parseFloat(text.getAttribute('font-size')));
        return scale * Math.min(...sizes);
    }))""")
    assert least >= 9


def test_a_chart_is_redrawn_for_another_width(browser, page):
    browser.open(f"{page}#extrapolation", 1400)
    width = "document.querySelector('#extrapolation .chart svg').viewBox.baseVal.width"
    wide = wait_for(lambda: browser.run(f"document.querySelector('#extrapolation .chart svg') && {width}"))
    browser("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    wait_for(lambda: browser.run(width) < 400 < wide)


def test_pointing_at_a_curve_shows_its_value(browser, page):
    browser.open(f"{page}#extrapolation")
    wait_for(lambda: browser.run("document.querySelectorAll('.chart .unseen').length") > 5)
    spot = browser.run("""(() => {
        const mark = document.querySelectorAll('.chart .unseen')[5];
        mark.scrollIntoView({block: 'center'});
        const box = mark.getBoundingClientRect();
        return [box.x + box.width / 2 + 2, box.y + box.height / 2 + 2];
    })()""")
    browser.run("new Promise(done => setTimeout(done, 100))")
    browser("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    tip = browser.run("document.getElementById('tip').innerText")
    assert "input x: " in tip and "prediction: " in tip and "architecture: " in tip
    browser("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run("document.getElementById('tip').hidden")


def test_the_numbers_of_a_figure_download_as_csv(browser, page, sections, tmp_path):
    browser.open(f"{page}#extrapolation")
    path = download(browser, tmp_path, "#extrapolation figure", "csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure = sections[0].study.figures(sections[0].successful)[0]
    assert len(rows) == len(figure.rows) and list(rows[0]) == list(figure.rows[0])
    for read, row in zip(rows, figure.rows, strict=True):
        assert (read["dataset"], read["architecture"]) == (row["dataset"], row["architecture"])
        assert [float(read[name]) for name in ("x", "mean", "low", "high")] == pytest.approx(
            [row[name] for name in ("x", "mean", "low", "high")], rel=1e-6
        )


def test_charts_and_numbers_of_several_runs_are_shown_one_by_one_or_together(browser, sections, tmp_path):
    full = dataclasses.replace(
        sections[0], records=[dataclasses.replace(record, scale="full") for record in sections[0].records]
    )
    write_report([sections[0], full], tmp_path / "two.html")
    browser.open(f"{(tmp_path / 'two.html').as_uri()}#extrapolation")
    figure = "#extrapolation figure"
    pressed = f"document.querySelector('{figure} [aria-pressed=true]').innerText"
    charts = f"document.querySelectorAll('{figure}:first-of-type .chart svg').length"
    assert browser.run(pressed) == "full"
    browser.run(f"document.querySelector('{figure} [data-show=\"1\"]').click()")
    wait_for(lambda: browser.run(pressed) == "laptop")
    assert browser.run(charts) == 1
    browser.run(f"document.querySelector('{figure} [data-show=all]').click()")
    wait_for(lambda: browser.run(charts) == 2)
    assert browser.run(f"document.querySelector('{figure} [data-save=svg]').disabled")
    with download(browser, tmp_path, figure, "csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = sections[0].study.figures(sections[0].successful)[0].rows
    assert [row["results"] for row in rows] == ["full"] * len(shown) + ["laptop"] * len(shown)


def test_fields_with_commas_and_quotes_are_quoted_in_csv(browser, page, hostile, tmp_path):
    browser.open(page)
    path = download(browser, tmp_path, "figure[id^=script]", "csv")
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            [f"Column {hostile}", "value"],
            [f"Row {hostile}", "1.234568"],
            ["", "2"],
        ]


def test_a_chart_downloads_as_svg_and_png(browser, page, tmp_path):
    browser.open(f"{page}#extrapolation", dark=True)
    svg = ElementTree.parse(download(browser, tmp_path, "#extrapolation figure", "svg")).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg" and "color:rgb(228, 232, 237)" in svg.attrib["style"]
    assert not svg.findall(".//*[@class='unseen']")
    png = download(browser, tmp_path, "#extrapolation figure", "png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == pytest.approx(2 * float(svg.attrib["width"]), abs=1)


def test_the_keyboard_reaches_the_numbers(browser, page):
    browser.open(f"{page}#extrapolation")
    browser.run("document.querySelector('#extrapolation figure summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    wait_for(lambda: browser.run("document.querySelectorAll('#extrapolation figure .scroll tbody tr').length") > 100)
    assert browser.run("document.querySelector('#extrapolation figure .scroll').tabIndex") == 0


def test_every_control_is_a_tab_stop_with_a_name_and_shows_the_focus(browser, page):
    browser.open(f"{page}#extrapolation")
    stops = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            browser("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stops.append(
            browser.run("""(() => {
                const e = document.activeElement;
                const shown = e.matches('[type=checkbox]') ? e.nextElementSibling : e;
                return [e.tagName, e.type ?? '', e.getAttribute('aria-label') ?? e.innerText,
                    getComputedStyle(shown).outlineStyle];
            })()""")
        )
    kinds = {(tag, kind) for tag, kind, _, _ in stops}
    assert {("A", ""), ("SUMMARY", ""), ("BUTTON", "button"), ("INPUT", "search"), ("INPUT", "checkbox")} <= kinds
    assert all(name or kind == "checkbox" for tag, kind, name, _ in stops if tag != "BODY")
    assert all(outline != "none" for tag, _, _, outline in stops if tag != "BODY")


def test_the_menu_of_a_phone_opens_and_closes(browser, page):
    browser.open(page, 390)
    seen = "document.querySelector('#contents a').checkVisibility()"
    assert browser.run(seen) is False
    browser.run("document.querySelector('#contents .menu').click()")
    assert browser.run(seen) and browser.run("document.querySelector('.menu').ariaExpanded") == "true"
    browser.run("document.querySelector('#contents a[href=\"#extrapolation\"]').click()")
    wait_for(lambda: browser.run(seen) is False)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_4_5(browser, page, dark):
    browser.open(page, dark=dark)
    browser.run(SHOW_EVERYTHING)
    browser.run("document.querySelector('[name=verdict]').click()")  # a chosen verdict has other colours
    browser.run(SHOW_EVERYTHING)
    contrast = browser.run(CONTRAST)
    assert contrast["count"] > 200
    assert contrast["worst"][0][0] >= 4.5, contrast["worst"]


def test_the_contrast_probe_sees_pale_text(browser, tmp_path):
    pale = tmp_path / "pale.html"
    pale.write_text("<body style='background:#fff'><p style='color:#888'>grey</p><p>black</p></body>")
    browser.open(pale.as_uri())
    worst = browser.run(CONTRAST)["worst"]
    assert [round(ratio, 1) for ratio, *_ in worst] == [3.5, 21.0]


def test_print_has_every_section_and_every_chart(browser, page):
    browser.open(page)
    browser.run("new Promise(done => setTimeout(done, 500))")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser("Emulation.setEmulatedMedia", media="print")
    assert browser.run("document.querySelectorAll('.chart svg').length") == 3
    parts = "Array.from(document.querySelectorAll('section.study, .claim-body'))"
    assert browser.run(f"{parts}.every(part => part.checkVisibility())")
    assert browser.run("document.getElementById('contents').checkVisibility()") is False
    browser("Emulation.setEmulatedMedia", media="")
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.getElementById('extrapolation').hidden") == "until-found"


def test_without_scripts_the_page_shows_every_claim(browser, page):
    browser("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser("Page.navigate", url=page)
        bounded = "document.getElementById('extrapolation-claim-bounded')"
        wait_for(lambda: browser.run(f"document.readyState === 'complete' && {bounded} !== null"))
        assert browser.run(f"{bounded}.checkVisibility()")
        assert "The chart needs JavaScript." in browser.run("document.body.innerText")
    finally:
        browser("Emulation.setScriptExecutionDisabled", value=False)


def test_the_chart_is_one_image_to_a_screen_reader(browser, page):
    browser.open(f"{page}#extrapolation")
    browser.run(SHOW_EVERYTHING)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    images = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "image"]
    assert "On log-log axes only the standard network rises, with slope one." in images
    assert not any(node.get("role", {}).get("value", "").startswith("graphics") for node in nodes)


def test_the_checks_stay_a_table_on_a_phone(browser, page):
    browser.open(f"{page}#extrapolation", 390)
    browser.run(SHOW_EVERYTHING)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert "table" in roles and "rowheader" in roles and roles.count("cell") >= 20
