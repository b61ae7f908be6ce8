/** The undo history. Typing without a pause is one step, and so is each continuation by the model. */

const TOGETHER = 800; // milliseconds between changes that count as one step

export function makeHistory() {
  const state = { steps: [[]], at: 0, typedAt: 0 };
  const step = (by) => {
    const next = state.at + by;
    if (next < 0 || next >= state.steps.length) return null;
    state.at = next;
    state.typedAt = 0;
    return state.steps[next];
  };
  return {
    push(parts, typed) {
      const now = performance.now();
      const same = typed && now - state.typedAt < TOGETHER;
      state.steps = [...state.steps.slice(0, state.at + (same ? 0 : 1)), parts];
      state.at = state.steps.length - 1;
      state.typedAt = typed ? now : 0;
    },
    /** Replace the current step. */
    replace(parts) {
      state.steps[state.at] = parts;
    },
    undo: () => step(-1),
    redo: () => step(1),
    canUndo: () => state.at > 0,
    canRedo: () => state.at < state.steps.length - 1,
  };
}
