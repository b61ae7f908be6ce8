/** Why this token? Its scores and the alternatives, before and after the settings. */

import { number, percent, unsure } from "../../views/axes.js";
import { bars } from "../../views/bars.js";
import { make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { scoreOf } from "./text.js";

const COLUMNS = ["model", "with settings"];

/** Draw bars of choices. A click calls `take(choice)`. */
function choiceBars(likeliest, take) {
  const drawn = likeliest.some(({ chance }) => chance !== null && chance !== undefined);
  const shown = ({ probability, chance }) => (drawn ? (chance ?? 0) : probability);
  const ordered = likeliest.toSorted((one, other) => shown(other) - shown(one) || other.probability - one.probability);
  const rows = ordered.map((choice) => ({
    name: label(choice.text),
    values: drawn ? [choice.probability, choice.chance ?? 0] : [choice.probability],
    choose: () => take(choice),
  }));
  return bars("token", drawn ? COLUMNS : ["probability"], rows);
}

/**
 * Create a panel: `showPart` shows the scores of a part of the text, `showNext` what may come after the text. On a
 * narrow screen, the scores of a part slide up from below until they are closed.
 */
export function makeChoices({ closed }) {
  const heading = make("h2", {});
  const close = make("button", { type: "button", class: "close", "aria-label": "Close", click: closed }, "×");
  const facts = make("p", { class: "hint" });
  const place = make("div", {});
  const root = make("section", { class: "choices", "aria-label": "Choices" }, close, heading, facts, place);

  function fill(title, text, content, ofPart = false) {
    root.classList.toggle("of-part", ofPart);
    heading.replaceChildren(...title);
    facts.textContent = text;
    place.replaceChildren(...content);
  }
  return {
    root,
    /** Show the scores of a part; choosing another token continues from there. */
    showPart(part, take) {
      const { logProb, rank, entropy } = scoreOf(part);
      const several =
        part.tokens.length > 1 && part.tokens.map((each) => `${label(each.text)} ${percent(Math.exp(each.logProb))}`);
      const said = [
        `${percent(Math.exp(logProb))}, ${number(-logProb)} nats`,
        `rank ${number(rank)}`,
        `entropy ${number(entropy)} nats: ${unsure(entropy)}`,
        several && `made of ${several.join(", ")}`,
      ];
      const name = make("bdi", { class: "pw-quoted" }, label(part.text, 40));
      fill([name, " and its alternatives"], said.filter(Boolean).join(" · "), [choiceBars(part.tokens[0].likeliest, take)], true);
      return `${label(part.text, 40)}: ${percent(Math.exp(logProb))}, rank ${number(rank)}`;
    },
    /** Show the next token's probabilities, and how many tokens the settings allow. */
    showNext({ likeliest, entropy, n_kept: kept }, take) {
      const left = `${number(kept)} ${kept === 1 ? "token" : "tokens"} can be drawn`;
      const doubt = unsure(entropy).replace("as", "As");
      fill(["What may come next"], `${doubt} · entropy ${number(entropy)} nats · ${left}`, [choiceBars(likeliest, take)]);
    },
    /** Show a hint if nothing is known. */
    showHint(title, text) {
      fill([title], text, []);
    },
    /** Take the choice of this number, like a click on it. */
    press: (at) => place.querySelectorAll(".pw-choose")[at]?.click(),
  };
}
