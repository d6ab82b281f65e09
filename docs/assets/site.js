// What the theme leaves out for those who use a keyboard or hear a page: a name of the search, and a
// way to scroll a wide table without a mouse.
addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.role = "none";
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
});
