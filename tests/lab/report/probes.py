"""Scripts that measure a page in the browser."""

from __future__ import annotations

CONTRAST = """(async () => {
    // Smallest contrast of any visible text with what is drawn below it, and the worst texts.
    const parse = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const over = (top, below) => {
        const mix = (i) => top[i] * top[3] + below[i] * (1 - top[3]);
        return [mix(0), mix(1), mix(2), 1];
    };
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ratio = (one, other) => {
        const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const opacity = (element) => {
        let product = 1;
        for (let e = element; e; e = e.parentElement) product *= Number(getComputedStyle(e).opacity);
        return product;
    };
    const painted = (element) => {  // what an element draws behind the text in front of it
        const style = getComputedStyle(element);
        const inside = element instanceof SVGElement && element.tagName !== "svg";
        const text = inside ? style.fill : style.backgroundColor;
        if (!text.startsWith("rgb")) return null;
        const colour = parse(text);
        colour[3] *= opacity(element) * (inside ? Number(style.fillOpacity) : 1);
        return colour;
    };
    const background = (element, x, y) => {
        const stack = document.elementsFromPoint(x, y);
        const behind = stack.slice(stack.indexOf(element) + 1).filter((e) => e.tagName !== "text");
        const layers = [element instanceof SVGElement ? null : painted(element), ...behind.map(painted)];
        let colour = parse(getComputedStyle(document.body).backgroundColor);
        for (const layer of layers.filter(Boolean).reverse()) colour = over(layer, colour);
        return colour;
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const results = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        const element = node.parentElement;
        if (!node.data.trim() || element.closest("script, style, noscript, .unseen-text, .skip")) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        let box = range.getClientRects()[0];
        if (!box || box.width === 0 || !element.checkVisibility()) continue;
        element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
        box = range.getClientRects()[0];
        const [x, y] = [box.x + Math.min(box.width / 2, 20), box.y + box.height / 2];
        if (x < 0 || y < 0 || x > innerWidth || y > innerHeight) continue;
        const style = getComputedStyle(element);
        const inSvg = element instanceof SVGElement;
        const colour = parse(inSvg ? style.fill : style.color);
        colour[3] *= opacity(element) * (inSvg ? Number(style.fillOpacity) : 1);
        const below = background(element, x, y);
        results.push([ratio(over(colour, below), below), node.data.trim().slice(0, 40), element.tagName]);
    }
    results.sort((one, other) => one[0] - other[0]);
    return { count: results.length, worst: results.slice(0, 5) };
})()"""

LINKS = """(async () => {
    // Links inside the page that lead nowhere, or to something that stays hidden or out of the window.
    const broken = [];
    const links = new Set(Array.from(document.querySelectorAll("a[href^='#']"), (a) => a.getAttribute("href")));
    for (const href of links) {
        const element = document.getElementById(href.slice(1));
        if (!element) { broken.push(href); continue; }
        location.hash = href;
        await new Promise((done) => setTimeout(done, 0));
        const box = element.getBoundingClientRect();
        const visible = element.checkVisibility() && (box.height > 0 || element.id === "main");
        const inWindow = box.top < innerHeight && box.bottom > 0;
        if (!visible || !inWindow) broken.push(`${href} ${visible} ${box.top}`);
    }
    return { links: links.size, broken };
})()"""

FIRST_FIGURE = """(() => {
    const svg = Array.from(document.querySelectorAll("svg")).find((e) => e.checkVisibility());
    const box = svg.getBoundingClientRect();
    return { top: box.top, bottom: box.bottom, left: box.left, right: box.right, height: innerHeight };
})()"""

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

LOAD_TIME = "performance.getEntriesByType('navigation')[0].loadEventEnd"
