"use strict";
// The table of problems and the view of one. All text goes in as text, never as markup.
(() => {
  const PAGE = 50; // rows of the table
  const SOME = 25; // samples shown before "more" is asked for

  const index = JSON.parse(document.getElementById("index").textContent);
  const runs = index.runs;
  const several = runs.length > 1;
  const count = index.ids.length;
  const anyVotes = runs.some((run) => run.votes);
  const anyVerdicts = runs.some((run) => run.verdicts);
  const number = new Intl.NumberFormat("en");
  const order = new Intl.Collator("en", { numeric: true });
  const at = (id) => document.getElementById(id);

  // A problem's row in a run, as embed.py lists its fields.
  const FIELDS = ["samples", "judged", "right", "winner", "votes", "cast", "margin", "ok", "bundle", "at"];
  const problems = index.problems.map((rows) =>
    rows.map((row) => row && Object.fromEntries(FIELDS.map((name, i) => [name, row[i]]))));
  const SAMPLE = ["index", "right", "tokens", "end", "logprob", "answer", "result", "tests", "of", "message", "text"];

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  // Bundles are unpacked when a problem in them is first needed.
  const unpacked = new Map();
  function bundle(id) {
    if (!unpacked.has(id)) unpacked.set(id, unpack(at("bundle-" + id).textContent));
    return unpacked.get(id);
  }
  async function unpack(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // What the select offers: which problems of a run to show.
  const filters = [["all problems", () => true]];
  if (anyVotes && anyVerdicts) {
    filters.push(
      ["vote right", (row) => row.ok === 1],
      ["vote wrong", (row) => row.judged > 0 && row.ok === 0],
      ["rescued by the vote", (row) => row.ok === 1 && 2 * row.right < row.judged],
      ["right samples outvoted", (row) => row.ok === 0 && row.right > 0]);
  }
  if (anyVerdicts) {
    filters.push(
      ["solved by some samples", (row) => row.right > 0 && row.right < row.judged],
      ["solved by every sample", (row) => row.judged > 0 && row.right === row.judged],
      ["solved by no sample", (row) => row.judged > 0 && row.right === 0]);
  }
  const agree = (p) => new Set(problems.map((rows) => {
    const row = rows[p];
    if (!row || !row.judged) return null;
    return row.cast ? row.ok : Number(row.right > 0);
  })).size === 1;

  // Columns: name, class, the value to sort by, the cell.
  const share = (row) => (row && row.judged ? row.right / row.judged : -1);
  const columns = [{ name: "Problem", key: (p) => p, cell: (p) => open(p) }];
  if (index.levels.some(Boolean)) {
    columns.push({ name: "Difficulty", key: (p) => index.levels[p] || "", cell: (p) => index.levels[p] || "" });
  }
  if (index.snippets) {
    columns.push({ name: "Question", kind: "text minor", key: (p) => index.snippets[p],
      cell: (p) => make("span", {}, index.snippets[p]) });
  }
  if (index.gold.some((gold) => gold !== null)) {
    columns.push({ name: "Gold", kind: several ? "" : "minor", key: (p) => index.gold[p] || "",
      cell: (p) => cut(index.gold[p]) });
  }
  runs.forEach((run, r) => {
    const of = several ? `${run.name}: ` : "";
    const row = (p) => problems[r][p];
    if (run.verdicts) {
      columns.push({ name: of + (several ? "right" : "Right samples"), key: (p) => share(row(p)), down: true,
        cell: (p) => (row(p) ? [meter(share(row(p)), r), rightOf(row(p))] : "–") });
    } else {
      columns.push({ name: of + "samples", key: (p) => (row(p) ? row(p).samples : -1), down: true,
        cell: (p) => (row(p) ? number.format(row(p).samples) : "–") });
    }
    if (run.votes) {
      columns.push({ name: of + (several ? "vote" : "Vote"), key: (p) => (row(p) && row(p).winner) || "",
        cell: (p) => (row(p) ? [cut(row(p).winner, "no vote"), " ", mark(row(p).ok)] : "–") });
      if (runs.length <= 2) columns.push({ name: of + (several ? "lead" : "Lead"), kind: "minor", down: true,
        key: (p) => (row(p) && row(p).margin !== null ? row(p).margin : -1),
        cell: (p) => (row(p) && row(p).margin !== null ? percent(row(p).margin) : "–") });
    }
  });

  function rightOf(row) {
    return row.judged ? `${number.format(row.right)}/${number.format(row.judged)}` : "not judged";
  }
  function percent(value) { return `${Math.round(100 * value)}%`; }
  function cut(text, otherwise) {
    return text === null ? make("span", { class: "quiet" }, otherwise || "–")
      : make("span", { class: "cut", title: text }, text);
  }
  function mark(ok) {
    if (ok === null) return null;
    return make("span", { class: ok ? "yes" : "no", role: "img", "aria-label": ok ? "right" : "wrong" }, ok ? "✓" : "✗");
  }
  function meter(part, r) {
    const fill = make("i");
    fill.style.width = `${100 * Math.max(0, part)}%`;
    fill.style.background = `var(--run-${r % 8})`;
    return make("span", { class: "meter", "aria-hidden": "true" }, fill);
  }
  function open(p) {
    return make("button", { type: "button", class: "open", title: index.ids[p],
      onclick: (event) => { event.stopPropagation(); show(p); } }, index.ids[p]);
  }

  // The table: what is found, in which order, which page of it.
  const state = { found: [], page: 0, column: 0, down: false };
  const search = at("search"), verdict = at("verdict"), ofRun = at("of-run"), level = at("level"), deep = at("deep");
  const all = Array.from({ length: count }, (_, p) => p);
  let asked = 0; // a newer search ends an older one

  async function find() {
    const mine = ++asked;
    const words = search.value.trim().toLowerCase();
    const test = filters[Number(verdict.value)] ? filters[Number(verdict.value)][1] : null;
    const chosen = ofRun.value === "" ? problems : [problems[Number(ofRun.value)]];
    let found = all.filter((p) =>
      (level.value === "" || index.levels[p] === level.value) &&
      (test ? chosen.some((rows) => rows[p] && test(rows[p])) : !agree(p)));
    if (words && deep.checked) {
      const hits = [];
      for (let i = 0; i < found.length; i++) {
        if (i % 20 === 0) {
          at("count").textContent = `Searching ${number.format(i)} of ${number.format(found.length)} problems…`;
          await new Promise((done) => setTimeout(done));
          if (mine !== asked) return;
        }
        if (inIndex(found[i], words) || await inSamples(found[i], words)) hits.push(found[i]);
      }
      found = hits;
    } else if (words) {
      found = found.filter((p) => inIndex(p, words));
    }
    if (mine !== asked) return;
    state.found = found;
    sort();
  }
  function inIndex(p, words) {
    return [index.ids[p], index.gold[p], index.snippets && index.snippets[p],
      ...problems.map((rows) => rows[p] && rows[p].winner)]
      .some((text) => text && text.toLowerCase().includes(words));
  }
  async function inSamples(p, words) {
    for (const rows of problems) {
      if (!rows[p]) continue;
      const details = (await bundle(rows[p].bundle))[rows[p].at];
      if (details.prompt && details.prompt.toLowerCase().includes(words)) return true;
      if (details.samples.some((sample) => sample[8].toLowerCase().includes(words))) return true;
    }
    return false;
  }
  function sort() {
    const { key } = columns[state.column];
    const sign = state.down ? -1 : 1;
    const keys = new Map(state.found.map((p) => [p, key(p)]));
    state.found.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      return sign * (typeof x === "number" ? x - y : order.compare(x, y)) || a - b;
    });
    state.page = 0;
    draw();
  }
  function draw() {
    const pages = Math.max(1, Math.ceil(state.found.length / PAGE));
    const start = state.page * PAGE;
    const rows = state.found.slice(start, start + PAGE).map((p) =>
      make("tr", { onclick: () => { if (String(getSelection()) === "") show(p); } },
        columns.map((column) => make("td", { class: column.kind }, column.cell(p)))));
    at("table").tBodies[0].replaceChildren(...rows);
    at("table").tHead.replaceChildren(make("tr", {}, columns.map((column, i) =>
      make("th", { scope: "col", class: column.kind && column.kind.replace("text", ""),
        "aria-sort": i === state.column ? (state.down ? "descending" : "ascending") : null },
        make("button", { type: "button", id: `sort-${i}`, onclick: () => by(i) }, column.name)))));
    const of = state.found.length === count ? "" : ` of ${number.format(count)}`;
    at("count").textContent = `${number.format(state.found.length)}${of} problem${count === 1 ? "" : "s"}`;
    at("where").textContent = `page ${number.format(state.page + 1)} of ${number.format(pages)}`;
    at("first").disabled = at("previous").disabled = state.page === 0;
    at("last").disabled = at("next").disabled = state.page >= pages - 1;
    at("pager").hidden = pages === 1;
  }
  function by(i) {
    state.down = i === state.column ? !state.down : Boolean(columns[i].down);
    state.column = i;
    sort();
    at(`sort-${i}`).focus();
  }
  function turn(page) {
    state.page = page;
    draw();
  }

  // One problem.
  const dialog = at("problem");
  const view = { p: 0, run: 0, only: "all", shown: SOME, opened: false };

  let pushed = false; // whether the entry of the history is one that opening the dialog made

  function show(p) {
    if (dialog.open && view.p === p) return;
    view.p = p;
    if (!problems[view.run][p]) view.run = problems.findIndex((rows) => rows[p]);
    view.shown = SOME;
    const place = "#problem=" + encodeURIComponent(index.ids[p]);
    if (dialog.open) {
      history.replaceState(null, "", place);
    } else if (location.hash !== place) {
      history.pushState(null, "", place);
      pushed = true;
    }
    if (!dialog.open) dialog.showModal();
    at("problem-title").focus();
    fill();
  }
  async function fill() {
    const { p, run } = view;
    at("problem-title").textContent = `Problem ${index.ids[p]}`;
    at("problem-title").title = index.ids[p];
    const place = state.found.indexOf(p);
    at("problem-previous").disabled = place <= 0;
    at("problem-next").disabled = place < 0 || place >= state.found.length - 1;
    const row = problems[run][p];
    if (!("DecompressionStream" in window)) {
      at("problem-body").textContent = "The samples are packed; showing them takes a browser of 2023 or later.";
      return;
    }
    const details = (await bundle(row.bundle))[row.at];
    if (view.p !== p || view.run !== run) return;
    const samples = details.samples.map((values) => Object.fromEntries(SAMPLE.map((name, i) => [name, values[i]])));
    const body = at("problem-body");
    body.replaceChildren(...[
      details.prompt ? [make("h3", { id: "question" }, "Question"),
        make("pre", { dir: "auto", class: "question", tabindex: 0, role: "region", "aria-labelledby": "question" },
          details.prompt.trim())] : [],
      index.gold[p] === null ? [] : [make("h3", {}, "Gold answer"), make("pre", { dir: "auto" }, index.gold[p])],
      several ? [make("h3", {}, "Run"), choices(runs.map((of, r) => [of.name, r]).filter(([, r]) => problems[r][p]),
        "run", "Which run's samples to show")] : [],
      details.votes.length ? [make("h3", {}, "Vote"), votes(details.votes, row)] : [],
      sampleList(samples, row),
    ].flat());
  }
  function choices(options, name, label) {
    return make("div", { class: "choices", role: "group", "aria-label": label }, options.map(([text, value]) =>
      make("button", { type: "button", "aria-pressed": String(view[name] === value), id: `choose-${name}-${value}`,
        onclick: () => choose(name, value, `choose-${name}-${value}`) }, text)));
  }
  async function choose(name, value, button) {
    view[name] = value;
    view.shown = SOME;
    await fill();
    at(button).focus(); // the pressed button was drawn anew
  }
  function votes(list, row) {
    const most = list[0][1];
    const lines = list.slice(0, SOME).map(([answer, cast, right]) => make("tr", {},
      make("td", {}, answer, " ", mark(right)),
      make("td", {}, `${number.format(cast)} (${percent(cast / row.cast)})`),
      make("td", { class: "minor" }, meter(cast / most, view.run))));
    const silent = row.samples - row.cast;
    const rest = [
      list.length > SOME ? `${number.format(list.length - SOME)} more answers with fewer votes` : null,
      silent ? `${number.format(silent)} of ${number.format(row.samples)} samples have no answer` : null,
    ].filter(Boolean).join("; ");
    return make("div", {}, make("table", { class: "votes" }, make("tbody", {}, lines)),
      rest ? make("p", { class: "quiet" }, rest) : null);
  }
  function sampleList(samples, row) {
    const right = samples.filter((sample) => sample.right === 1);
    const wrong = samples.filter((sample) => sample.right === 0);
    const lists = { all: samples, right, wrong };
    const list = lists[view.only];
    const shown = list.slice(0, view.shown);
    const left = list.length - shown.length;
    return [
      make("h3", {}, "Samples", row.judged ? ` · ${rightOf(row)} right` : ""),
      make("div", { class: "choices" },
        row.judged ? choices(Object.entries(lists).map(([name, of]) => [`${name} ${number.format(of.length)}`, name]),
          "only", "Which samples to show") : null,
        make("button", { type: "button", id: "open-all", onclick: () => choose("opened", !view.opened, "open-all") },
          view.opened ? "close all" : "open all")),
      shown.map((sample, i) => sampleBox(sample, view.opened || i === 0)),
      left > 0 ? make("button", { type: "button", id: "more", onclick: async () => {
        view.shown += 4 * SOME;
        const top = at("problem-body").scrollTop;
        await fill();
        at("problem-body").scrollTop = top;
      } }, `Show more (${number.format(left)} left)`) : null,
    ].flat().filter(Boolean);
  }
  function tests(sample) {
    const passed = number.format(sample.tests);
    if (sample.of !== null) return `${passed} of ${number.format(sample.of)} tests passed`;
    return `${passed} test${sample.tests === 1 ? "" : "s"} passed`;
  }
  function sampleBox(sample, opened) {
    const facts = [
      sample.answer === null ? null : `answer ${sample.answer}`,
      sample.message === null ? sample.result : `${sample.result}: ${sample.message}`,
      sample.tests === null ? null : tests(sample),
      `${number.format(sample.tokens)} tokens`,
      sample.end && `ended by ${sample.end}`,
      sample.logprob === null ? null : `log p ${sample.logprob}`,
    ].filter(Boolean).join(" · ");
    const box = make("details", { class: "sample", open: opened },
      make("summary", {}, `#${sample.index} `, mark(sample.right), " ", make("span", { class: "quiet" }, facts)));
    const text = () => {
      if (box.open && !box.querySelector("pre")) box.append(make("pre", { dir: "auto" }, sample.text));
    };
    box.addEventListener("toggle", text); // a text is put in when it is looked at
    text();
    return box;
  }
  function step(by) {
    const place = state.found.indexOf(view.p) + by;
    if (place < 0 || place >= state.found.length) return;
    show(state.found[place]);
    at("problem-body").scrollTop = 0;
    const page = Math.floor(place / PAGE);
    if (page !== state.page) turn(page);
  }

  function option(value, text) { return make("option", { value }, text); }
  verdict.append(...filters.map(([name], i) => option(i, name)));
  if (several) {
    if (anyVerdicts) verdict.append(option(filters.length, "runs disagree"));
    ofRun.append(option("", "any"), ...runs.map((run, r) => option(r, run.name)));
    at("run-field").hidden = false;
  }
  const levels = [...new Set(index.levels.filter(Boolean))].sort(order.compare);
  level.append(option("", "all"), ...levels.map((name) => option(name, name)));
  at("level-field").hidden = levels.length === 0;
  let typing;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(find, 150); });
  for (const choice of [verdict, ofRun, level, deep]) choice.addEventListener("change", find);
  at("first").addEventListener("click", () => turn(0));
  at("previous").addEventListener("click", () => turn(state.page - 1));
  at("next").addEventListener("click", () => turn(state.page + 1));
  at("last").addEventListener("click", () => turn(Math.ceil(state.found.length / PAGE) - 1));
  at("problem-previous").addEventListener("click", () => step(-1));
  at("problem-next").addEventListener("click", () => step(1));
  at("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => {
    if (!location.hash.startsWith("#problem=")) return; // it was Back that closed it
    if (pushed) history.back();
    else history.replaceState(null, "", location.pathname + location.search + "#problems");
    pushed = false;
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  function follow() {
    if (!location.hash.startsWith("#problem=")) {
      pushed = false;
      dialog.close();
      return;
    }
    const p = index.ids.indexOf(decodeURIComponent(location.hash.slice(9)));
    if (p >= 0) show(p);
  }
  addEventListener("hashchange", follow);
  at("tools").hidden = at("table").hidden = false;
  find().then(follow);
})();
