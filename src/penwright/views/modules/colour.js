/** Colours for numbers: equal lightness steps (OKLab), no red-green contrast, zero near background in both themes. */

const LIGHT_TO_DARK = "#f8f8e9 #ceeab5 #90dd9f #27ce9f #05b2a5 #0597a0 #037c97 #00628d #004788 #1b2a77 #20194b";
const SIGNED_LIGHT = "#004298 #2f66b5 #5e8acb #8daee0 #bed3f1 #f5f7f9 #f0cfb9 #dfa985 #cc8452 #b66010 #904700";
const SIGNED_DARK = "#8ab9ff #6697e0 #5176ae #3e587e #2c3b50 #1e1f21 #4d3525 #784e31 #a5693e #d4854c #ffa666";

/** Line colours, distinct for all kinds of colour vision (Okabe and Ito 2008), for the light and the dark theme. */
const LINES = {
  light: ["#0072b2", "#c25100", "#00795a", "#a8508a", "#8a6d00", "#2b2b2b", "#3a7ca5", "#7a4b2a"],
  dark: ["#56b4e9", "#ff9a4d", "#3ec99f", "#e39ac6", "#f0e442", "#e8e8e8", "#9ad1f5", "#d9a679"],
};

const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

/** 256 colours interpolated between the stops, each [red, green, blue]. */
function ramp(stops) {
  const points = stops.split(" ").map(channels);
  return Array.from({ length: 256 }, (_, place) => {
    const at = (place / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    return points[low].map((value, channel) => Math.round(value + (points[low + 1][channel] - value) * (at - low)));
  });
}

const toPixels = (colours) => Uint32Array.from(colours, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);

const made = {};

function table(signed, dark) {
  const name = `${signed}${dark}`;
  if (!made[name]) {
    const colours = signed ? ramp(dark ? SIGNED_DARK : SIGNED_LIGHT) : ramp(LIGHT_TO_DARK);
    if (!signed && dark) colours.reverse();
    made[name] = { colours, pixels: toPixels(colours) };
  }
  return made[name];
}

/** 256 pixels for weights from 0 to 1, or for signed values from -1 to 1, in the byte order of little-endian machines. */
export function pixels(signed, dark) {
  return table(signed, dark).pixels;
}

const place = (share) => Math.max(0, Math.min(255, Math.round(share * 255))) || 0;

/** CSS colour of a share from 0 to 1. */
export function sequential(share, dark) {
  return `rgb(${table(false, dark).colours[place(share)].join(" ")})`;
}

/** CSS colour of a signed share from -1 (blue) over 0 (the page) to 1 (orange). */
export function diverging(share, dark) {
  return `rgb(${table(true, dark).colours[place((share + 1) / 2)].join(" ")})`;
}

/** Black or white, whichever is legible on a CSS colour from the functions above. */
export function inkOn(colour) {
  const [red, green, blue] = colour.match(/\d+/g).map((value) => ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}

/** CSS colour of the line with this number. */
export function lineColour(number, dark) {
  const colours = LINES[dark ? "dark" : "light"];
  return colours[number % colours.length];
}

/** Whether an element has light text on a dark background. */
export function isDark(element) {
  const [red, green, blue] = getComputedStyle(element.isConnected ? element : document.body)
    .color.match(/[\d.]+/g)
    .map(Number);
  return red + green + blue > 382;
}

/** Call `callback` when the theme may have changed. Returns a function that stops the calls. */
export function onTheme(callback) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const observer = new MutationObserver(callback);
  media.addEventListener("change", callback);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  return () => {
    media.removeEventListener("change", callback);
    observer.disconnect();
  };
}
