// Makes elements. Text goes in as text nodes only, so nothing that a model writes is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element; attributes that are null, undefined or false are left out. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, made in the same way. */
export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A button that calls `action`. */
export function button(text, action, attributes = {}) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", action);
  return made;
}

const SEEN = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·" };

/** The text of a token with its blanks made visible; what has no shape of its own is shown as its code. */
export function visible(text) {
  return Array.from(text, (character) => {
    if (SEEN[character]) return SEEN[character];
    return /^[\p{C}\p{Z}]$/u.test(character) ? `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}` : character;
  }).join("");
}

/** A function that runs `work` at most once per `milliseconds`, however often it is called. */
export function calmly(work, milliseconds) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      work();
    }, milliseconds);
  };
}

/** A function that runs `work` before the next picture, however often it is called until then. */
export function soon(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
