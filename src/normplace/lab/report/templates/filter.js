// Filters the claims by text and by verdict. All filter forms of the page share one state.
"use strict";
(() => {
  const forms = Array.from(document.querySelectorAll("form.filter"));
  const claims = Array.from(document.querySelectorAll("details.claim"), (element) => ({
    element,
    study: element.closest("section.study"),
    verdict: element.dataset.verdict,
    text: null, // read when the first filter needs it
  }));

  const apply = (words, verdicts) => {
    for (const claim of claims) {
      if (words.length) claim.text ??= claim.element.textContent.toLowerCase();
      const matches = words.every((word) => claim.text.includes(word));
      claim.element.hidden = !(matches && (verdicts.size === 0 || verdicts.has(claim.verdict)));
    }
    const filtered = words.length > 0 || verdicts.size > 0;
    for (const group of document.querySelectorAll(".claims .group")) {
      group.hidden = !group.querySelector("details.claim:not([hidden])");
      const fold = group.querySelector("details.fold");
      if (fold) fold.open = filtered && !group.hidden;
    }
    for (const study of document.querySelectorAll("section.study")) {
      const none = !study.querySelector("details.claim:not([hidden])");
      study.classList.toggle("no-match", none);
      study.querySelector(".none-match").hidden = !(none && filtered);
    }
    for (const form of forms) {
      const scope = form.closest("section.study");
      const inside = claims.filter((claim) => scope === null || claim.study === scope);
      const visible = inside.filter((claim) => !claim.element.hidden).length;
      form.querySelector("output").textContent = filtered
        ? `${visible} of ${inside.length} claims`
        : `${inside.length} ${inside.length === 1 ? "claim" : "claims"}`;
    }
  };

  for (const form of forms) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      const text = form.elements.text.value;
      const chosen = Array.from(form.querySelectorAll("[name=verdict]:checked"), (box) => box.value);
      const verdicts = new Set(chosen);
      for (const other of forms) {
        if (other === form) continue;
        other.elements.text.value = text;
        for (const box of other.querySelectorAll("[name=verdict]")) box.checked = verdicts.has(box.value);
      }
      apply(text.toLowerCase().split(/\s+/).filter(Boolean), verdicts);
    });
  }
})();
