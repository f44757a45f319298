// Shows one part of the report at a time: the overview, all claims, or one study. Without this script, and in print, the
// page shows everything.
"use strict";
(() => {
  const sections = Array.from(document.querySelectorAll("main > section.view"));
  if (sections.length === 0) return;
  const nav = document.getElementById("contents");
  const menu = nav.querySelector(".menu");

  const target = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    return (id && document.getElementById(id)) || sections[0];
  };

  const closeMenu = () => {
    nav.classList.remove("open");
    menu.setAttribute("aria-expanded", "false");
  };

  const show = (element) => {
    const section = element.closest("section.view") ?? sections[0];
    const view = section.matches(".study") ? "study" : section.id;
    document.body.dataset.view = view;
    for (const other of sections) {
      const visible = other === section || (view === "claims" && other.matches(".study"));
      if (visible) other.removeAttribute("hidden");
      else other.setAttribute("hidden", "until-found"); // find-in-page still finds its text
    }
    for (const entry of nav.querySelectorAll(".entry")) entry.classList.toggle("open", entry.dataset.study === section.id);
    for (const link of nav.querySelectorAll("a")) {
      if (link.hash === `#${section.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    for (let part = element; part; part = part.parentElement) if (part.matches("details")) part.open = true;
  };

  const navigate = () => {
    const element = target();
    show(element);
    closeMenu();
    const top = element.matches("section.view");
    if (top) scrollTo(0, 0);
    else element.scrollIntoView();
  };

  menu.addEventListener("click", () => {
    menu.setAttribute("aria-expanded", String(nav.classList.toggle("open")));
  });
  nav.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !nav.classList.contains("open")) return;
    closeMenu();
    menu.focus();
  });
  addEventListener("hashchange", navigate);
  document.addEventListener("beforematch", (event) => show(event.target));
  navigate();

  let opened = [];
  addEventListener("beforeprint", () => {
    for (const section of sections) section.removeAttribute("hidden");
    opened = Array.from(document.querySelectorAll("details.claim:not([open]), details.fold:not([open])"));
    for (const details of opened) details.open = true;
    figures.drawAll();
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
    show(target());
  });
})();
