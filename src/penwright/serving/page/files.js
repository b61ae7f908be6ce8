/** Reading files that a person opens. */

/** Return the text of a file in UTF-8, or in UTF-16 with a byte order mark. Any other encoding is an error. */
export async function textOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()] || "utf-8";
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is not a text in UTF-8. Save it in this encoding (in Excel: “CSV UTF-8”) and open it again.`);
  }
}
