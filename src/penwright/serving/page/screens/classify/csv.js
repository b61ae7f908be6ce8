/** Tables as text, separated by commas, semicolons or tabs. Quoted cells may hold separators and line breaks. */

/** Return the separators in the first line, outside quotes, the most frequent first. */
function separatorsIn(text) {
  const lines = text.replace(/"(?:[^"]|"")*"/g, "").split("\n");
  const first = lines.find((line) => line.trim()) ?? "";
  const counts = ["\t", ",", ";"].map((mark) => [mark, first.split(mark).length - 1]).filter(([, count]) => count);
  return counts.toSorted((one, other) => other[1] - one[1]).map(([mark]) => mark);
}

/** Return rows of cells, without blank lines. Without a separator, or without quotes, quotation marks are letters. */
function rowsOf(text, separator, hasQuotes = separator !== null) {
  const rows = [];
  let [row, cell, quoted] = [[], "", false];
  const endCell = () => (row.push(cell), (cell = ""));
  const endRow = () => {
    endCell();
    if (row.some((each) => each.trim())) rows.push(row);
    row = [];
  };
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted && letter === '"' && text[at + 1] === '"') cell += text[++at];
    else if (quoted && letter === '"') quoted = false;
    else if (quoted) cell += letter;
    else if (letter === '"' && cell === "" && hasQuotes) quoted = true;
    else if (letter === separator) endCell();
    else if (letter === "\n") endRow();
    else cell += letter;
  }
  if (quoted) return rowsOf(text, separator, false); // a mark that is never closed would swallow the rest
  endRow();
  return rows;
}

/**
 * Return rows of cells, without blank lines. If no separator gives all rows the same number of cells, as in prose with
 * commas, each line is a single cell.
 */
export function parse(text) {
  const given = text.replace(/^\ufeff/, "").replace(/\r\n?/g, "\n");
  for (const separator of separatorsIn(given)) {
    const rows = rowsOf(given, separator);
    if (rows.length > 1 && rows.every((row) => row.length === rows[0].length)) return rows;
  }
  return rowsOf(given, null);
}

/** Return rows as CSV (RFC 4180). */
export const format = (rows) =>
  rows
    .map((row) => row.map((cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(","))
    .join("\r\n") + "\r\n";

/**
 * Return the columns of the texts and of the labels, if any: {text, label, hasHeader}. Labels are recognized by their
 * values; the text is the longest other column.
 */
export function columnsOf(rows, labels) {
  const known = new Set(labels);
  const width = Math.max(...rows.map((row) => row.length));
  const body = rows.length > 1 ? rows.slice(1) : rows;
  const cells = (column, from = body) => from.map((row) => row[column] ?? "");
  const share = (column) => cells(column).filter((cell) => known.has(cell.trim())).length / body.length;
  const all = Array.from({ length: width }, (_, column) => column);
  const label = all.toSorted((one, other) => share(other) - share(one))[0];
  const hasLabels = width > 1 && share(label) > 0.5;
  const length = (column) => cells(column).reduce((sum, cell) => sum + cell.length, 0);
  const others = all.filter((column) => !hasLabels || column !== label);
  const text = others.toSorted((one, other) => length(other) - length(one))[0];
  const names = rows[0].map((cell) => cell.trim().toLowerCase());
  const looksLikeNames = hasLabels
    ? !known.has(rows[0][label]?.trim())
    : names.some((name) => /^(text|sentence|label|phrase|review)$/.test(name));
  return { text, label: hasLabels ? label : null, hasHeader: rows.length > 1 && looksLikeNames };
}
