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
const dataOf = (id) => JSON.parse(at(id).textContent);
const short = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));

// Curves tell their values under the pointer.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  if (!at("curves-data")) return;
  const charts = dataOf("curves-data");

  const drawn = (name, attributes, className) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (className) made.setAttribute("class", className);
    return made;
  };

  const nearest = (points, x) => {
    let best = null;
    for (const point of points) {
      if (point[1] !== null && (best === null || Math.abs(point[0] - x) < Math.abs(best[0] - x))) best = point;
    }
    return best;
  };

  const watch = (figure) => {
    const chart = charts[Number(figure.dataset.chart)];
    const picture = figure.querySelector("svg[role=img]");
    const cursor = picture.querySelector(".cursor");
    const values = figure.querySelector(".values");
    const notes = [...values.childNodes];
    const [left, right, top, bottom] = chart.box;
    const xOf = (x) => (chart.x[1] === chart.x[0] ? (left + right) / 2
      : left + (x - chart.x[0]) / (chart.x[1] - chart.x[0]) * (right - left));
    const yOf = (y) => bottom - clamp((y - chart.y[0]) / (chart.y[1] - chart.y[0]), 1) * (bottom - top);
    const showValues = (event) => {
      const box = picture.getBoundingClientRect();
      const place = (event.clientX - box.left) / box.width * picture.viewBox.baseVal.width;
      const pointed = chart.x[0] + clamp((place - left) / (right - left), 1) * (chart.x[1] - chart.x[0]);
      const found = chart.curves.map((curve) => [curve, nearest(curve.points, pointed)]).filter((pair) => pair[1]);
      if (!found.length) return;
      const [step] = found[0][1];
      cursor.replaceChildren(drawn("line", { x1: xOf(step), x2: xOf(step), y1: top, y2: bottom }));
      const words = found.map(([curve, [x, value, mean]]) => {
        cursor.append(drawn("circle", { cx: xOf(x), cy: yOf(value), r: 4 }, curve.style));
        const name = curve.label ? `${curve.label} ` : "";
        return `${name}${short(value)}${mean === value ? "" : ` (mean ${short(mean)})`}`;
      });
      values.textContent = `${chart.x_label} ${step}: ${words.join(" · ")}`;
    };
    const showNotes = () => {
      cursor.replaceChildren();
      values.replaceChildren(...notes);
    };
    picture.addEventListener("pointermove", showValues);
    picture.addEventListener("pointerdown", showValues);
    picture.addEventListener("pointerleave", showNotes);
  };
  document.querySelectorAll("figure[data-chart]").forEach(watch);
})();

// Samples are moved through by update or by prompt.
(() => {
  const explorer = at("explorer");
  if (!explorer) return;
  const updates = dataOf("samples-data");
  const places = new Map(); // prompt id -> [[step, sample], ...]
  for (const { step, samples } of updates) {
    for (const sample of samples) {
      if (!places.has(sample.id)) places.set(sample.id, []);
      places.get(sample.id).push([step, sample]);
    }
  }
  const stepsOf = (found) => new Set(found.map(([step]) => step)).size;
  const recurring = [...places].filter(([id, found]) => id && stepsOf(found) > 1);
  let chosen = ""; // id of the prompt that is followed; none: all of an update
  let place = updates.length - 1;

  const card = (step, sample, withPrompt) => {
    const item = document.createElement("li");
    const head = element("div", "", "head");
    head.append(element("span", `update ${step}${sample.id ? ` · ${sample.id}` : ""}`));
    head.append(element("strong", sample.score === null ? "no score" : `score ${short(sample.score)}`));
    item.append(head);
    if (sample.verdict) {
      item.append(element("div", sample.verdict, `verdict ${sample.verdict === "valid" ? "valid" : "invalid"}`));
    }
    if (withPrompt) item.append(element("div", "prompt", "kind"), element("pre", sample.prompt));
    item.append(element("div", "completion", "kind"), element("pre", sample.completion));
    const more = Object.entries(sample.more);
    if (more.length) item.append(element("div", more.map(([name, value]) => `${name} ${value}`).join(" · "), "kind"));
    return item;
  };

  const show = () => {
    const { step, samples } = updates[place];
    at("time").hidden = at("earlier").hidden = at("later").hidden = Boolean(chosen);
    if (chosen) {
      const found = places.get(chosen);
      at("position").textContent = `${found.length} samples of this prompt`;
      at("cards").replaceChildren(...found.map(([sampleStep, sample], index) => card(sampleStep, sample, index === 0)));
      return;
    }
    at("update").value = String(place);
    at("update").setAttribute("aria-valuetext", `update ${step}`);
    at("position").textContent = `update ${step}, ${place + 1} of ${updates.length}`;
    at("earlier").disabled = place === 0;
    at("later").disabled = place === updates.length - 1;
    at("cards").replaceChildren(...samples.map((sample) => card(step, sample, true)));
  };
  const go = (to) => {
    place = clamp(to, updates.length - 1);
    show();
  };

  const option = (label, value) => {
    const made = element("option", label);
    made.value = value;
    return made;
  };
  at("prompt").append(option("all, update by update", ""));
  for (const [id, found] of recurring) at("prompt").append(option(`${id} (${stepsOf(found)} updates)`, id));
  at("prompt").addEventListener("change", () => {
    chosen = at("prompt").value;
    show();
  });
  at("update").max = String(updates.length - 1);
  at("update").addEventListener("input", () => go(Number(at("update").value)));
  at("earlier").addEventListener("click", () => go(place - 1));
  at("later").addEventListener("click", () => go(place + 1));
  show();
  explorer.hidden = false;
})();

// Plans are stepped through state by state.
(() => {
  if (!at("viewer")) return;
  const samples = dataOf("samples-data");
  let sample = 0;
  let step = 0;

  const fill = (id, children) => at(id).replaceChildren(...children);
  const steps = () => (samples[sample].trace ? samples[sample].trace.steps : []);

  // The state after the first `count` steps.
  const stateAfter = (trace, count) => {
    const facts = new Set(trace.facts);
    const numbers = new Map(trace.numbers);
    for (const one of trace.steps.slice(0, count)) {
      one.deleted.forEach((atom) => facts.delete(atom));
      one.added.forEach((atom) => facts.add(atom));
      one.numbers.forEach(([name, value]) => numbers.set(name, value));
    }
    return { facts, numbers };
  };

  const showPlan = (shown) => {
    const items = shown.plan.map((action, index) => {
      const item = element("li", action);
      const reached = index < steps().length;
      if (index + 1 === step) item.classList.add("now");
      if (reached && steps()[index].error) item.classList.add("wrong");
      if (reached) item.addEventListener("click", () => go(sample, index + 1));
      else item.classList.add("beyond");
      return item;
    });
    fill("plan", items);
    const now = at("plan").querySelector(".now");
    if (now) at("plan").scrollTop = now.offsetTop - at("plan").offsetTop - 60;
  };

  const showStep = (trace, one) => {
    at("action").textContent = one ? `${step}. ${one.action}` : "The initial state";
    const failed = one && one.error;
    at("reason").textContent = failed ? `cannot be carried out: ${one.reason}` : "";
    fill("preconditions", (one ? one.preconditions : []).map(([text, holds]) => {
      return element("li", `${holds ? "✓" : "✗"} ${text}`, holds ? "yes" : "failing");
    }));
    at("preconditions-title").hidden = !(one && one.preconditions.length);
    const { facts, numbers } = stateAfter(trace, step);
    const added = new Set(one ? one.added : []);
    const atoms = [...facts].sort().map((atom) => {
      return added.has(atom) ? element("span", `+ ${atom}`, "added") : element("span", atom);
    });
    const deleted = (one ? one.deleted : []).map((atom) => element("span", `− ${atom}`, "deleted"));
    const changed = new Map(one ? one.numbers : []);
    const values = [...numbers].map(([name, value]) => {
      return element("span", `${name} = ${value}`, changed.has(name) ? "added" : "");
    });
    fill("state", [...deleted, ...atoms, ...values]);
    const holds = one ? one.goals : trace.goals.map((goal) => goal[1]);
    const isOver = step === steps().length; // what does not hold now is missed
    fill("goals", trace.goals.map(([text], index) => {
      if (holds[index]) return element("li", `✓ ${text}`, "yes");
      return element("li", `${isOver ? "✗" : "○"} ${text}`, isOver ? "failing" : "");
    }));
  };

  const show = () => {
    const shown = samples[sample];
    at("pick").value = String(sample);
    at("verdict").textContent = shown.verdict;
    at("verdict").className = `verdict ${shown.valid ? "valid" : "invalid"}`;
    at("answer").textContent = shown.text;
    at("reference").textContent = shown.reference.join("\n");
    at("position").textContent = `step ${step} of ${steps().length}`;
    at("before").disabled = step === 0;
    at("after").disabled = step >= steps().length;
    at("note").textContent = shown.note;
    at("steps").hidden = !shown.trace;
    showPlan(shown);
    if (shown.trace) showStep(shown.trace, step ? steps()[step - 1] : null);
  };

  const go = (toSample, toStep) => {
    sample = clamp(toSample, samples.length - 1);
    step = clamp(toStep, steps().length);
    show();
    const fragment = `#sample=${sample + 1}&step=${step}`;
    if (location.hash !== fragment) history.replaceState(null, "", fragment);
  };

  const readFragment = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const numberOf = (name, otherwise) => {
      const value = Number.parseInt(wanted.get(name), 10);
      return Number.isNaN(value) ? otherwise : value;
    };
    return [numberOf("sample", 1) - 1, numberOf("step", 0)];
  };

  samples.forEach((one, index) => {
    const option = element("option", `${index + 1}. ${one.title}`);
    option.value = String(index);
    at("pick").append(option);
  });
  at("pick").addEventListener("change", () => go(Number(at("pick").value), 0));
  at("before").addEventListener("click", () => go(sample, step - 1));
  at("after").addEventListener("click", () => go(sample, step + 1));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input, textarea")) return;
    if (event.key === "ArrowLeft") go(sample, step - 1);
    else if (event.key === "ArrowRight") go(sample, step + 1);
    else return;
    event.preventDefault();
  });
  window.addEventListener("hashchange", () => go(...readFragment()));
  [sample, step] = readFragment();
  sample = clamp(sample, samples.length - 1);
  step = clamp(step, steps().length);
  show();
  at("viewer").hidden = false;
  if (location.hash) at("viewer").scrollIntoView();
})();
