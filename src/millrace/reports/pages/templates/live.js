// Asks for the parts that have changed and puts them in place; what was open or focused stays so.
(() => {
  "use strict";
  const every = 1000 * Number(document.body.dataset.every);
  const place = document.getElementById("queries");
  const said = document.getElementById("said");
  const connection = document.getElementById("connection");
  const pause = document.getElementById("pause");
  const stamps = new Map();
  let paused = false;
  let timer = 0;

  const reachable = (part) => [...part.querySelectorAll("a, summary, [tabindex]")];

  function write(target, text) {
    if (target.textContent !== text) target.textContent = text;
  }

  function replace(part, html) {
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focused = reachable(part).indexOf(document.activeElement);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((each, n) => { each.open = Boolean(open[n]); });
    part.querySelectorAll(".scroll").forEach((each, n) => {
      if (scrolled[n]) [each.scrollLeft, each.scrollTop] = scrolled[n];
    });
    if (focused >= 0) (reachable(part)[focused] || place).focus({ preventScroll: true });
  }

  function show(parts) {
    const there = new Set(parts.map((part) => part.id));
    for (const old of [...place.children]) {
      if (!there.has(old.id)) {
        stamps.delete(old.id);
        old.remove();
      }
    }
    parts.forEach((part, n) => {
      let section = document.getElementById(part.id);
      if (!section) {
        section = document.createElement("section");
        section.id = part.id;
        section.setAttribute("aria-labelledby", `${part.id}-name`);
      }
      section.dataset.state = part.state;
      if (part.html !== null) replace(section, part.html);
      stamps.set(part.id, part.stamp);
      if (place.children[n] !== section) place.insertBefore(section, place.children[n] || null);
    });
  }

  async function look() {
    timer = 0;
    try {
      const known = [...stamps].map(([id, stamp]) => `${id}.${stamp}`).join(",");
      const answer = await fetch(`parts.json?known=${known}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      if (paused) return;
      show(found.parts);
      write(said, found.said);
      write(connection, "");
    } catch {
      write(connection, "The process does not answer: it has ended, or is busy. What stands here is the last that it told.");
    }
    next();
  }

  function next() {
    if (!timer && !paused && !document.hidden) timer = window.setTimeout(look, every);
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) {
      window.clearTimeout(timer);
      timer = 0;
    } else {
      look();
    }
  });
  document.addEventListener("visibilitychange", next);
  look();
})();
