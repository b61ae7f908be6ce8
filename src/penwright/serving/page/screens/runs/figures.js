/** Conversion of the figures of runs (GET runs/figures) to the lines of a diagram. */

/** Return the measures that some runs have: [{name, title, label}]; `name` is the name of a column. */
export function measuresOf(figures) {
  const counters = new Set(["step", "seconds", "targets", "epoch", "skipped", "total_steps"]);
  const scores = new Set(figures.flatMap(({ evaluations }) => Object.keys(evaluations)));
  const shown = [...scores].filter((name) => !counters.has(name) && !name.startsWith("nats"));
  return [
    ["loss", "Loss", "nats"],
    ...shown.map((name) => [name, name[0].toUpperCase() + name.slice(1), name]),
    ["learning rate", "Learning rate", "learning rate"],
    ["gradient norm", "Gradient norm", "gradient norm"],
    ["speed", "Speed", "tokens or texts per second"],
  ].map(([name, title, label]) => ({ name, title, label }));
}

/** The axes for curves: the column, the label, and the divisor. */
export const AXES = {
  step: ["step", "step", 1],
  targets: ["targets", "training tokens or texts", 1],
  time: ["seconds", "minutes", 60],
};

const column = (table, name) => table[name] || [];

/** Return the line in a list, or an empty list if it has no numbers. */
function line(name, table, measure, by, more) {
  const [axis, , unit] = AXES[by];
  const y = column(table, measure);
  if (!y.some((value) => value !== null)) return [];
  return [{ name, x: column(table, axis).map((value) => value / unit), y, ...more }];
}

/** Return the lines of one run: its training curve, and dots for its evaluations. */
export function linesOf({ name, colour, figures }, measure, by) {
  const { steps, evaluations } = figures;
  if (measure !== "loss")
    return [
      ...line(name, steps, measure, by, { colour }),
      ...line(name, evaluations, measure, by, { colour, dots: true }),
    ];
  const nats = Object.keys(evaluations).find((each) => each.startsWith("nats"));
  return [
    ...line(`${name}, training`, steps, "loss", by, { colour }),
    ...line(`${name}, held out`, evaluations, nats, by, { colour, dots: true }),
  ];
}

/** Return all lines as CSV, one point per row. */
export function csvOf(lines, xName, yName) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = lines.flatMap(({ name, x, y }) => x.map((value, at) => [quoted(name), value, y[at] ?? ""].join(",")));
  return [["line", xName, yName].map(quoted).join(","), ...rows].join("\r\n") + "\r\n";
}

/** Return the settings that differ between runs: [[name, value of each run]]. */
export function differences(settings) {
  const names = [...new Set(settings.flatMap((each) => Object.keys(each)))].sort();
  const said = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const rows = names.map((name) => [name, settings.map((each) => said(each[name]))]);
  return rows.filter(([, values]) => new Set(values).size > 1);
}
