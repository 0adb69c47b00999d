"use strict";
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (e) => { root.dataset.error = e.message; });
  root.classList.add("scripted");
  const $ = (id) => document.getElementById(id);
  const canvas = document.querySelector(".canvas");
  const drawings = [...canvas.querySelectorAll("svg")];
  let scale = 1;
  let shown = drawings[0];

  // Zoom: the drawing gets another size, and the canvas scrolls as the browser does.
  function zoom(to, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const next = Math.min(3, Math.max(0.02, to));
    const left = (canvas.scrollLeft + x) / scale;
    const top = (canvas.scrollTop + y) / scale;
    scale = next;
    const box = shown.viewBox.baseVal;
    shown.style.width = `${box.width * scale}px`;
    shown.style.height = `${box.height * scale}px`;
    canvas.scrollLeft = left * scale - x;
    canvas.scrollTop = top * scale - y;
  }
  function fit() {
    const box = shown.viewBox.baseVal;
    const room = [canvas.clientWidth / box.width, canvas.clientHeight / box.height];
    zoom(Math.min(1, ...room));
  }
  // What fits the width is legible; the rest is a matter of scrolling.
  function start() {
    zoom(Math.max(0.55, Math.min(1, canvas.clientWidth / shown.viewBox.baseVal.width)));
    const first = shown.querySelector(".node").getBoundingClientRect();
    const here = canvas.getBoundingClientRect();
    canvas.scrollLeft += (first.left + first.right - here.left - here.right) / 2;
    canvas.scrollTop += first.top - here.top - 20;
  }
  function show(drawing) {
    if (drawing === shown) return;
    shown = drawing;
    for (const d of drawings) d.toggleAttribute("hidden", d !== drawing);
    $("fold").setAttribute("aria-pressed", String(drawing.id === "folded"));
    start();
  }
  for (const d of drawings) d.toggleAttribute("hidden", d !== shown);

  // Details: the hash says which node is open, so that links, history and reloads work.
  const find = (drawing, id) => drawing.querySelector(`[data-id="${CSS.escape(id)}"]`);
  function open(id) {
    const details = $(id);
    for (const e of document.querySelectorAll(".open")) e.classList.remove("open");
    const known = details !== null && details.classList.contains("details");
    document.querySelector(".hint").hidden = known;
    if (!known) return;
    details.classList.add("open");
    root.dataset.open = id;
    if (find(shown, id) === null) show(drawings.find((d) => find(d, id) !== null) ?? shown);
    for (const d of drawings) find(d, id)?.classList.add("open");
    canvas.scrollIntoView({ block: "nearest" });
    reveal(find(shown, id));
  }
  function reveal(node) {
    if (node === null) return;
    const a = node.getBoundingClientRect(), b = canvas.getBoundingClientRect();
    if (a.left < b.left || a.right > b.right) canvas.scrollLeft += (a.left + a.right - b.left - b.right) / 2;
    if (a.top < b.top || a.bottom > b.bottom) canvas.scrollTop += (a.top + a.bottom - b.top - b.bottom) / 2;
  }
  const hashed = () => open(decodeURIComponent(location.hash.slice(1)));
  window.addEventListener("hashchange", hashed);
  document.addEventListener("click", (e) => {
    const link = e.target.closest('a[href^="#"]');
    if (link === null) return;
    e.preventDefault(); // in a notebook's frame a link would leave the page
    const id = link.getAttribute("href").slice(1);
    try { history.pushState(null, "", `#${id}`); } catch { /* a frame without a history */ }
    open(id);
  });

  // Hovering over a node lights what it reads and who reads it.
  canvas.addEventListener("mouseover", (e) => light(e.target.closest(".node")));
  canvas.addEventListener("focusin", (e) => light(e.target.closest(".node")));
  function light(node) {
    for (const p of shown.querySelectorAll(".arrow")) {
      const on = node === null || p.dataset.from === node.dataset.id || p.dataset.to === node.dataset.id;
      p.classList.toggle("faded", !on);
    }
  }

  // Keys: arrows walk along edges from a focused node, / searches, + - 0 zoom, Escape closes.
  document.addEventListener("keydown", (e) => {
    if (e.target === $("search") || e.ctrlKey || e.metaKey || e.altKey) return;
    const keys = { "+": () => zoom(scale * 1.25), "=": () => zoom(scale * 1.25),
      "-": () => zoom(scale / 1.25), 0: fit, 1: () => zoom(1),
      "/": () => $("search").focus(), Escape: () => open("") };
    const node = document.activeElement?.closest?.(".node");
    if (node && (e.key === "ArrowUp" || e.key === "ArrowDown")) {
      const [here, there] = e.key === "ArrowUp" ? ["to", "from"] : ["from", "to"];
      const arrow = shown.querySelector(`.arrow[data-${here}="${CSS.escape(node.dataset.id)}"]`);
      const next = arrow && find(shown, arrow.dataset[there]);
      if (next) { next.focus({ preventScroll: true }); reveal(next); e.preventDefault(); }
    } else if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
  });

  // Search: what does not match fades; Enter goes from match to match.
  let at = -1;
  function matches() {
    const words = $("search").value.trim().toLowerCase();
    const nodes = [...shown.querySelectorAll(".node")];
    const hits = nodes.filter((n) => n.getAttribute("aria-label").toLowerCase().includes(words));
    for (const n of nodes) n.classList.toggle("faded", words !== "" && !hits.includes(n));
    $("found").textContent = words === "" ? "" : `${hits.length} of ${nodes.length}`;
    return words === "" ? [] : hits;
  }
  $("search").addEventListener("input", () => {
    at = -1;
    if (matches().length === 0 && drawings.length > 1 && shown === drawings[0]) {
      show(drawings[1]);
      matches();
    }
  });
  $("search").addEventListener("keydown", (e) => {
    if (e.key !== "Enter") return;
    const hits = matches();
    if (hits.length === 0) return;
    at = (at + (e.shiftKey ? hits.length - 1 : 1)) % hits.length;
    $("found").textContent = `${at + 1} of ${hits.length}`;
    open(hits[at].dataset.id);
    reveal(hits[at]);
  });

  $("in").addEventListener("click", () => zoom(scale * 1.25));
  $("out").addEventListener("click", () => zoom(scale / 1.25));
  $("fit").addEventListener("click", fit);
  $("real").addEventListener("click", () => zoom(1));
  $("fold")?.addEventListener("click", () => show(drawings.find((d) => d !== shown)));
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const b = canvas.getBoundingClientRect();
    zoom(scale * Math.exp(-e.deltaY / 300), e.clientX - b.left, e.clientY - b.top);
  }, { passive: false });

  // Dragging moves the drawing.
  let grip = null;
  canvas.addEventListener("pointerdown", (e) => {
    if (e.button === 0 && e.pointerType === "mouse" && !e.target.closest(".node")) {
      grip = [e.clientX + canvas.scrollLeft, e.clientY + canvas.scrollTop];
      canvas.classList.add("dragged");
    }
  });
  window.addEventListener("pointermove", (e) => {
    if (grip !== null) [canvas.scrollLeft, canvas.scrollTop] = [grip[0] - e.clientX, grip[1] - e.clientY];
  });
  window.addEventListener("pointerup", () => { grip = null; canvas.classList.remove("dragged"); });

  // On paper nothing can be unfolded.
  window.addEventListener("beforeprint", () => {
    for (const d of document.querySelectorAll("details.block")) d.open = true;
  });

  start();
  hashed();
  root.dataset.ready = String(shown.querySelectorAll(".node").length);
})();
