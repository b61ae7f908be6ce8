/** What was found in the texts, and the plan: task, columns, preview, sizes, minutes and the expected quality. */

import { make } from "../../views/dom.js";
import { inText } from "../../views/tokens.js";
import { askJson, wasStopped } from "../../api.js";
import { newest } from "../../newest.js";
import { duration, expected, parameters, ROLES, rounded, TASKS } from "./words.js";

/** The choices of the planner that training keeps, so that it trains the model that is shown. */
const KEPT = ["tokenizer.type", "tokenizer.vocab_size", "model.size", "model.n_layers"];

/** Roles for which several columns can be chosen: texts are joined, and each label has its own column of 0 and 1. */
const SEVERAL = ["text", "label"];

/**
 * Create both sections. `state` keeps what a person has chosen; `leaveOut(text)` unticks a text, and `train(request)` starts the training.
 */
export function makePlan({ signal, state, announce, texts, leaveOut, train }) {
  const asking = newest(signal);
  const page = { plan: null, isUnanswered: false, ticket: "" };
  const turn = make("p", { class: "hint", role: "status", hidden: true });
  const found = make("div", { class: "found" });
  const planned = make("div", { class: "planned" });
  const sections = [
    make("section", { class: "card step", "aria-labelledby": "step-found", hidden: true },
      make("h2", { id: "step-found" }, "2. What was found"), turn, found),
    make("section", { class: "card step", "aria-labelledby": "step-plan", hidden: true },
      make("h2", { id: "step-plan" }, "3. The plan"), planned),
  ];
  const columns = () => JSON.parse(state.get("columns") || "{}");
  function request() {
    const chosen = { texts: texts(), columns: columns() };
    for (const name of ["task", "size"]) if (state.get(name)) chosen[name] = state.get(name);
    if (state.get("minutes")) chosen.minutes = state.number("minutes", 10);
    return chosen;
  }
  /** Ask for the plan of the ticked texts, and show it. */
  async function update() {
    const stopped = asking.begin();
    page.isUnanswered = false;
    page.ticket = Math.random().toString(36).slice(2);
    const [first, second] = sections;
    first.hidden = !texts().length;
    if (first.hidden) return (second.hidden = true);
    sections.forEach((each) => each.setAttribute("aria-busy", "true"));
    if (!page.plan) found.replaceChildren(make("p", { class: "hint" }, "Reading the text and measuring the speed of this computer …"));
    try {
      const plan = await askJson("studio/plan", { ...request(), ticket: page.ticket }, { signal: stopped });
      page.plan = plan.undecided ? null : plan;
      second.hidden = Boolean(plan.undecided);
      if (plan.undecided) showQuestion(plan.undecided);
      else show(plan);
    } catch (error) {
      if (stopped.aborted || wasStopped(error)) return undefined;
      page.plan = null;
      page.isUnanswered = error.status === 0;
      second.hidden = true;
      const culprit = texts().length > 1 && texts().filter((name) => error.message.includes(`texts/${name}`)).sort((a, b) => b.length - a.length)[0];
      found.replaceChildren(...[
        make("p", { class: "warning", role: "alert" }, error.message),
        culprit && make("p", {}, make("button", { type: "button", click: () => leaveOut(culprit) }, `Leave out ${culprit}`)),
        taskChoice(state.get("task"), ""),
      ].filter(Boolean));
    }
    sections.forEach((each) => each.removeAttribute("aria-busy"));
    queued([]);
    return undefined;
  }
  function become(values) {
    state.set(values);
    return update();
  }
  function showQuestion({ question, options }) {
    const answer = ({ settings, meaning }) => {
      const given = Object.fromEntries(settings.map((each) => [each.split("=", 1)[0], each.slice(each.indexOf("=") + 1)]));
      const chosen = { ...columns() };
      for (const [key, value] of Object.entries(given))
        if (key.startsWith("data.")) chosen[key.slice(5)] = value;
      const click = () => become({ ...(given.task && { task: given.task }), columns: JSON.stringify(chosen) });
      return make("button", { type: "button", click }, meaning);
    };
    found.replaceChildren(
      make("p", {}, question),
      make("p", {}, make("strong", {}, "What should the model learn?")),
      make("div", { class: "line" }, options.map(answer)),
      taskChoice(state.get("task"), ""),
    );
  }
  function taskChoice(task, reason) {
    const option = ([value, text]) => make("option", { value, selected: value === task }, text);
    const change = ({ target }) => become({ task: target.value, columns: "", size: "" });
    const options = [...(task ? [] : [["", "Choose a task"]]), ...TASKS].map(option);
    return make("div", { class: "line" },
      make("label", { class: "line" }, "The model learns to: ", make("select", { id: "task", change }, options)),
      reason && make("span", { class: "hint" }, reason));
  }
  function columnChoices({ columns: names, roles }, task) {
    if (!names.length) return null;
    const shown = (name) => (/^\d+$/.test(name) ? `column ${name}` : name);
    const choose = (role, chosen) => become({ columns: JSON.stringify({ ...columns(), [role]: chosen }) });
    const choice = ([role, title]) => {
      const now = roles[role] || [];
      const isChosen = (at) => now.some(([, number]) => number === at + 1);
      const options = names.map((name, at) => make("option", { value: at + 1, selected: now.length === 1 && isChosen(at) }, shown(name)));
      if (now.length > 1) options.unshift(make("option", { value: "now", selected: true }, now.map(([name]) => shown(name)).join(", ")));
      if (!SEVERAL.includes(role)) return chooser(title, options, (value) => choose(role, Number(value)));
      options.push(make("option", { value: "several" }, "several columns …"));
      const boxes = names.map((_, at) => make("input", { type: "checkbox", value: at + 1, checked: isChosen(at) }));
      const use = () => {
        const ticked = boxes.filter((box) => box.checked).map((box) => Number(box.value));
        return ticked.length && choose(role, ticked);
      };
      const fields = make("fieldset", { class: "line", hidden: true },
        make("legend", {}, `${title}: columns`),
        boxes.map((box, at) => make("label", {}, box, ` ${shown(names[at])}`)),
        make("button", { type: "button", click: use }, "Use these columns"));
      const change = (value) => {
        fields.hidden = value !== "several";
        return Number(value) ? choose(role, Number(value)) : undefined;
      };
      return [chooser(title, options, change), fields];
    };
    return make("div", { class: "line columns" }, ROLES[task].map(choice).flat());
  }
  function show(plan) {
    const { recipe, data, examples, passage } = plan;
    const side = ([name, text]) =>
      make("p", { dir: "auto" }, make("span", { class: "role", dir: "ltr" }, name), inText(text));
    const example = (each) => make("div", { class: "example" }, Object.entries(each).map(side));
    const preview = passage.length ? passageOf(passage) : examples.map(example);
    const dropped = data.dropped.map(({ reason, count, first }) =>
      make("li", {}, `${count.toLocaleString("en")} left out: ${reason}`, first && make("span", { class: "hint" }, ` (first: ${first})`)));
    const focused = document.activeElement?.id;
    found.replaceChildren(
      taskChoice(recipe.task, plan.reason),
      ...[columnChoices(plan, recipe.task)].filter(Boolean),
      make("h3", {}, "As the model will see it"),
      make("div", { class: "preview" }, preview),
      make("ul", { class: "report" },
        data.n_read > 1 ? make("li", {}, `${data.n_kept.toLocaleString("en")} of ${data.n_read.toLocaleString("en")} ${data.unit}s are used`) : null,
        dropped,
        notRead(data).map((line) => make("li", {}, line)),
        make("li", {}, data.split)),
      make("details", {}, make("summary", {}, "Files and details"), make("ul", { class: "report" }, data.text.map((line) => make("li", {}, line)))),
    );
    showPlan(plan);
    if (focused) document.getElementById(focused)?.focus();
    announce("The plan is ready.");
  }
  function showPlan(plan) {
    const { sizes, budgets, recipe } = plan;
    const card = ({ size, parameters: n, epochs, is_chosen: chosen }) =>
      make("label", { class: "size" },
        make("input", { type: "radio", name: "size", value: size, checked: chosen, id: `size-${size}`, change: () => become({ size }) }),
        make("strong", {}, size),
        make("span", {}, `${parameters(n)} weights`),
        make("span", { class: "hint" }, reading(epochs, chosen)),
        chosen && !state.get("size") ? make("span", { class: "mark" }, epochs < 1 ? "best for your time" : "fits your time") : null);
    const at = Math.max(0, budgets.findIndex(({ minutes }) => minutes === recipe.training.minutes));
    const words = make("p", { class: "expected", "aria-live": "polite" });
    const output = make("output", { for: "minutes" });
    const slider = make("input", { type: "range", id: "minutes", min: 0, max: budgets.length - 1, step: 1, value: at, input: say,
      change: () => become({ minutes: budgets[slider.value].minutes }) });
    function say() {
      const budget = budgets[slider.value];
      const { before, figure, after, exact } = expected(budget, plan.bytes / Math.max(1, plan.characters), plan.outlook);
      output.textContent = duration(budget.minutes);
      slider.setAttribute("aria-valuetext", output.textContent);
      words.replaceChildren(before, make("span", { title: exact }, figure), after);
    }
    say();
    /** The minutes, and what was planned for them, unless the plan that is shown is being replaced. */
    function agreed() {
      const { minutes } = budgets[slider.value];
      const isCurrent = minutes === recipe.training.minutes && !sections[0].hasAttribute("aria-busy");
      const kept = isCurrent ? plan.choices.filter(({ key }) => KEPT.includes(key)) : [];
      return { minutes, choices: Object.fromEntries(kept.map(({ key, value }) => [key, value])) };
    }
    const name = make("input", { type: "text", id: "name", maxlength: 60, value: state.get("name") || nameOf(texts()[0]), input: () => state.set({ name: name.value }) });
    const short = plan.minutes_wanted && `The model needs more time for this much text: ${duration(Math.ceil(10 * plan.minutes_wanted) / 10)} or more.`;
    planned.replaceChildren(
      make("div", { class: "line" }, make("label", { for: "minutes" }, "How long may it learn?"), slider, output),
      words,
      ...(short ? [make("p", { class: "warning" }, short)] : []),
      make("fieldset", { class: "sizes" }, make("legend", {}, "How big should the model be?"), sizes.map(card)),
      make("details", {}, make("summary", {}, "Why these settings?"),
        make("ul", { class: "report" }, plan.choices.map(({ key, value, reason }) => make("li", {}, make("code", {}, `${key} = ${JSON.stringify(value)}`), ` ${reason}`)))),
      make("div", { class: "line" },
        make("label", { for: "name" }, "Name"), name,
        make("button", { type: "button", class: "main", id: "train", click: () => train({ ...request(), name: name.value, ...agreed() }) }, "Train")),
    );
  }
  /** Ask again if the server did not answer. */
  const retry = () => page.isUnanswered && update();
  /** Show how many plans come before this one. `tickets` has the ticket of every requested plan, in order. */
  function queued(tickets) {
    const before = tickets.indexOf(page.ticket);
    const words = before > 0 ? `Plans are made one after another. Before this one: ${before}` : "";
    if (turn.textContent !== words) turn.textContent = words;
    turn.hidden = !words;
  }
  return { sections, update, retry, queued };
}

/** A labelled menu. `choose(value)` is called with the option that a person chooses. */
const chooser = (title, options, choose) =>
  make("label", { class: "line" }, `${title}: `, make("select", { change: ({ target }) => choose(target.value) }, options));

/** A passage of running text with its tokens. */
const passageOf = (tokens) => [
  make("p", { class: "hint" }, "From the middle of the text. Each shaded piece is a token: the model reads and writes token by token."),
  make("p", { class: "example passage", dir: "auto" }, tokens.map((token) => make("span", {}, inText(token))), "…"),
];

/** The remarks on parts of the files that are not read, such as other sheets of a workbook. */
const notRead = ({ files, notes }) =>
  [...files.map(({ path, remark }) => remark && `${path}: ${remark}`), ...notes]
    .filter((line) => line?.includes("not read"))
    .map((line) => line.replace(/^texts\//, ""));

/** Say how often a model of this size would read the text. */
const reading = (epochs, isChosen) => {
  const share = `${rounded(100 * epochs)} % of the text`;
  if (epochs >= 1) return `passes over the text: ${rounded(epochs)}`;
  return isChosen ? `reads ${share}` : `too big: would read only ${share}`;
};

/** Return a name for a run, from the name of a text. */
const nameOf = (text) => text.replace(/\.[^.]*$/, "").replace(/^[^\p{L}\p{N}]+/u, "").slice(0, 40) || "run";
