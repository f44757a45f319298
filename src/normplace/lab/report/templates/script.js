// Shows the values of the mark nearest to the pointer. The table under each chart has the same numbers, so the page
// also works without a pointer and without this script.
"use strict";
(() => {
  const REACH = 28; // largest distance in pixels from the pointer to a mark
  const tip = document.getElementById("tip");
  let lit = null;

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

  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return { mark, x: box.x + box.width / 2, y: box.y + box.height / 2 };
  };

  for (const svg of document.querySelectorAll(".chart svg")) {
    let points = null; // in the drawing's own coordinates, so that scrolling does not move them
    const find = (event) => {
      const under = event.target.closest("[data-tip]");
      if (under && !under.classList.contains("unseen")) return under;
      const corner = svg.getBoundingClientRect();
      points ??= Array.from(svg.querySelectorAll(".unseen"), centre).map(({ mark, x, y }) => ({
        mark,
        x: x - corner.x,
        y: y - corner.y,
      }));
      let best = null;
      let least = REACH;
      for (const point of points) {
        const far = Math.hypot(point.x + corner.x - event.clientX, point.y + corner.y - event.clientY);
        if (far < least) [best, least] = [point.mark, far];
      }
      return best;
    };
    const point = (event) => {
      const mark = find(event);
      if (mark) show(mark, event.clientX, event.clientY);
      else hide();
    };
    svg.addEventListener("pointerenter", () => { points = null; });
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", hide);
  }
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
