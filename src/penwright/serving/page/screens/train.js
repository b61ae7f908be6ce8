/** The Train screen of the studio: from a text to a trained model, without a terminal. */

import { make } from "../views/dom.js";
import { askJson, wasStopped } from "../api.js";
import { confirmed, openDialog } from "../dialogs.js";
import { SCREEN_OF } from "../screens.js";
import { joined, makeJobs } from "./train/jobs.js";
import { makePlan } from "./train/plan.js";
import { makeTexts } from "./train/texts.js";
import { duration } from "./train/words.js";

const AGAIN = 1000; // milliseconds between updates
const LONGER = [1, 5, 10, 30, 60, 240]; // minutes to train longer

export const keys = [
  ["← → on the slider", "less or more time"],
  ["Space on a text", "use it for training, or not"],
];

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export async function show(element, { state, signal, fail, announce, go }) {
  const page = { timer: 0, details: new Map(), states: new Map() };
  const texts = makeTexts({ signal, fail, announce, changed });
  const plan = makePlan({ signal, state, announce, texts: texts.names, leaveOut: texts.leaveOut, train });
  const jobs = makeJobs({ act: (what, job) => acts[what](job).catch(fail), details: (name) => page.details.get(name) });
  const post = async (path, body) => {
    await askJson(`studio/${path}`, body, { signal });
    clearTimeout(page.timer);
    await refresh();
  };

  function changed(names) {
    state.set({ texts: JSON.stringify(names), task: "", columns: "", size: "", name: "" });
    plan.update();
  }
  async function train(request) {
    try {
      const { name } = await askJson("studio/train", request, { signal });
      announce(`${name} is queued.`);
      clearTimeout(page.timer);
      await refresh();
      document.getElementById("step-runs").scrollIntoView({ block: "start" });
    } catch (error) {
      fail(error);
    }
  }
  const acts = {
    async open({ run }) {
      go(SCREEN_OF[run.task], { model: run.model });
    },
    async stop({ name, own, state: now }) {
      const words = "The run is saved first, and you can continue it later.";
      const sure = now === "waiting" || (await confirmed(`Stop training ${name}?`, words, { yes: "Stop", no: "Keep training" }));
      if (!sure) return;
      if (own) await post("stop", { name });
      else await askJson("runs/stop", { run: name }, { signal });
    },
    async resume({ name, state: now }) {
      if (now !== "finished") return post("resume", { run: name });
      const minutes = await chooseMinutes(name);
      return minutes && post("resume", { run: name, minutes });
    },
    async delete({ name }) {
      const words = "The model and its history are deleted. The texts are kept.";
      if (await confirmed(`Delete ${name}?`, words, { yes: "Delete", no: "Keep" })) await post("delete-run", { name });
    },
  };

  /** Load the samples and figures of the runs that show them, when there is a new evaluation. */
  async function learn(runs) {
    const wanted = runs.filter(({ run, state: now }) => run && (run.model_step !== null || now === "training")).slice(0, 6);
    await Promise.all(wanted.map(async ({ name, run }) => {
      const key = JSON.stringify(run.scores); // they change with each evaluation
      if (page.details.get(name)?.key === key) return;
      const ask = (path) => askJson(`runs/${path}?run=${encodeURIComponent(name)}`, undefined, { signal });
      try {
        const [figures, { samples }] = await Promise.all([ask("figures"), ask("samples")]);
        page.details.set(name, { key, step: figures.evaluations.step?.at(-1), figures, samples });
      } catch (error) {
        if (error.status !== 404) throw error; // it has just been deleted
      }
    }));
  }
  async function refresh() {
    clearTimeout(page.timer);
    try {
      const [studio, { runs }] = await Promise.all(["studio", "runs"].map((path) => askJson(path, undefined, { signal })));
      texts.show(studio);
      plan.retry();
      plan.queued(studio.planning);
      const all = joined(studio.jobs, runs);
      await learn(all);
      jobs.show(all, studio.folder, studio.machine);
      for (const { name, state: now } of all) {
        const before = page.states.get(name);
        if (before && before !== now && ["finished", "stopped", "failed"].includes(now)) announce(`${name} has ${now}.`);
        page.states.set(name, now);
      }
    } catch (error) {
      if (wasStopped(error)) return;
      if (error.status === 0) jobs.offline(); // the page tries again
      else fail(error);
    }
    if (!signal.aborted) page.timer = setTimeout(refresh, AGAIN);
  }

  try {
    texts.choose(JSON.parse(state.get("texts") || "[]"));
  } catch {
    // the address was written by hand
  }
  element.append(
    make("h1", {}, "Train a model on your own text"),
    make("p", { class: "lead" }, "Add a text, check the plan, and press Train. Training continues when you close this page."),
    make("div", { class: "steps" }, texts.root, ...plan.sections),
    jobs.root,
  );
  await refresh();
  if (texts.names().length) plan.update();
  return { stop: () => clearTimeout(page.timer) };
}

/** Ask for how much longer a finished run should be trained. Resolves to minutes, or null. */
function chooseMinutes(name) {
  return new Promise((resolve) => {
    const button = (minutes) =>
      make("button", { type: "button", click: () => (resolve(minutes), dialog.close()) }, duration(minutes));
    const dialog = openDialog(`Train ${name} for how much longer?`, make("div", { class: "line" }, LONGER.map(button)));
    dialog.addEventListener("close", () => resolve(null));
  });
}
