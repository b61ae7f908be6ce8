/** Why this token? What the model thought, and what else might have come, before and after the settings. */

import { number, percent } from "../../views/axes.js";
import { bars } from "../../views/bars.js";
import { make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { scoreOf } from "./text.js";

const COLUMNS = ["the model's", "as drawn"];

/** Bars of choices, each of which can be taken: `take(choice)`. */
function choiceBars(likeliest, take) {
  const drawn = likeliest.some(({ chance }) => chance !== null && chance !== undefined);
  const rows = likeliest.map((choice) => ({
    name: label(choice.text),
    values: drawn ? [choice.probability, choice.chance ?? 0] : [choice.probability],
    choose: () => take(choice),
  }));
  return bars("token", drawn ? COLUMNS : ["probability"], rows);
}

/**
 * A panel: `showPart` what is known of a part of the text, `showNext` what may come after all of it. On a narrow screen
 * what is known of a part comes up from below, until it is closed.
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
    /** The part's own scores; choosing another token leads on from there. */
    showPart(part, take) {
      const { logProb, rank, entropy } = scoreOf(part);
      const several =
        part.tokens.length > 1 && part.tokens.map((each) => `${label(each.text)} ${percent(Math.exp(each.logProb))}`);
      const said = [
        `${percent(Math.exp(logProb))}, ${number(-logProb)} nats`,
        `rank ${number(rank)}`,
        `entropy ${number(entropy)} nats`,
        several && `made of ${several.join(", ")}`,
      ];
      const name = make("bdi", { class: "pw-quoted" }, label(part.text, 40));
      fill([name, " instead of"], said.filter(Boolean).join(" · "), [choiceBars(part.tokens[0].likeliest, take)], true);
      return `${label(part.text, 40)}: ${percent(Math.exp(logProb))}, rank ${number(rank)}`;
    },
    /** The next token's probabilities, and how many tokens the settings leave to be drawn. */
    showNext({ likeliest, entropy, n_kept: kept }, take) {
      const left = `${number(kept)} ${kept === 1 ? "token" : "tokens"} can be drawn`;
      fill(["What may come next"], `${left} · entropy ${number(entropy)} nats`, [choiceBars(likeliest, take)]);
    },
    /** A sentence where nothing is known. */
    showHint(title, text) {
      fill([title], text, []);
    },
    /** Take the choice of this number, as a click on it would. */
    press: (at) => place.querySelectorAll(".pw-choose")[at]?.click(),
  };
}
