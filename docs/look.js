// What is wrong with the page that is open, as a list of lines. docs/look.py asks it of each page.
(isWide) => {
  const faults = [];
  const root = document.documentElement;
  const article = document.querySelector("article") || document.body;
  const shown = (element) => element.getClientRects().length > 0;
  const words = (element) => (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 60);

  if (root.scrollWidth > window.innerWidth + 1) {
    faults.push(`the page is ${root.scrollWidth} wide`);
  }
  if (isWide) {
    for (const block of article.querySelectorAll("pre code, pre")) {
      if (block.scrollWidth > block.clientWidth + 1 && block.clientWidth > 0) {
        faults.push(`a code block is cut off (${block.scrollWidth} in ${block.clientWidth}): ${words(block)}`);
      }
    }
  }
  for (const table of article.querySelectorAll("table")) {
    let box = table.parentElement;
    while (box !== article && !["auto", "scroll"].includes(getComputedStyle(box).overflowX)) {
      box = box.parentElement;
    }
    if (table.scrollWidth > article.clientWidth + 1 && box === article) {
      faults.push(`a table does not scroll: ${words(table)}`);
    }
  }
  for (const picture of article.querySelectorAll("img")) {
    if (!picture.alt) faults.push(`a picture without words: ${picture.src}`);
    if (!picture.complete || picture.naturalWidth === 0) faults.push(`no picture: ${picture.src}`);
  }
  for (const link of article.querySelectorAll("a[href], button")) {
    const name = words(link) || link.title || link.getAttribute("aria-label");
    if (!name && shown(link) && !link.querySelector("img[alt]")) faults.push(`no name: ${link.outerHTML.slice(0, 80)}`);
  }
  const ids = [...article.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((id, index) => ids.indexOf(id) !== index))) {
    faults.push(`an id stands twice: ${id}`);
  }
  let level = 0;
  for (const heading of article.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) faults.push(`a heading skips a level: ${words(heading)}`);
    level = own;
  }
  if (article.querySelectorAll("h1").length !== 1) faults.push("not one heading of the first level");
  if (!root.lang) faults.push("no language");

  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) =>
    0.2126 * channel(red / 255) + 0.7152 * channel(green / 255) + 0.0722 * channel(blue / 255);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (css, below) => {
    canvas.fillStyle = `rgb(${below.join(" ")})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = (element) => {
    const chain = [];
    for (let each = element; each; each = each.parentElement) chain.unshift(each);
    return chain.reduce((below, each) => colour(getComputedStyle(each).backgroundColor, below), [255, 255, 255]);
  };
  const pale = new Map();
  for (const element of article.querySelectorAll("p, li, td, th, code, pre span, a, h1, h2, h3")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !shown(element) || element.classList.contains("headerlink")) continue;
    const style = getComputedStyle(element);
    const below = behind(element);
    const [first, second] = [luminance(colour(style.color, below)), luminance(below)];
    const ratio = (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
    const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if (ratio < needed) {
      const kind = `${element.tagName.toLowerCase()}.${element.className}`;
      if (!pale.has(kind)) pale.set(kind, `contrast ${ratio.toFixed(1)} of ${kind}: ${words(element)}`);
    }
  }
  faults.push(...pale.values());
  return faults;
}
