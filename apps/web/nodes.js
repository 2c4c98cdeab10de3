/* nodes.js - makes nodes. Strings among the children become text, never HTML. */

const $ = (id) => document.getElementById(id);

function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== 'list') node[key] = value;
    else node.setAttribute(key, value);
  }
  for (const c of children) if (c !== null && c !== undefined && c !== false) node.append(c);
  return node;
}

function icon(name) {
  const ns = 'http://www.w3.org/2000/svg',
    svg = document.createElementNS(ns, 'svg');
  const use = document.createElementNS(ns, 'use');
  use.setAttribute('href', '#' + name);
  svg.setAttribute('class', 'i');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

function copyButton(text) {
  return el(
    'button',
    {
      type: 'button',
      className: 'ghost',
      onclick: async (e) => {
        try {
          await navigator.clipboard.writeText(text());
        } catch {
          return toast('The browser does not let this page copy.');
        }
        e.target.textContent = 'Copied';
        setTimeout(() => {
          e.target.textContent = 'Copy';
        }, 1200);
      },
    },
    'Copy',
  );
}

const PIECE_CHARS = 4096;

/* Preformatted text that grows at its end. It is split into blocks of PIECE_CHARS characters,
 * because a browser lays out a whole block again when one character is added. */
class GrowingText {
  constructor(node) {
    this.node = node;
    this.n = 0; /* characters shown */
  }
  show(text) {
    if (text.length < this.n) {
      this.node.replaceChildren();
      this.n = 0;
    }
    while (this.n < text.length) {
      let piece = this.node.lastChild;
      if (!piece || piece.full) this.node.append((piece = el('span', { className: 'piece' }, '')));
      const headroom = PIECE_CHARS - piece.textContent.length;
      let end = text.length;
      if (end - this.n >= headroom) {
        /* a block ends at a newline, which is left out */
        const line = text.indexOf('\n', this.n + headroom);
        if (line >= 0) {
          piece.full = true;
          end = line;
        }
      }
      piece.append(text.slice(this.n, end));
      this.n = end + (piece.full ? 1 : 0);
    }
  }
}
