// Shows the values of the mark nearest to the pointer. The table of each figure has the same numbers, so that nothing
// needs a pointer.
"use strict";
(() => {
  const REACH = 28; // largest distance in pixels from the pointer to a mark
  const tip = document.getElementById("tip");
  let lit = null;
  let points = null; // of the chart under the pointer, in its coordinates, so that scrolling does not move them

  const hide = () => {
    tip.hidden = true;
    if (lit) lit.classList.remove("lit");
    lit = null;
  };

  const show = (mark, x, y) => {
    if (mark !== lit) {
      hide();
      lit = mark;
      lit.classList.add("lit");
      tip.textContent = mark.dataset.tip.split("; ").join("\n");
      tip.hidden = false;
    }
    const room = document.documentElement;
    const left = x + 14 + tip.offsetWidth > room.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
    const top = y + 14 + tip.offsetHeight > room.clientHeight ? y - 14 - tip.offsetHeight : y + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  };

  const positions = (svg) => {
    const corner = svg.getBoundingClientRect();
    return Array.from(svg.querySelectorAll(".unseen"), (mark) => {
      const box = mark.getBoundingClientRect();
      return { mark, x: box.x + box.width / 2 - corner.x, y: box.y + box.height / 2 - corner.y };
    });
  };

  const find = (svg, event) => {
    const under = event.target.closest("[data-tip]");
    if (under && !under.classList.contains("unseen")) return under;
    const corner = svg.getBoundingClientRect();
    if (points?.svg !== svg || points.width !== corner.width)
      points = { svg, width: corner.width, marks: positions(svg) };
    let best = null;
    let least = REACH;
    for (const point of points.marks) {
      const far = Math.hypot(point.x + corner.x - event.clientX, point.y + corner.y - event.clientY);
      if (far < least) [best, least] = [point.mark, far];
    }
    return best;
  };

  const point = (event) => {
    const svg = event.target.closest?.(".chart svg");
    const mark = svg && find(svg, event);
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("pointerleave", hide);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
