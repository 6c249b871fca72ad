(() => {
  const samples = JSON.parse(document.getElementById("samples-data").textContent);
  let sample = 0;
  let step = 0;

  const fill = (id, children) => at(id).replaceChildren(...children);
  const steps = () => (samples[sample].trace ? samples[sample].trace.steps : []);

  // The state behind the first `count` steps.
  const stateBehind = (trace, count) => {
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
    const { facts, numbers } = stateBehind(trace, step);
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

  if (!samples.length) return;
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
