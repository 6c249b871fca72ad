// Curves tell their values under the pointer; samples are moved through by update or by prompt.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const short = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));

  // ------------------------------------------------------------------------------------------------------- curves
  const charts = JSON.parse(at("curves-data").textContent);

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
    const told = figure.querySelector(".told");
    const usual = [...told.childNodes];
    const [left, right, top, bottom] = chart.box;
    const xOf = (x) => (chart.x[1] === chart.x[0] ? (left + right) / 2
      : left + (x - chart.x[0]) / (chart.x[1] - chart.x[0]) * (right - left));
    const yOf = (y) => bottom - clamp((y - chart.y[0]) / (chart.y[1] - chart.y[0]), 1) * (bottom - top);
    const tell = (event) => {
      const box = picture.getBoundingClientRect();
      const place = (event.clientX - box.left) / box.width * picture.viewBox.baseVal.width;
      const x = chart.x[0] + clamp((place - left) / (right - left), 1) * (chart.x[1] - chart.x[0]);
      const found = chart.curves.map((curve) => [curve, nearest(curve.points, x)]).filter((pair) => pair[1]);
      if (!found.length) return;
      const [step] = found[0][1];
      cursor.replaceChildren(drawn("line", { x1: xOf(step), x2: xOf(step), y1: top, y2: bottom }));
      const words = found.map(([curve, [of, value, mean]]) => {
        cursor.append(drawn("circle", { cx: xOf(of), cy: yOf(value), r: 4 }, `c${curve.colour}`));
        const name = curve.label ? `${curve.label} ` : "";
        return `${name}${short(value)}${mean === value ? "" : ` (mean ${short(mean)})`}`;
      });
      told.textContent = `${chart.of} ${step}: ${words.join(" · ")}`;
    };
    const rest = () => {
      cursor.replaceChildren();
      told.replaceChildren(...usual);
    };
    picture.addEventListener("pointermove", tell);
    picture.addEventListener("pointerdown", tell);
    picture.addEventListener("pointerleave", rest);
  };
  document.querySelectorAll("figure[data-chart]").forEach(watch);

  // ------------------------------------------------------------------------------------------------------ samples
  const explorer = at("explorer");
  if (!explorer) return;
  const updates = JSON.parse(at("samples-data").textContent);
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
      at("cards").replaceChildren(...found.map(([of, sample], index) => card(of, sample, index === 0)));
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
