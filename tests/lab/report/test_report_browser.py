"""The report in a real browser."""

from __future__ import annotations

import pytest

from normplace.lab.report import write_report


@pytest.fixture(scope="module")
def page(sections, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(sections, path)
    return path.as_uri()


def test_no_console_message_and_no_request_leaves_the_page(browser, page):
    browser.open(page)
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
@pytest.mark.parametrize("width", [320, 390, 700, 1400])
def test_nothing_is_wider_than_the_window(browser, page, width, dark):
    browser.open(page, width, dark)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    root = "document.documentElement"
    assert browser.run(f"{root}.scrollWidth") <= browser.run(f"{root}.clientWidth") <= width
    assert browser.run("innerWidth") == width  # a phone zooms out instead of scrolling


def test_hostile_names_are_text(browser, page, hostile):
    browser.open(page)
    assert browser.run("document.scripts.length") == 1
    text = browser.run("document.body.innerText")
    for kind in ("Study", "Paper", "Summary", "Claimed in", "Statement", "Label", "Note", "Figure", "Caption", "Error"):
        assert f"{kind} {hostile}" in text
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


@pytest.mark.parametrize(("width", "layout"), [(390, "narrow"), (1400, "wide")])
def test_one_layout_of_each_chart_is_shown(browser, page, width, layout):
    browser.open(page, width)
    shown = browser.run("""Array.from(document.querySelectorAll('.chart'))
        .filter(c => c.offsetWidth > 0).map(c => c.className)""")
    assert shown == [f"chart {layout}"] * 3


def test_chart_text_is_large_enough_to_read_on_a_phone(browser, page):
    browser.open(page, 390)
    least = browser.run("""Math.min(...Array.from(document.querySelectorAll('.narrow svg'), svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        const sizes = Array.from(svg.querySelectorAll('text'), text => parseFloat(text.getAttribute('font-size')));
        return scale * Math.min(...sizes);
    }))""")
    assert least >= 9


def test_pointing_at_a_curve_shows_its_value(browser, page):
    browser.open(page)
    spot = browser.run("""(() => {
        const mark = document.querySelectorAll('.wide .unseen')[5];
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


def test_the_keyboard_reaches_the_numbers(browser, page):
    browser.open(page)
    browser.run("document.querySelector('figure summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert browser.run("document.querySelector('figure details').open")
    assert browser.run("document.querySelector('figure .scroll').tabIndex") == 0


def test_the_chart_is_one_image_to_a_screen_reader(browser, page):
    browser.open(page)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    images = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "image"]
    assert "On log-log axes only the standard network rises, with slope one." in images
    assert not any(node.get("role", {}).get("value", "").startswith("graphics") for node in nodes)


def test_the_claim_table_stays_a_table_as_cards(browser, page):
    browser.open(page, 390)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert "table" in roles and "rowheader" in roles and roles.count("cell") >= 20
