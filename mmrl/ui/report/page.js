// Values under the pointer, images that a click enlarges, and a button that pauses videos. The page also works without scripts.
const tip = document.getElementById("tip");
const NS = "http://www.w3.org/2000/svg";

function show(value, unit) {
  if (value === null) return "no number";
  if (unit === "%") return (value * 100).toFixed(1) + "%";
  const size = Math.abs(value);
  const text = size && (size < 1e-3 || size >= 1e6) ? value.toExponential(1) : String(+value.toPrecision(4));
  return unit ? text + " " + unit : text;
}

for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const data = JSON.parse(svg.dataset.chart);
  const place = ([low, high, start, stop], v) => start + (Math.min(Math.max(v, low), high) - low) / (high - low) * (stop - start);
  let marks = null;

  svg.addEventListener("pointermove", (event) => {
    if (!data.steps.length) return;
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    let best = 0;
    data.steps.forEach((step, i) => {
      if (Math.abs(place(data.x, step) - x) < Math.abs(place(data.x, data.steps[best]) - x)) best = i;
    });
    if (!marks) marks = svg.appendChild(document.createElementNS(NS, "g"));
    marks.replaceChildren();
    const at = place(data.x, data.steps[best]);
    const line = marks.appendChild(document.createElementNS(NS, "line"));
    line.setAttribute("class", "cross");
    for (const [key, v] of Object.entries({ x1: at, x2: at, y1: data.y[3], y2: data.y[2] })) line.setAttribute(key, v);
    const title = document.createElement("b");
    title.textContent = "step " + data.steps[best];
    const rows = [title];
    for (const series of data.series) {
      const value = series.values[best];
      if (value === null && data.series.length > 1) continue;
      if (data.dots && value !== null) {
        const dot = marks.appendChild(document.createElementNS(NS, "circle"));
        dot.setAttribute("class", "dot s" + series.color);
        for (const [key, v] of Object.entries({ cx: at, cy: place(data.y, value), r: 3.5 })) dot.setAttribute(key, v);
      }
      const row = document.createElement("div"), key = document.createElement("i"), name = document.createElement("span");
      const number = document.createElement("b");
      key.className = "key s" + series.color;
      name.textContent = series.name;
      number.textContent = show(value, data.unit);
      row.append(key, name, number);
      rows.push(row);
    }
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const top = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18;
    tip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
  });

  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    if (marks) marks.remove();
    marks = null;
  });
}

// A small picture grows by a whole factor, so that all its pixels stay equally large.
function grow(image) {
  const { naturalWidth: wide, naturalHeight: high } = image;
  const most = Math.min(512, 0.94 * innerWidth, (0.94 * innerHeight * wide) / high);
  image.style.setProperty("--whole", `${wide * Math.max(1, Math.floor(most / wide))}px`);
}

document.addEventListener("click", (event) => {
  const picture = event.target.closest("button.picture");
  for (const other of document.querySelectorAll("button.picture.large")) if (other !== picture) other.classList.remove("large");
  if (!picture) return;
  picture.querySelectorAll("img.pixels").forEach(grow);
  picture.classList.toggle("large");
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("button.picture.large").forEach((p) => p.classList.remove("large"));
});

const root = document.documentElement;
for (const button of document.querySelectorAll("button.pause")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const paused = root.classList.contains("paused") || (still && !root.classList.contains("playing"));
    root.classList.toggle("paused", !paused);
    root.classList.toggle("playing", paused);
  });
}
