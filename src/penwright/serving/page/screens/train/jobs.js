/** The runs of the studio: waiting, learning, finished, or started from a terminal. */

import { make, makeSvg } from "../../views/dom.js";
import { inText } from "../../views/tokens.js";
import { redraw } from "../../redraw.js";
import { SCREEN_OF } from "../../screens.js";
import { clock, quality, size, STATES } from "./words.js";

const ACTIVE = ["preparing", "training", "stopping"];
const ORDER = ["preparing", "training", "stopping", "waiting"];

/** Join the queue and the run folders: [{name, state, note, minutes, run}], the active ones first. */
export function joined(jobs, runs) {
  const byName = new Map(runs.map((run) => [run.name, run]));
  const queued = jobs.map((job) => ({ ...job, run: byName.get(job.name) || null, own: true }));
  const names = new Set(jobs.map(({ name }) => name));
  const others = runs
    .filter(({ name }) => !names.has(name))
    .map((run) => ({ name: run.name, state: run.state, minutes: null, note: "", run, own: false }));
  const rank = ({ state }) => (ORDER.includes(state) ? ORDER.indexOf(state) : ORDER.length);
  const age = ({ run }) => (run ? -run.changed : -Infinity);
  return [...queued, ...others].sort((a, b) => rank(a) - rank(b) || (rank(a) < ORDER.length ? 0 : age(a) - age(b)));
}

/** Create the section. `act(what, job)` does what a button says; `details(name)` returns {samples, figures} or null. */
export function makeJobs({ act, details }) {
  const list = make("div", { class: "jobs" });
  const machine = make("p", { class: "hint machine" });
  const root = make("section", { "aria-labelledby": "step-runs" }, make("h2", { id: "step-runs" }, "Your models"), machine, list);
  const known = new Map(); // the newest facts by name: a button may be older
  let drawn = "";
  let place = ".";

  function buttons({ name, state, run, own }) {
    const button = (what, text, main = false) =>
      make("button", { type: "button", class: main ? "main" : null, id: `${what}-${name}`, "aria-label": `${text} ${name}`, click: () => act(what, known.get(name)) }, text);
    const rests = !ACTIVE.includes(state) && state !== "waiting";
    return [
      run?.model && SCREEN_OF[run.task] && button("open", "Use", true),
      ["training", "preparing"].includes(state) && button("stop", "Stop"),
      state === "waiting" && button("stop", "Remove"),
      continues({ state, run, own }) && button("resume", again(state, run)),
      rests && run?.best_step !== null && run && make("a", { class: "button", download: "", href: `studio/download?run=${encodeURIComponent(name)}`, "aria-label": `Download ${name}` }, "Download"),
      rests && button("delete", "Delete"),
    ].filter(Boolean);
  }
  function progress({ state, run, minutes }) {
    if (!ACTIVE.includes(state)) return null;
    const bar = make("progress", { "aria-label": "Progress", max: 1 });
    const share = run?.total_steps ? run.step / run.total_steps : minutes && run ? run.seconds / (60 * minutes) : null;
    if (state !== "preparing" && share !== null) bar.value = Math.min(1, share);
    return bar;
  }
  function facts({ state, run, minutes, note, own }) {
    const words = run && quality(run.scores);
    const time = run && run.seconds > 0 && `${clock(run.seconds)}${minutes ? ` of ${clock(60 * minutes)}` : ""} min`;
    const parts = [state === "stopped" && !continues({ state, run, own }) ? "Stopped" : STATES[state], run && run.step > 0 && `step ${run.step.toLocaleString("en")}`, time].filter(Boolean);
    return [
      make("p", { class: "state" }, parts.join(" · ")),
      words && make("p", { class: "quality", title: words[1] }, words[0]),
      (state === "failed" || state === "preparing") && note && make("p", { class: state === "failed" ? "warning" : "hint" }, note),
      run?.problem && make("p", { class: "warning" }, run.problem),
      run?.model && run.model_step !== null && make("p", { class: "hint" }, answers(state, run)),
    ].filter(Boolean);
  }
  function answers(state, { step, best_step: best, model_step: served }) {
    const said = served.toLocaleString("en");
    if (ACTIVE.includes(state)) return `Use it now: it answers with the weights of step ${said}`;
    if (served === step) return `It answers with the weights of step ${said}`;
    return `It answers with its ${served === best ? "best" : "newest saved"} weights, from step ${said}`;
  }
  function card(job) {
    const more = job.run && details(job.name);
    return make("article", { class: `card job ${job.state}`, "aria-label": job.name, "data-key": job.name },
      make("h3", {}, make("bdi", {}, job.name)),
      ...facts(job),
      ...[progress(job)].filter(Boolean),
      ...[more && curve(more.figures), more && sample(more.samples, job.run?.task)].filter(Boolean),
      make("div", { class: "line", "data-key": "buttons" }, buttons(job)));
  }
  return {
    root,
    /** Say that the server does not answer. */
    offline() {
      machine.textContent =
        `The studio does not answer. Training continues without it. To open it again: penwright studio "${place}"`;
    },
    /** Draw all runs and the load of the machine, if anything has changed. */
    show(jobs, folder, { load, processors, free_memory: memory, free_disk: disk }) {
      place = folder;
      const busy = load === null ? "" : `about ${Math.min(processors, Math.round(load))} of ${processors} processors busy · `;
      machine.textContent = `This computer: ${busy}${memory ? `${size(memory)} of memory free · ` : ""}${size(disk)} of disk free`;
      const key = JSON.stringify(jobs.map((job) => [job, details(job.name)?.step]));
      if (key === drawn) return;
      drawn = key;
      jobs.forEach((job) => known.set(job.name, job));
      const focused = root.contains(document.activeElement) ? document.activeElement.id : "";
      redraw(list, jobs.length ? jobs.map(card) : [make("p", { class: "hint" }, "Nothing yet. Add a text and press Train.")]);
      if (focused) document.getElementById(focused)?.focus();
    },
  };
}

/** Whether a run can be queued again. One from elsewhere may have nothing to continue before its first step. */
const continues = ({ state, run, own }) => ![...ACTIVE, "waiting"].includes(state) && (own || run?.step > 0);

/** Return the label of the button that queues a run again. */
const again = (state, run) => (state === "finished" ? "Train longer" : state === "failed" && !run?.step ? "Try again" : "Continue");

/** A small curve of the loss on unseen text. The Runs screen has the large one. */
function curve({ evaluations }) {
  const name = Object.keys(evaluations).find((each) => each.startsWith("nats"));
  const points = (evaluations[name] || []).map((y, at) => [evaluations.step[at], y]).filter(([, y]) => y !== null);
  if (points.length < 3) return null;
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const scale = (value, all, size) => (size * (value - Math.min(...all))) / Math.max(1e-9, Math.max(...all) - Math.min(...all));
  const place = ([x, y]) => `${(4 + scale(x, xs, 292)).toFixed(1)},${(56 - scale(y, ys, 50)).toFixed(1)}`;
  const title = `Loss on unseen text: from ${ys[0].toFixed(2)} to ${ys.at(-1).toFixed(2)} ${name}`;
  return make("div", {}, make("p", { class: "hint" }, "Loss on unseen text, lower is better"),
    makeSvg("svg", { viewBox: "0 0 300 62", class: "spark", role: "img", "aria-label": title },
      makeSvg("title", {}, title), makeSvg("polyline", { points: points.map(place).join(" ") })));
}

/** The newest sample: the prompt and the text after it, or the answer of the model and the reference. */
function sample(samples, task) {
  const last = samples.at(-1);
  if (!last) return null;
  const [prompt, answer] = [make("span", { class: "prompt" }, inText(last.prompt)), inText(last.completion)];
  const reference = task !== "generate" && last.reference && last.reference !== last.completion && last.reference;
  return make("div", {}, ...[
    make("p", { class: "hint" }, `Sample at step ${last.step.toLocaleString("en")}`),
    make("p", { class: "sample", dir: "auto", tabindex: 0, role: "group", "aria-label": "Sample" }, prompt, task === "generate" ? " " : " → ", answer),
    reference && make("p", { class: "hint" }, task === "classify" ? "Its label in the data: " : "Reference: ", make("bdi", {}, inText(reference))),
  ].filter(Boolean));
}
