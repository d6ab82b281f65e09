// What axe-core does not see of the page that is open, as a list of lines. docs/look.py asks it of each page.
(isWide) => {
  const faults = [];
  const root = document.documentElement;
  const article = document.querySelector("article") || document.body;
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
    } else if (isWide && box.scrollWidth > box.clientWidth + 1) {
      faults.push(`a table is cut off (${box.scrollWidth} in ${box.clientWidth}): ${words(table)}`);
    }
  }
  for (const picture of article.querySelectorAll("img")) {
    if (!picture.complete || picture.naturalWidth === 0) faults.push(`no picture: ${picture.src}`);
  }
  const ids = [...article.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((id, index) => ids.indexOf(id) !== index))) {
    faults.push(`an id stands twice: ${id}`);
  }
  return faults;
}
