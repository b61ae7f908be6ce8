/** Scales and ticks of axes, and numbers as text. */

const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, useGrouping: true });

/** A number in few characters: three significant digits, a true minus sign, and symbols for infinity and NaN. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 1e7) ? value.toExponential(1) : SHORT.format(value);
  return text.replace("-", "−");
}

/** A number with two decimals, for columns of numbers. */
export function decimals(value) {
  return Number.isFinite(value) && Math.abs(value) < 1000
    ? value.toFixed(2).replace("-0.00", "0.00").replace("-", "−")
    : number(value);
}

/** A number with a plus or minus sign. */
export const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));

/** A probability in percent. */
export function percent(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.001) return "<0.1 %";
  if (value > 0.999 && value < 1) return ">99.9 %";
  return `${(100 * value).toFixed(value < 0.1 || (value > 0.99 && value < 1) ? 1 : 0)} %`;
}

/** What an entropy in nats means: the number of equally likely tokens that would leave as much open. */
export const unsure = (nats) => `as unsure as if choosing between ${number(Math.round(Math.exp(nats) * 10) / 10)} tokens`;

/** A scale: maps a domain to a range of pixels, linear or logarithmic. */
export function scale([low, high], [start, end], log = false) {
  const place = log ? Math.log10 : (value) => value;
  const [from, to] = [place(low), place(high)];
  const span = to - from || 1;
  const map = (value) => start + ((place(value) - from) / span) * (end - start);
  map.invert = (pixel) => {
    const value = from + ((pixel - start) / (end - start || 1)) * span;
    return log ? 10 ** value : value;
  };
  map.ticks = (count) => (log ? logTicks(low, high, count) : linearTicks(low, high, count));
  return map;
}

function linearTicks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((times) => times * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

function logTicks(low, high, count) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const times = decades > count ? [1] : decades > count / 3 ? [1, 3] : [1, 2, 3, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    ticks.push(
      ...times.map((each) => each * 10 ** power).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001),
    );
  }
  return ticks.length > 1 ? ticks : linearTicks(low, high, count);
}

/** The smallest and largest finite values, or [0, 1] if there are none. */
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 1] : [low, high];
}
