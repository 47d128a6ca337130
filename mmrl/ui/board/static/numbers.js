// Numbers to display, in the report's format (mmrl/ui/report/svg.py).

export function number(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "no number";
  if (unit === "%") return `${(value * 100).toFixed(1)}%`;
  const size = Math.abs(value);
  let text;
  if (value === 0) text = "0";
  else if (size >= 1e6 || size < 1e-3) text = short(value.toExponential(1));
  else if (size >= 1000) text = grouped(value);
  else text = String(+value.toPrecision(size < 100 ? 3 : 4));
  return unit ? `${text} ${unit}` : text;
}

// The label of a tick. largest: the largest absolute tick of the axis.
export function tick(value, largest, unit = "") {
  if (unit === "%") return `${+(value * 100).toPrecision(6)}%`;
  if (value === 0) return "0";
  if (largest >= 10000) return largest >= 1e6 ? `${+(value / 1e6).toPrecision(6)}M` : `${+(value / 1e3).toPrecision(6)}k`;
  return largest >= 1e-3 ? String(+value.toPrecision(6)) : short(value.toExponential(1));
}

// `42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`.
export function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return seconds < 10 ? `${+seconds.toFixed(1)} s` : `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${padded(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${padded(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// The label of a tick on an axis of seconds, such as `40 s`, `25 min`, `3:30 h`, `2 d`. largest: the largest tick of the axis.
export function clock(seconds, largest) {
  if (seconds === 0) return "0";
  if (largest < 120) return `${+seconds.toPrecision(6)} s`;
  if (largest < 7200) return `${+(seconds / 60).toPrecision(6)} min`;
  if (largest < 172800) {
    const minutes = Math.round(seconds / 60);
    return minutes % 60 ? `${Math.floor(minutes / 60)}:${padded(minutes % 60)} h` : `${minutes / 60} h`;
  }
  return `${+(seconds / 86400).toPrecision(4)} d`;
}

export const grouped = (value) => Math.round(value).toLocaleString("en-US");

const padded = (n) => String(n).padStart(2, "0");

function short(text) {
  const [mantissa, exponent] = text.split("e");
  return `${mantissa.replace(/\.0$/, "")}e${Number(exponent)}`;
}
