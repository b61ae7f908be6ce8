/** Tell the views when the theme of the page is switched. They read the first theme by themselves. */
new MutationObserver(() => {
  const ink = getComputedStyle(document.body).color.match(/[\d.]+/g).map(Number);
  const theme = ink[0] + ink[1] + ink[2] > 382 ? "dark" : "light";
  for (const frame of document.querySelectorAll('iframe[title="Penwright"]'))
    frame.contentWindow.postMessage({ penwright: "theme", theme }, "*");
}).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"], subtree: true });
