"use strict";
// Everything that comes from a model is put on the page as text (textContent), never as markup.
const at = (id) => document.getElementById(id);
const element = (tag, text, className) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};
const clamp = (value, most) => Math.min(Math.max(value, 0), most);

