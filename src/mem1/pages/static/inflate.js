// Text that Python packed as base64 of gzip in <script type="text/plain" id="...">.
const inflate = async (id) => {
  const letters = atob(byId(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

// Resolves when the browser has painted the page so far.
const shown = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
