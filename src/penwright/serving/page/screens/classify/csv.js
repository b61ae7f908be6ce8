/** Tables as text, separated by commas, semicolons or tabs. Quoted cells may hold separators and line breaks. */

/** Return the most frequent separator in a text's first line, outside quotes, or null. */
export function separatorOf(text) {
  const first = text.replace(/"(?:[^"]|"")*"/g, "").split("\n", 1)[0];
  const counts = ["\t", ",", ";"].map((mark) => [mark, first.split(mark).length - 1]);
  const [mark, count] = counts.sort((one, other) => other[1] - one[1])[0];
  return count ? mark : null;
}

/** Return rows of cells, without blank lines. A text without separators is one column. */
export function parse(text, separator = separatorOf(text)) {
  const rows = [];
  let [row, cell, quoted] = [[], "", false];
  const endCell = () => (row.push(cell), (cell = ""));
  const endRow = () => {
    endCell();
    if (row.some((each) => each.trim())) rows.push(row);
    row = [];
  };
  const given = text.replace(/^\ufeff/, "").replace(/\r\n?/g, "\n");
  for (let at = 0; at < given.length; at++) {
    const letter = given[at];
    if (quoted && letter === '"' && given[at + 1] === '"') cell += given[++at];
    else if (quoted && letter === '"') quoted = false;
    else if (quoted) cell += letter;
    else if (letter === '"' && cell === "" && separator !== null) quoted = true;
    else if (letter === separator) endCell();
    else if (letter === "\n") endRow();
    else cell += letter;
  }
  endRow();
  return rows;
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
