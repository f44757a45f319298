// Draws the figures near the window from their packed data, fills their tables, and saves both as files.
"use strict";
const figures = (() => {
  const MOST_ROWS = 3000; // of a table; the CSV file has them all
  const PNG_SCALE = 2;
  const LEAST_SCALE = 0.82; // of a chart, at which its text is still legible
  const narrow = matchMedia("(max-width: 800px)");
  const all = Array.from(document.querySelectorAll("figure[data-packed]"));
  const contents = new Map(); // unpacked, by figure
  const shown = new Map(); // index of the run that is shown, or "all", by figure

  const unpack = async (figure) => {
    if (!contents.has(figure)) {
      const bytes = Uint8Array.from(atob(figure.dataset.packed), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      contents.set(figure, JSON.parse(await new Response(stream).text()));
    }
    return contents.get(figure);
  };

  const selected = (figure) => shown.get(figure) ?? "0";
  const current = (figure) => contents.get(figure)[selected(figure) === "all" ? 0 : Number(selected(figure))];

  const labels = (figure) => Array.from(figure.querySelectorAll("[data-show]"), (button) => button.textContent);

  const drawOne = (place, charts) => {
    place.innerHTML = charts[narrow.matches ? "narrow" : "wide"];
    const svg = place.firstElementChild;
    const least = LEAST_SCALE * svg.viewBox.baseVal.width; // a wider table scrolls rather than shrink further
    svg.style.minWidth = `${least}px`;
    if (least > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  };

  const draw = (figure) => {
    const chart = figure.querySelector(".chart");
    figure.classList.add("drawn");
    if (!chart) return;
    if (selected(figure) !== "all") return drawOne(chart, current(figure).charts);
    const names = labels(figure);
    const parts = contents.get(figure).map(({ charts }, index) => {
      const label = document.createElement("p");
      label.textContent = names[index];
      const place = document.createElement("div");
      drawOne(place, charts);
      const part = document.createElement("div");
      part.className = "part";
      part.append(label, place);
      return part;
    });
    chart.replaceChildren(...parts);
  };

  const cell = (value) => {
    if (value === null) return "–";
    return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value);
  };

  const fillTable = (figure) => {
    const { columns, rows } = numbers(figure);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const column of columns) {
      const heading = document.createElement("th");
      heading.scope = "col";
      heading.textContent = column;
      head.append(heading);
    }
    const body = table.createTBody();
    for (const row of rows.slice(0, MOST_ROWS)) {
      const line = body.insertRow();
      for (const value of row) {
        const place = line.insertCell();
        place.textContent = cell(value);
        if (typeof value === "string") place.className = "text";
      }
    }
    const place = figure.querySelector(".scroll");
    place.replaceChildren(table);
    if (rows.length > MOST_ROWS) {
      const note = document.createElement("p");
      note.className = "note";
      note.textContent = `The first ${MOST_ROWS} of ${rows.length} rows; the CSV file has them all.`;
      place.append(note);
    }
  };

  // The numbers that are shown; those of several runs with one more column.
  const numbers = (figure) => {
    if (selected(figure) !== "all") return current(figure);
    const names = labels(figure);
    const columns = Array.from(new Set(contents.get(figure).flatMap((run) => run.columns)));
    const rows = contents.get(figure).flatMap((run, index) =>
      run.rows.map((row) => [names[index], ...columns.map((name) => row[run.columns.indexOf(name)] ?? null)]),
    );
    return { columns: ["results", ...columns], rows };
  };

  const csv = ({ columns, rows }) => {
    const field = (value) => {
      const text = value === null ? "" : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [columns, ...rows].map((row) => row.map(field).join(",") + "\r\n").join("");
  };

  // The chart as a document of its own: with the size, the font and the colours that it has in the page.
  const standalone = (figure) => {
    const svg = new DOMParser().parseFromString(current(figure).charts.wide, "text/html").querySelector("svg");
    const style = getComputedStyle(figure);
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const paper = getComputedStyle(document.body).backgroundColor;
    svg.setAttribute("style", `color:${style.color};background:${paper};font-family:Arial,Helvetica,sans-serif`);
    const backdrop = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width, height, fill: paper })) backdrop.setAttribute(name, value);
    svg.prepend(backdrop);
    for (const mark of svg.querySelectorAll(".unseen")) mark.remove();
    return { text: new XMLSerializer().serializeToString(svg), width: Number(width), height: Number(height) };
  };

  const png = async ({ text, width, height }) => {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(width * PNG_SCALE);
    canvas.height = Math.ceil(height * PNG_SCALE);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  };

  const save = async (figure, kind) => {
    await unpack(figure);
    let blob;
    if (kind === "csv") blob = new Blob([csv(numbers(figure))], { type: "text/csv" });
    else if (kind === "svg") blob = new Blob([standalone(figure).text], { type: "image/svg+xml" });
    else blob = await png(standalone(figure));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${figure.id}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  const show = async (figure, which) => {
    shown.set(figure, which);
    await unpack(figure);
    draw(figure);
    for (const button of figure.querySelectorAll("[data-show]"))
      button.setAttribute("aria-pressed", String(button.dataset.show === which));
    for (const button of figure.querySelectorAll("[data-save=svg], [data-save=png]")) button.disabled = which === "all";
    if (figure.querySelector(".numbers").open) fillTable(figure);
  };

  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        unpack(target).then(() => draw(target));
      }
    },
    { rootMargin: "800px" },
  );

  for (const figure of all) {
    near.observe(figure);
    figure.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.save) save(figure, button.dataset.save);
      if (button?.dataset.show) show(figure, button.dataset.show);
    });
    figure.querySelector(".numbers")?.addEventListener("toggle", (event) => {
      if (event.target.open) unpack(figure).then(() => fillTable(figure));
    });
  }
  narrow.addEventListener("change", () => all.filter((figure) => figure.matches(".drawn")).forEach(draw));

  // Printing does not wait, so that everything is unpacked before.
  const idle = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  const prepare = ([first, ...rest]) => first && idle(() => unpack(first).then(() => prepare(rest)));
  addEventListener("load", () => prepare(all));
  const drawAll = () => all.filter((figure) => contents.has(figure) && !figure.matches(".drawn")).forEach(draw);

  return { drawAll };
})();
