/** Keyboard navigation among many items that are a single stop of the Tab key (roving tabindex). */

/** The change of row and column for a key, or null. */
export function move(key, rightToLeft = false) {
  const sideways = rightToLeft ? -1 : 1;
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -sideways], ArrowRight: [0, sideways] };
  return moves[key] || null;
}

/** Let the arrow keys move the focus among `items()`, laid out in `columns()` columns. Home and End go to the ends. */
export function roving(container, items, columns = () => 1) {
  let current = 0;
  function settle() {
    items().forEach((item, place) => item.setAttribute("tabindex", place === current ? 0 : -1));
  }
  function go(place) {
    const all = items();
    if (all.length === 0) return;
    all[current]?.setAttribute("tabindex", -1);
    current = Math.max(0, Math.min(all.length - 1, place));
    all[current].setAttribute("tabindex", 0);
    all[current].focus();
  }
  container.addEventListener("focusin", (event) => {
    const place = items().indexOf(event.target.closest("[tabindex]"));
    if (place >= 0 && place !== current) {
      items()[current]?.setAttribute("tabindex", -1);
      current = place;
      items()[current].setAttribute("tabindex", 0);
    }
  });
  container.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !items().includes(event.target)) return;
    const step = move(event.key, getComputedStyle(container).direction === "rtl");
    const ends = { Home: 0, End: items().length - 1 };
    if (!step && !(event.key in ends)) return;
    event.preventDefault();
    if (!step) go(ends[event.key]);
    else if (columns() === 1) go(current + step[0] + step[1]);
    else if (items()[current + step[0] * columns() + step[1]]) go(current + step[0] * columns() + step[1]);
  });
  settle();
  return { settle, go };
}
