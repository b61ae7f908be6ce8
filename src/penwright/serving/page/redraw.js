/** Redrawing that replaces only what has changed, so that clicks, selections and the focus survive. */

/**
 * Replace the children of a node, but keep those that are equal. A child with `data-key` stays the same element, and only
 * its own children are replaced in the same way.
 */
export function redraw(parent, fresh) {
  const old = [...parent.childNodes];
  const kept = fresh.map((node) => {
    const key = node.dataset?.key;
    const at = old.findIndex((each) => (key ? each.dataset?.key === key : each.isEqualNode(node)));
    if (at < 0) return node;
    const [same] = old.splice(at, 1);
    if (key) {
      same.className = node.className;
      redraw(same, [...node.childNodes]);
    }
    return same;
  });
  old.forEach((node) => node.remove());
  kept.forEach((node, at) => {
    if (parent.childNodes[at] !== node) parent.insertBefore(node, parent.childNodes[at] || null);
  });
}
