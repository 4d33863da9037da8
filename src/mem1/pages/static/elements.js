// Elements of the page. Strings become text nodes: nothing in the data is ever read as markup.

// make("p", {class: "remark"}, "text", child): attributes that are false or null are left out, "onclick" is a listener.
const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== ""));
  return element;
};

const byId = (id) => document.getElementById(id);
const words = (name) => name.replaceAll("_", " ");
const count = (number) => number.toLocaleString("en-US");

// Announced by screen readers, not shown.
const say = (text) => { byId("said").textContent = text; };
