// Tables that are wider than the page say so.
const scrolled = new ResizeObserver((entries) => {
  for (const { target } of entries) target.classList.toggle("wide", target.scrollWidth > target.clientWidth);
});
for (const box of document.querySelectorAll(".scroll")) scrolled.observe(box);
