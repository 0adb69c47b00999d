"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const editor = $("editor");
  const SVG = "http://www.w3.org/2000/svg";
  window.addEventListener("error", (e) => { document.documentElement.dataset.error = e.message; });

  // The token is in this tab only: the code of the link is taken out of the address at once.
  const code = location.hash.slice(1);
  if (code !== "") history.replaceState(null, "", location.pathname);
  let token = sessionStorage.getItem("token") ?? "";

  async function ask(path, body) {
    const options = { headers: { "X-Einsql-Token": token }, cache: "no-store", credentials: "omit" };
    if (body !== undefined) {
      options.method = "POST";
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("einsql has ended, or cannot be reached. Start einsql --ui again.");
    }
    const content = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(content.error), { status: answer.status });
    return content;
  }

  // Every text becomes a text node: nothing of a database is read as HTML.
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children.filter((c) => c !== null));
    return made;
  }
  function drawn(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const hint = (text) => element("p", { class: "hint" }, text);
  function failure(message) {
    // The quoted line keeps its columns, so that the caret is below its place; other lines wrap.
    const at = message.indexOf("\n\nLINE ");
    const head = element("pre", { class: "error" }, at < 0 ? message : message.slice(0, at));
    if (at < 0) return head;
    const [line, caret] = message.slice(at + 2).split("\n");
    return element("div", {}, head, element("pre", { class: "error exact" }, around(line, caret.indexOf("^"))));
  }
  // The part of a quoted line that fits the window, with a caret below its place.
  function around(line, at) {
    const head = /^LINE \d+: …?/.exec(line)[0].length;
    const room = Math.max(20, Math.floor(($("work").clientWidth - 40) / 7.9)) - head;
    const text = line.slice(head), place = at - head;
    const from = Math.max(0, Math.min(place - (room >> 1), text.length - room));
    const start = from > 0 ? "…" + text.slice(from + 1) : text;
    const shown = start.length > room ? start.slice(0, room - 1) + "…" : start;
    return `${line.slice(0, head)}${shown}\n${" ".repeat(at - from)}^`;
  }
  // A long name breaks after an underscore.
  const broken = (name) => name.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]);
  const counted = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
  function lasting(seconds) {
    if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
    return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
  }

  // ---- the beginning

  async function begin() {
    try {
      if (code !== "") {
        const opened = await ask("/api/exchange", { code });
        token = opened.token;
        sessionStorage.setItem("token", token);
        sessionStorage.setItem("session", JSON.stringify(opened, ["name", "readOnly"]));
      } else if (token === "") {
        throw new Error("This page needs a link with a code: press Enter where einsql --ui runs, or start it anew.");
      }
      await ask("/api/status");
    } catch (e) {
      const old = code === "" && e.status === 401;
      $("gate").textContent = old ? "This session has ended. Start einsql --ui again." : e.message;
      $("gate").className = "error";
      document.documentElement.dataset.ready = "refused";
      return;
    }
    const session = JSON.parse(sessionStorage.getItem("session") ?? "{}");
    $("database").textContent = session.name ?? "";
    $("badge").hidden = !session.readOnly;
    document.title = `einsql: ${session.name ?? ""}`;
    editor.value = sessionStorage.getItem("text") ?? "";
    $("gate").hidden = true;
    $("desk").hidden = false;
    if (window.innerWidth <= 760) $("catalog").open = false;
    editor.focus();
    await catalog();
    document.documentElement.dataset.ready = "yes";
  }

  // ---- the catalog

  async function catalog() {
    let content;
    try { content = await ask("/api/catalog"); } catch { return; }
    const opened = new Set([...$("objects").querySelectorAll("details[open]")].map((d) => d.dataset.name));
    const lines = content.objects.map((o) => {
      const name = element("button", { class: "name", title: "Insert the name" }, ...broken(o.call || o.name));
      name.addEventListener("click", (e) => { e.preventDefault(); insert(o.name); });
      const kind = o.kind === "tensor" ? null : element("small", {}, ` ${o.kind}`);
      if (!o.inFrom) return element("div", {}, name, kind);
      const list = element("ul");
      const line = element("details", { "data-name": o.name }, element("summary", {}, name, kind), list);
      line.addEventListener("toggle", () => { if (line.open && list.childElementCount === 0) columns(o.name, list); });
      line.open = opened.has(o.name);
      return line;
    });
    if (content.error) lines.push(failure(content.error));
    if (content.total === 0) lines.push(hint("No tensors or tables yet."));
    if (content.total > content.objects.length) {
      lines.push(hint(`${content.total} names (${content.objects.length} shown)`));
    }
    $("objects").replaceChildren(...lines);
  }
  async function columns(name, list) {
    const content = await ask("/api/columns", { name }).catch((e) => ({ columns: [], error: e.message }));
    const lines = content.columns.map(([column, type]) => {
      const chosen = element("button", { class: "name", title: "Insert the name" }, ...broken(column));
      chosen.addEventListener("click", () => insert(column));
      return element("li", {}, chosen, element("span", {}, ` ${type}`));
    });
    if (content.error) lines.push(element("li", { class: "error" }, content.error));
    if (content.total > lines.length) lines.push(element("li", {}, `${content.total} columns (${lines.length} shown)`));
    list.replaceChildren(...lines);
  }
  function insert(name) {
    const word = /^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
    editor.setRangeText(word, editor.selectionStart, editor.selectionEnd, "end");
    editor.focus();
    edited();
  }

  // ---- running

  let running = false;
  async function run() {
    if (running) return;
    const from = editor.selectionStart, to = editor.selectionEnd;
    const sql = from === to ? editor.value : editor.value.slice(from, to);
    if (sql.trim() === "") return;
    const content = await busy(() => ask("/api/run", { sql }), "Running");
    if (content === null) return;
    const views = content.results.map(result);
    for (const notice of content.notices) views.push(hint(`Notice: ${notice}`));
    if (content.error !== null) {
      views.push(failure(content.error.message));
      if (content.error.at !== null) select(units(sql, content.error.at) + (from === to ? 0 : from));
    }
    if (views.length === 0) views.push(hint("There was no statement to run."));
    $("results").replaceChildren(...views);
    views.at(-1).scrollIntoView({ block: "nearest" });
    const seconds = content.results.reduce((sum, r) => sum + r.seconds, 0);
    $("time").textContent = `${counted(content.results.length, "statement")}, ${lasting(seconds)}`;
    plotted = false;
    if (content.error !== null || !plotIsOpen()) show("results");
    else await plot();
    await catalog();
    document.documentElement.dataset.ran = String(Number(document.documentElement.dataset.ran ?? 0) + 1);
  }
  async function busy(work, what) {
    running = true;
    $("run").disabled = $("measure").disabled = true;
    $("stop").disabled = false;
    $("state").textContent = what;
    const clock = setInterval(watch, 300);
    try {
      return await work();
    } catch (e) {
      $("results").replaceChildren(failure(e.message));
      show("results");
      return null;
    } finally {
      clearInterval(clock);
      running = false;
      $("run").disabled = $("measure").disabled = false;
      $("stop").disabled = true;
      $("progress").hidden = true;
      $("state").textContent = "";
    }
  }
  async function watch() {
    const now = await ask("/api/status").catch(() => ({ running: false }));
    if (!now.running || !running) return;
    $("progress").hidden = false;
    if (now.fraction === null) $("progress").removeAttribute("value");
    else $("progress").value = now.fraction;
    const step = now.steps > 0 ? `, step ${now.steps.toLocaleString("en")}: ${now.newest}` : "";
    $("time").textContent = `${now.seconds.toFixed(0)} s${step}`;
  }
  async function stop() {
    $("state").textContent = "Stopping";
    await ask("/api/stop", {}).catch(() => null);
  }
  // Python counts characters, a text field counts UTF-16 units.
  const units = (text, characters) => [...text].slice(0, characters).join("").length;
  const characters = (text, count) => [...text.slice(0, count)].length;
  function select(at) {
    editor.focus();
    editor.setSelectionRange(at, at);
  }

  function result(r) {
    const lines = r.sql.trim().split("\n");
    const head = element("code", {}, lines[0] + (lines.length > 1 ? " …" : ""));
    const facts = [];
    const isPlan = r.rows && r.columns.length === 1 && r.columns[0][0] === "explain";
    if (r.total >= 0 && !isPlan) facts.push(counted(r.total, "row"));
    if (r.changed >= 0) facts.push(`${counted(r.changed, "row")} changed`);
    if (r.rows && r.rows.length < r.total) facts.push(`the first ${r.rows.length.toLocaleString("en")} are shown`);
    if (r.hidden > 0) facts.push(`${counted(r.hidden, "column")} not shown`);
    facts.push(lasting(r.seconds));
    const foot = element("p", { class: "hint" }, facts.join(", "));
    return element("div", { class: "result" }, head, isPlan ? text(r) : r.rows ? rows(r) : null, foot);
  }
  const text = (r) => element("pre", { class: "exact" }, r.rows.map((row) => row[0]).join("\n"));
  function rows(r) {
    const kind = (numeric) => (numeric ? { class: "number" } : {});
    const names = r.columns.map(([name, type, numeric]) =>
      element("th", kind(numeric), name, element("small", {}, type)));
    const body = r.rows.map((row) => element("tr", {}, ...row.map((cell, n) => {
      if (cell === null) return element("td", { class: r.columns[n][2] ? "null number" : "null" }, "NULL");
      const made = element("td", kind(r.columns[n][2]), cell);
      if (cell.length > 60) made.title = cell;
      return made;
    })));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...names)),
      element("tbody", {}, ...body));
    return element("div", { class: "rows" }, table);
  }

  // ---- plots

  let plotted = false;
  const plotIsOpen = () => !$("plot").hidden;
  async function plot() {
    if (plotted || running) return;
    let p;
    try { p = await ask("/api/plot", {}); } catch (e) { p = { hint: e.message }; }
    plotted = true;
    if (p.hint !== undefined) $("plot").replaceChildren(hint(p.hint));
    else $("plot").replaceChildren(element("h2", {}, p.title), ...(p.kind === "heat" ? heat(p) : chart(p)));
    document.documentElement.dataset.plotted = p.kind ?? "hint";
  }
  const COLOURS = ["#3b82c4", "#e08a3c", "#4d9e5a", "#c9443b", "#8d6cc4", "#8c6d4f",
    "#c668ab", "#7f8894", "#a8a83c", "#3fb0bd", "#5b6fd6", "#d67f7f"];
  function chart(p) {
    const wide = Math.max(300, Math.min(760, $("plot").clientWidth)), high = 320, left = 80, bottom = 28, top = 12, right = 14;
    const x = (u) => left + u * (wide - left - right), y = (v) => top + (1 - v) * (high - top - bottom);
    const svg = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, role: "img", "aria-label": p.title });
    svg.append(drawn("path", { class: "axis", fill: "none", d: `M${left} ${top}V${high - bottom}H${wide - right}` }));
    const label = (at, anchor, words) =>
      svg.append(drawn("text", { x: at[0], y: at[1], "text-anchor": anchor }, words));
    label([left - 6, top + 10], "end", p.bounds[1]);
    label([left - 6, high - bottom], "end", p.bounds[0]);
    label([left, high - 8], "start", p.ends[0]);
    label([wide - right, high - 8], "end", p.ends[1]);
    label([(left + wide - right) / 2, high - 8], "middle", p.key);
    p.lines.forEach((line, n) => {
      let path = "", joined = false;
      line.points.forEach((point, m) => {
        if (point === null) { joined = false; return; }
        const alone = !joined && (line.points[m + 1] ?? null) === null;
        if (alone) {
          svg.append(drawn("circle", { class: "lone", r: 2.5, fill: COLOURS[n], cx: x(point[0]), cy: y(point[1]) }));
        } else {
          path += `${joined ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`;
          joined = true;
        }
      });
      svg.append(drawn("path", { class: "line", stroke: COLOURS[n], d: path }));
    });
    const key = p.lines.map((line, n) => {
      const mark = drawn("svg", { width: 16, height: 4 }, drawn("rect", { width: 16, height: 4, fill: COLOURS[n] }));
      return element("span", {}, mark, line.name);
    });
    return [svg, element("div", { class: "legend" }, ...key), hint(p.note)];
  }
  function pixels(canvas, width, height, hex) {
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height);
    for (let n = 0; n < width * height; n++) {
      const shade = hex.slice(6 * n, 6 * n + 6);
      if (shade === "......") continue;
      for (let c = 0; c < 3; c++) image.data[4 * n + c] = parseInt(shade.slice(2 * c, 2 * c + 2), 16);
      image.data[4 * n + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }
  function heat(p) {
    const [high, wide] = p.shape;
    const canvas = element("canvas", { role: "img", "aria-label": p.title });
    const size = Math.max(1, Math.min(640 / wide, 420 / high, 40));
    canvas.style.width = `${Math.round(wide * size)}px`;
    canvas.style.aspectRatio = `${wide} / ${high}`;
    const map = pixels(canvas, wide, high, p.cells);
    const bar = pixels(element("canvas", { "aria-hidden": "true" }), p.scale.length / 6, 1, p.scale);
    const axis = (n, way) => `${p.keys[n]} ${p.ends[n][0]} to ${p.ends[n][1]}, ${way}`;
    return [map, hint(`${axis(0, "down")}; ${axis(1, "across")}`),
      element("div", { class: "scale" }, p.bounds[0], bar, p.bounds[1]), hint(p.note)];
  }

  // ---- plans: drawn while the text changes, as long as they are seen

  let drawing = 0, former = "";
  const planIsOpen = () => !$("plan").hidden;
  function statement() { return JSON.stringify([editor.value, editor.selectionStart]); }
  async function plan(analyze = false) {
    if (running || (!analyze && statement() === former)) return;
    former = statement();
    const mine = ++drawing;
    const question = { sql: editor.value, at: characters(editor.value, editor.selectionStart), analyze };
    const asked = () => ask("/api/plan", question);
    const p = await (analyze ? busy(asked, "Measuring") : asked().catch((e) => ({ error: e.message })));
    if (mine !== drawing || p === null) return;
    const parsed = (text, kind) => new DOMParser().parseFromString(text, kind);
    if (p.drawing !== undefined) {
      $("drawing").replaceChildren(document.importNode(parsed(p.drawing, "image/svg+xml").documentElement, true));
    } else {
      $("drawing").replaceChildren();
    }
    const details = parsed((p.details ?? []).join(""), "text/html").body.children;
    $("details").replaceChildren(...details);
    for (const tile of $("details").querySelectorAll("[data-hue]")) tile.style.setProperty("--hue", tile.dataset.hue);
    if (p.drawing !== undefined) $("details").prepend(hint("Choose an operation to see its details."));
    if (p.error !== undefined) $("details").replaceChildren(failure(p.error));
    if (p.hint !== undefined) $("details").replaceChildren(hint(p.hint));
    $("plan-text").textContent = p.text ?? "";
    $("plan-text").parentElement.hidden = p.text === undefined;
    if (p.text !== undefined && p.drawing === undefined) $("plan-text").parentElement.open = true;
    document.documentElement.dataset.planned = String(mine);
  }
  $("plan").addEventListener("click", (e) => {
    const link = e.target.closest("a");
    if (link === null) return;
    e.preventDefault();
    const id = (link.getAttribute("href") ?? link.getAttributeNS("http://www.w3.org/1999/xlink", "href") ?? "").slice(1);
    for (const open of $("plan").querySelectorAll(".details.open, .node.open")) open.classList.remove("open");
    const details = $("details").querySelector(`#${CSS.escape(id)}`);
    details?.classList.add("open");
    $("drawing").querySelector(`[data-id="${CSS.escape(id)}"]`)?.classList.add("open");
    details?.scrollIntoView({ block: "nearest" });
  });

  let waiting = 0;
  function edited() {
    sessionStorage.setItem("text", editor.value);
    clearTimeout(waiting);
    if (planIsOpen()) waiting = setTimeout(plan, 350);
  }

  // ---- completions: Tab after a letter, a point or a quote; Tab and the arrows choose, Enter takes one

  let offer = null;
  async function complete() {
    const place = editor.selectionStart, text = editor.value;
    const question = { sql: text, at: characters(text, place) };
    const p = await ask("/api/complete", question).catch(() => ({ words: [] }));
    if (p.words.length === 0 || editor.value !== text || editor.selectionStart !== place) return;
    const from = place - p.replaced;
    if (p.words.length === 1) { take({ from }, p.words[0][0]); return; }
    offer = { from, at: 0 };
    const choices = p.words.map(([word, meaning]) => {
      const choice = element("button", { role: "option", tabindex: "-1" }, word,
        meaning === "" ? null : element("small", {}, ` ${meaning}`));
      choice.dataset.word = word;
      choice.addEventListener("click", () => take(offer, word));
      return choice;
    });
    if (p.total > p.words.length) choices.push(hint(`${p.total} words (${p.words.length} shown)`));
    $("words").replaceChildren(...choices);
    $("words").hidden = false;
    choose(0);
  }
  function choose(at) {
    const choices = [...$("words").querySelectorAll("button")];
    offer.at = (at + choices.length) % choices.length;
    choices.forEach((c, n) => c.setAttribute("aria-selected", String(n === offer.at)));
    choices[offer.at].scrollIntoView({ block: "nearest" });
  }
  function take(where, word) {
    editor.setRangeText(word, where.from, editor.selectionStart, "end");
    dismiss();
    editor.focus();
    edited();
  }
  function dismiss() {
    offer = null;
    $("words").hidden = true;
  }
  function chosen(e) {
    if (offer === null) {
      const before = editor.value.slice(0, editor.selectionStart);
      if (e.key !== "Tab" || e.shiftKey || !/[\w."'/]$/.test(before)) return false;
      complete();
      return true;
    }
    const step = { Tab: e.shiftKey ? -1 : 1, ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
    if (step !== undefined) choose(offer.at + step);
    else if (e.key === "Enter") take(offer, $("words").querySelectorAll("button")[offer.at].dataset.word);
    else if (e.key === "Escape") dismiss();
    else return false;
    return true;
  }

  // ---- keys and buttons

  const VIEWS = ["results", "plot", "plan"];
  function show(name) {
    for (const view of VIEWS) {
      $(view).hidden = view !== name;
      $(`tab-${view}`).setAttribute("aria-selected", String(view === name));
      $(`tab-${view}`).tabIndex = view === name ? 0 : -1;
    }
    if (name === "plot") plot();
    if (name === "plan") { former = ""; plan(); }
  }
  for (const view of VIEWS) $(`tab-${view}`).addEventListener("click", () => show(view));
  $("tabs").addEventListener("keydown", (e) => {
    const step = { ArrowLeft: 2, ArrowRight: 1 }[e.key];
    if (step === undefined) return;
    const next = VIEWS[(VIEWS.findIndex((v) => !$(v).hidden) + step) % 3];
    show(next);
    $(`tab-${next}`).focus();
  });
  editor.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); dismiss(); run(); }
    else if (chosen(e)) e.preventDefault();
  });
  editor.addEventListener("input", () => { dismiss(); edited(); });
  document.addEventListener("selectionchange", () => {
    if (document.activeElement === editor && planIsOpen()) edited();
  });
  $("run").addEventListener("click", run);
  $("stop").addEventListener("click", stop);
  $("measure").addEventListener("click", () => plan(true));
  begin();
})();
