/** A parser of server-sent events, which the network may split anywhere. */

/**
 * Create a parser: `push(bytes)` and `finish()` return the events {event, data, id} that are complete. Pieces may split
 * characters. Lines end with CR, LF or both; a blank line ends an event.
 */
export function makeParser() {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: false });
  let rest = "";
  let open = fresh();

  function fresh() {
    return { event: "message", data: [], id: null };
  }
  function read(line, events) {
    if (line === "") {
      if (open.data.length) events.push({ event: open.event, data: open.data.join("\n"), id: open.id });
      open = fresh();
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") open.data.push(value);
    else if (name === "event") open.event = value;
    else if (name === "id") open.id = value;
  }
  function lines(text, last) {
    const events = [];
    rest += text;
    // a CR at the end may be the first half of CRLF: keep it for the next piece
    const held = !last && rest.endsWith("\r") ? "\r" : "";
    const parts = rest.slice(0, rest.length - held.length).split(/\r\n|\r|\n/);
    rest = parts.pop() + held;
    parts.forEach((line) => read(line, events));
    return events;
  }
  return {
    push: (bytes) => lines(decoder.decode(bytes, { stream: true }), false),
    finish() {
      const events = lines(decoder.decode(), true);
      if (rest) read(rest, events);
      rest = "";
      read("", events); // the last event counts even without a blank line
      return events;
    },
  };
}

/** Yield the events of a response as they arrive. Stopping early cancels the request. */
export async function* eventsOf(response) {
  const [parser, reader] = [makeParser(), response.body.getReader()];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* done ? parser.finish() : parser.push(value);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
