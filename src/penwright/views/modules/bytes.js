/**
 * Data packed by penwright/views/packing.py: a JSON header, then the arrays that it refers to.
 * Bytes (dtype "u8") always hold probabilities, as 255 times the square root, to keep small ones distinct.
 */

const ARRAYS = { u8: Uint8Array, f32: Float32Array, i32: Int32Array };

/** An array with any number of dimensions, over flat values. */
export class Tensor {
  constructor(shape, dtype, values) {
    Object.assign(this, { shape, dtype, values });
  }

  get size() {
    return this.values.length;
  }

  /** The number at a flat index. */
  number(place) {
    const value = this.values[place];
    return this.dtype === "u8" ? (value / 255) ** 2 : value;
  }

  /** The number at these indices. */
  at(...indices) {
    return this.number(indices.reduce((place, index, axis) => place * this.shape[axis] + index, 0));
  }

  /** The part at these leading indices, as a view without a copy. */
  part(...indices) {
    const shape = this.shape.slice(indices.length);
    const length = shape.reduce((a, b) => a * b, 1);
    const start = indices.reduce((place, index, axis) => place * this.shape[axis] + index, 0) * length;
    return new Tensor(shape, this.dtype, this.values.subarray(start, start + length));
  }

  /** The decoded numbers, as a flat array. */
  numbers() {
    return this.dtype === "u8" ? Float32Array.from(this.values, (value) => (value / 255) ** 2) : this.values;
  }

  /** Probabilities as bytes from 0 to 255, for colours. */
  bytes() {
    if (this.dtype === "u8") return this.values;
    return Uint8Array.from(this.values, (value) => Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, value)))));
  }
}

/** Nested lists of numbers as a Tensor; a Tensor stays as it is. */
export function tensor(values) {
  if (values instanceof Tensor) return values;
  const shape = [];
  for (let inner = values; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  const numbers = values.flat(Infinity).map((value) => (value === null ? NaN : value));
  return new Tensor(shape, "f32", Float32Array.from(numbers));
}

/** The data in a buffer of packed bytes. Its arrays are views of the buffer. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  const first = 4 + length;
  return JSON.parse(header, (_, value) => {
    if (value === null || value.offset === undefined || value.dtype === undefined) return value;
    const size = value.shape.reduce((a, b) => a * b, 1);
    return new Tensor(value.shape, value.dtype, new ARRAYS[value.dtype](buffer, first + value.offset, size));
  });
}

/** The buffer that was deflated and encoded as base64 text. */
export async function inflate(text) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
