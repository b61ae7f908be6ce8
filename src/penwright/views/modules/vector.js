/** A drawing context that writes SVG, with the canvas functions that plot.js needs. */

const round = (value) => Math.round(value * 100) / 100;
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
const ANCHORS = { left: "start", center: "middle", right: "end" };

/** A new drawing context. `svg(background)` returns its drawing as a complete file. */
export function vectorContext(width, height) {
  const parts = [];
  let path = "";
  let clip = "";
  let dashes = [];
  const draw = (attributes) => parts.push(`<path d="${path}"${clip} ${attributes}/>`);
  return {
    strokeStyle: "#000",
    fillStyle: "#000",
    globalAlpha: 1,
    lineWidth: 1,
    font: "12px sans-serif",
    textAlign: "left",
    beginPath: () => (path = ""),
    moveTo: (x, y) => (path += `M${round(x)} ${round(y)}`),
    lineTo: (x, y) => (path += `L${round(x)} ${round(y)}`),
    rect: (x, y, wide, high) => (path += `M${round(x)} ${round(y)}h${round(wide)}v${round(high)}h${round(-wide)}Z`),
    setLineDash: (lengths) => (dashes = lengths),
    save: () => {},
    restore: () => (clip = ""),
    clip() {
      parts.push(`<clipPath id="frame"><path d="${path}"/></clipPath>`);
      clip = ' clip-path="url(#frame)"';
    },
    stroke() {
      const dashed = dashes.length ? ` stroke-dasharray="${dashes.join(" ")}"` : "";
      const line = `stroke="${escape(this.strokeStyle)}" stroke-width="${this.lineWidth}"`;
      if (path) draw(`fill="none" ${line} stroke-opacity="${this.globalAlpha}" stroke-linejoin="round"${dashed}`);
    },
    /** A full circle, the only arc that is needed. */
    arc: (x, y, radius) => {
      const [left, across] = [round(x - radius), round(2 * radius)];
      path += `M${left} ${round(y)}a${radius} ${radius} 0 1 0 ${across} 0a${radius} ${radius} 0 1 0 ${-across} 0Z`;
    },
    fill() {
      draw(`fill="${escape(this.fillStyle)}" fill-opacity="${this.globalAlpha}"`);
    },
    fillText(text, x, y) {
      const [size, ...family] = this.font.split(" ");
      const style = `font-size="${size}" font-family="${escape(family.join(" "))}" fill="${escape(this.fillStyle)}"`;
      const place = `x="${round(x)}" y="${round(y)}" text-anchor="${ANCHORS[this.textAlign]}"`;
      parts.push(`<text ${place} ${style} fill-opacity="${this.globalAlpha}">${escape(text)}</text>`);
    },
    svg(background) {
      const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
      const paper = `<rect width="100%" height="100%" fill="${escape(background)}"/>`;
      return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${paper}${parts.join("")}</svg>\n`;
    },
  };
}
